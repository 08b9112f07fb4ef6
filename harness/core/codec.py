"""From JSON to dataclasses and back: a field that is unknown, of another type or no number is refused by its name."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import msgspec

Made = TypeVar("Made")


def parsed(text: str | bytes) -> Any:
    """JSON that can be written again. ValueError also for NaN, infinities and half of a surrogate pair."""
    return msgspec.json.decode(text)


def made(kind: type[Made], values: Any) -> Made:
    """An object of a dataclass from what JSON holds of it; ValueError, naming the field, where it does not fit."""
    if isinstance(values, Mapping):
        _refuse_names(kind, values)
    found = msgspec.convert(values, kind)
    _refuse_unknown(values, found)
    return found


def _refuse_names(kind: Any, values: Mapping[str, Any]) -> None:
    known = [one.name for one in fields(kind)]
    if unknown := next((name for name in values if name not in known), None):
        expected = f"expected one of {', '.join(known)}" if known else "expected none"
        raise ValueError(f"{kind.__name__} field {unknown!r}: not known to this version; {expected}")


def _refuse_unknown(values: Any, found: Any) -> None:
    """ValueError for a field, at any depth, that its dataclass does not have; msgspec leaves these out in silence."""
    if isinstance(values, Mapping) and is_dataclass(found):
        _refuse_names(type(found), values)
        for name, value in values.items():
            _refuse_unknown(value, getattr(found, name))
    elif isinstance(values, list) and values and isinstance(values[0], Mapping):
        for value, one in zip(values, found, strict=True):
            _refuse_unknown(value, one)


def plain(thing: Any) -> Any:
    """Dictionaries, lists and scalars of a dataclass, in the order of its fields."""
    if is_dataclass(thing):
        return {one.name: plain(getattr(thing, one.name)) for one in fields(thing)}
    return [plain(one) for one in thing] if isinstance(thing, list | tuple) else thing


def written(thing: Any) -> str:
    """Canonical JSON: keys sorted, floats at full precision, an integer where a float is declared as that float."""
    return msgspec.json.encode(plain(made(type(thing), plain(thing))), order="sorted").decode()
