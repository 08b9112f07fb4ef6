"""Parse the tables of ``words.txt`` into typed entries; every form that an ending rule gives is computed here once."""

from dataclasses import dataclass
from pathlib import Path

PARTS = Path(__file__).with_name("words.txt").read_text(encoding="utf8").split("\n[")[1:]
TABLES = {name: table for name, _, table in (part.partition("]\n") for part in PARTS)}

VOWELS = "aeiouäöüéèêâîôûăhœ"


def starts_with_vowel(word: str) -> bool:
    """Return whether French elides before a word; every h of our lexicon is mute."""
    return word[0].lower() in VOWELS


@dataclass(frozen=True, slots=True)
class German:
    gender: str
    singular: str
    plural: str
    genitive: str
    oblique: str
    dative_plural: str


@dataclass(frozen=True, slots=True)
class French:
    gender: str
    singular: str
    plural: str


@dataclass(frozen=True, slots=True)
class Romanian:
    """``oblique`` is the genitive and dative; ``definite`` forms carry the article as a suffix."""

    gender: str
    singular: str
    plural: str
    definite: str
    definite_plural: str
    oblique: str
    oblique_plural: str


@dataclass(frozen=True, slots=True)
class Noun:
    english: tuple[tuple[str, str], ...]
    classes: str
    german: tuple[German, ...]
    french: tuple[French, ...]
    romanian: tuple[Romanian, ...]


@dataclass(frozen=True, slots=True)
class Adjective:
    """``french`` holds (is before the noun, masculine, feminine); ``romanian`` m.sg, f.sg, m.pl, f.pl."""

    english: tuple[str, ...]
    classes: str
    german: tuple[tuple[str, str], ...]
    french: tuple[tuple[bool, str, str], ...]
    romanian: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Verb:
    """Forms in the order of the table in ``words.txt``."""

    english: tuple[tuple[str, ...], ...]
    classes: str
    german: tuple[tuple[str, ...], ...]
    french: tuple[tuple[str, ...], ...]
    romanian: tuple[tuple[str, ...], ...]


def _german(gender: str, singular: str, plural: str) -> German:
    weak, gender = gender == "w", "m" if gender == "w" else gender
    groups = sum(1 for at, letter in enumerate(singular.lower()) if letter in "aeiouäöüy" and not _vowel_before(singular, at))
    if gender == "f":
        genitive = singular
    elif weak:
        genitive = plural
    else:
        genitive = singular + ("es" if groups == 1 or singular.endswith(("s", "ß", "z")) else "s")
    dative_plural = plural if plural.endswith(("n", "s")) else plural + "n"
    return German(gender, singular, plural, genitive, plural if weak else singular, dative_plural)


def _vowel_before(word: str, at: int) -> bool:
    return at > 0 and word[at - 1].lower() in "aeiouäöüy"


def _romanian(gender: str, singular: str, plural: str) -> Romanian:
    if gender == "f":
        stem = (
            singular[:-2] + "ia" if singular.endswith("ie") else singular + "a" if singular[-1] == "e" else singular[:-1] + "a"
        )
        return Romanian(gender, singular, plural, stem, plural + "le", plural + "i", plural + "lor")
    ending = "le" if singular[-1] == "e" else "l" if singular[-1] == "u" else "ul"
    definite_plural = plural + ("i" if gender == "m" else "le")
    definite = singular + ending
    oblique = singular + "lui" if singular[-1] in "eu" else singular + "ului"
    return Romanian(gender, singular, plural, definite, definite_plural, oblique, plural + "lor")


def _cells(table: str) -> list[list[list[list[str]]]]:
    lines = [line for line in table.strip().splitlines() if line]
    return [[[option.split() for option in cell.split("/")] for cell in line.split(";")] for line in lines]


def _nouns() -> tuple[Noun, ...]:
    return tuple(
        Noun(
            tuple((option[0], option[1]) for option in english),
            "".join(sorted(classes[0])),
            tuple(_german(*option) for option in german),
            tuple(French(*option) for option in french),
            tuple(_romanian(*option) for option in romanian),
        )
        for english, classes, german, french, romanian in _cells(TABLES["NOUNS"])
    )


def _adjectives() -> tuple[Adjective, ...]:
    return tuple(
        Adjective(
            tuple(option[0] for option in english),
            "".join(sorted(classes[0])),
            tuple((option[0], option[-1]) for option in german),
            tuple((option[0] == "b", option[1], option[2]) for option in french),
            tuple(tuple(option) for option in romanian),
        )
        for english, classes, german, french, romanian in _cells(TABLES["ADJECTIVES"])
    )


def _verbs(table: str) -> tuple[Verb, ...]:
    return tuple(
        Verb(
            tuple(tuple(option) for option in english),
            "".join(sorted(classes[0])),
            tuple(tuple(option) for option in german),
            tuple(tuple(option) for option in french),
            tuple(tuple(option) for option in romanian),
        )
        for english, classes, german, french, romanian in _cells(table)
    )


NOUNS = _nouns()
ADJECTIVES = _adjectives()
VERBS_WITH_OBJECT = _verbs(TABLES["VERBS_WITH_OBJECT"])
VERBS_WITH_RECIPIENT = _verbs(TABLES["VERBS_WITH_RECIPIENT"])
VERBS_AT_PLACE = _verbs(TABLES["VERBS_AT_PLACE"])
VERBS_OF_MOTION = _verbs(TABLES["VERBS_OF_MOTION"])
FEMALE_NAMES, MALE_NAMES, FAMILY_NAMES, CITIES = (
    TABLES[name].split() for name in ("FEMALE_NAMES", "MALE_NAMES", "FAMILY_NAMES", "CITIES")
)
NOUNS_BY_CLASS = {letter: tuple(noun for noun in NOUNS if letter in noun.classes) for letter in "pabgorvf"}
ADJECTIVES_BY_CLASS = {letter: tuple(item for item in ADJECTIVES if letter in item.classes) for letter in "pabgorvf"}
