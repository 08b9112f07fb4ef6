"""Read the words of ``words.txt``: nouns, adjectives and verbs in four languages, names and cities."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PARTS = Path(__file__).with_name("words.txt").read_text(encoding="utf8").split("\n[")[1:]
TABLES = {name: table for name, _, table in (part.partition("]\n") for part in PARTS)}
Synonyms = tuple[tuple[str, ...], ...]


class Word(NamedTuple):
    """A line of a table: in each language the synonyms, each with its forms in the order that ``words.txt`` tells."""

    english: Synonyms
    classes: str
    german: Synonyms
    french: Synonyms
    romanian: Synonyms


def _words(table: str) -> Iterator[Word]:
    for line in filter(None, TABLES[table].splitlines()):
        cells = [tuple(tuple(option.split()) for option in cell.split("/")) for cell in line.split(";")]
        english, [classes], german, french, romanian = cells
        yield Word(english, "".join(sorted(classes)), german, french, romanian)


NOUNS, ADJECTIVES = tuple(_words("NOUNS")), tuple(_words("ADJECTIVES"))
VERBS_WITH_OBJECT, VERBS_WITH_RECIPIENT = tuple(_words("VERBS_WITH_OBJECT")), tuple(_words("VERBS_WITH_RECIPIENT"))
VERBS_AT_PLACE, VERBS_OF_MOTION = tuple(_words("VERBS_AT_PLACE")), tuple(_words("VERBS_OF_MOTION"))
FEMALE_NAMES, MALE_NAMES, FAMILY_NAMES, CITIES = (
    TABLES[name].split() for name in ("FEMALE_NAMES", "MALE_NAMES", "FAMILY_NAMES", "CITIES")
)
NOUNS_BY_CLASS = {letter: tuple(noun for noun in NOUNS if letter in noun.classes) for letter in "pabgorvf"}
ADJECTIVES_BY_CLASS = {letter: tuple(item for item in ADJECTIVES if letter in item.classes) for letter in "pabgorvf"}
