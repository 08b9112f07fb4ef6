"""What a source's text means: where rows come from, and how they are read. One text says all of it, in commands and records."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qsl, urlencode

from tasks.base import DataError, Dataset, Row

WHOLE = "whole"  # the split of every row
PARTED = "parted"  # of a lone set, also one that is a test set as a whole: a hash parts its rows
HUB = "hub:"  # a place begins with it where any data set of the Hub is meant
OWN = ("toy", "hub")  # places of the tasks' own data sets
SPLIT = re.compile(r"\w[\w.-]*")
OPTIONS = re.compile(r"(.+)\?((?:(?:config|split|field|skip)=[^&?]*)(?:&(?:config|split|field|skip)=[^&?]*)*)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Source:
    """``place`` is "toy", "hub", ``hub:NAME``, or the path of a file or folder.

    ``fields`` are pairs of a task's field and the column that stands for it; both may name a value inside an object
    (``translation.de``). ``split`` names the rows that are tested: WHOLE for every one, PARTED for what training
    leaves out, empty for the usual ones. ``config`` is a configuration of a data set of the Hub. ``skip`` are ids of rows that
    are not tested.
    """

    place: str
    config: str = ""
    split: str = ""
    fields: tuple[tuple[str, str], ...] = ()
    skip: tuple[str, ...] = ()

    @property
    def options(self) -> str:
        """All but the place; empty where nothing but a place was given."""
        told = [(name, value) for name in ("config", "split") if (value := getattr(self, name))]
        fields = (("field", f"{name}={column}") for name, column in self.fields)
        return urlencode([*told, *fields, *(("skip", row_id) for row_id in self.skip)])

    @property
    def text(self) -> str:
        """What commands and records hold: ``PLACE``, or ``PLACE?split=whole&field=prompt%3Dstory``."""
        return f"{self.place}?{self.options}" if self.options else self.place

    @property
    def repository(self) -> str | None:
        """The name of a data set of the Hub, or a folder that is read as the Hub's are; None for other places."""
        return self.place.removeprefix(HUB) if self.place.startswith(HUB) else None

    @classmethod
    def of(cls, text: str) -> Self:
        """Read the text back. What stands behind a "?" and is no option belongs to the place."""
        if (found := OPTIONS.fullmatch(text)) is None:
            return cls(place=text)
        pairs = parse_qsl(found[2], keep_blank_values=True)
        fields = tuple((value.partition("=")[0], value.partition("=")[2]) for name, value in pairs if name == "field")
        skip = tuple(value for name, value in pairs if name == "skip")
        single = {name: value for name, value in pairs if name not in ("field", "skip")}
        return cls(place=found[1], fields=fields, skip=skip, **single)

    def check(self, dataset: Dataset) -> Self:
        """Return itself; DataError for an option that this place or data set does not have."""
        if self.place in OWN and self.options:
            raise DataError(
                f"data '{self.place}': its rows have the task's own fields and splits; leave {self.options} out, "
                "or name a file, a folder or hub:OWNER/NAME"
            )
        if self.split and not SPLIT.fullmatch(self.split):
            raise DataError(f"split {self.split!r}: expected the name of a split, such as whole, test or validation")
        if self.config and self.repository is None:
            raise DataError(f"config '{self.config}': only data sets of the Hub have one; leave it out, or name hub:OWNER/NAME")
        for name, column in self.fields:
            if dataset.fields and name.partition(".")[0] not in dataset.fields:
                raise DataError(
                    f"field '{name}' (={column}): {dataset.name} reads none of this name; "
                    f"expected one of {', '.join(dataset.fields)}"
                )
        return self

    def row(self, row: Row, where: str, dataset: Dataset) -> Row:
        """Return the row with the task's fields in the place of the columns; DataError names a column that is not there.

        A field that replaces others (``dataset.either``) is the only one of them.
        """
        if not self.fields:
            return row
        made: dict[str, Any] = {}
        for name, column in self.fields:
            outer, _, inner = name.rpartition(".")
            (made.setdefault(outer, {}) if outer else made)[inner] = _value(row, name, column, where)
        gone = {column for _, column in self.fields}
        if gone_too := set(made) & set(dataset.either):
            gone |= set(dataset.either) - gone_too
        return {name: value for name, value in row.items() if name not in gone} | made

    def in_parts(self) -> Self:
        """Return the source of which training reads a part, also where a lone set is a test set as a whole."""
        return replace(self, split=PARTED) if self.is_local() and self.repository is None and not self.split else self

    def is_local(self) -> bool:
        """Say whether the rows lie in files of this machine."""
        return self.place not in OWN and (self.repository is None or Path(self.repository).is_dir())


def _value(row: Row, name: str, column: str, where: str) -> Any:
    """Return a column's value; dots lead into objects unless a column is called so."""
    if column in row:
        return row[column]
    value: Any = row
    for part in column.split("."):
        if not isinstance(value, Mapping) or part not in value:
            found = ", ".join(map(str, row)) or "nothing"
            raise DataError(f"{where}: column '{column}' is missing (found: {found}); correct --field {name}={column}")
        value = value[part]
    return value
