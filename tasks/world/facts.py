"""People, places and dates of English prose, shared by passages, news and stories."""

import random
from dataclasses import dataclass

from tasks.world.draw import pick
from tasks.world.english import MONTHS, NUMBERS, WEEKDAYS
from tasks.world.lexicon import CITIES, FAMILY_NAMES, FEMALE_NAMES, MALE_NAMES

JOBS = (
    "teacher",
    "doctor",
    "engineer",
    "lawyer",
    "painter",
    "writer",
    "baker",
    "driver",
    "nurse",
    "captain",
    "farmer",
    "judge",
)
BUILDINGS = ("museum", "school", "church", "hotel", "library", "theatre", "hospital", "castle", "station", "factory")
RIVERS = ("Alda", "Brena", "Corva", "Dessin", "Elbra", "Fira", "Gorna", "Lisna", "Morava", "Tern")


@dataclass(frozen=True, slots=True)
class Character:
    first: str
    family: str
    female: bool
    job: str

    @property
    def name(self) -> str:
        return f"{self.first} {self.family}"

    @property
    def he(self) -> str:
        return "she" if self.female else "he"

    @property
    def his(self) -> str:
        return "her" if self.female else "his"

    @property
    def him(self) -> str:
        return "her" if self.female else "him"

    @property
    def title(self) -> str:
        return "Mrs" if self.female else "Mr"


def draw_character(rng: random.Random) -> Character:
    female = rng.random() < 0.5
    first = pick(rng, FEMALE_NAMES if female else MALE_NAMES)
    return Character(first, pick(rng, FAMILY_NAMES), female, pick(rng, JOBS))


def draw_city(rng: random.Random) -> str:
    return pick(rng, CITIES)


def draw_date(rng: random.Random) -> str:
    return f"{1 + int(rng.random() * 28)} {pick(rng, MONTHS)}"


def draw_year(rng: random.Random, first: int = 1800, last: int = 1990) -> int:
    return first + int(rng.random() * (last - first + 1))


def draw_weekday(rng: random.Random) -> str:
    return pick(rng, WEEKDAYS)


def count_word(count: int) -> str:
    return NUMBERS[count] if count < len(NUMBERS) else str(count)


def round_number(rng: random.Random, fewest_zeros: int = 2) -> str:
    """A number such as 700, 4,000 or 300,000."""
    digits, zeros = 1 + int(rng.random() * 9), fewest_zeros + int(rng.random() * 4)
    return f"{digits * 10**zeros:,}"


def sentence(text: str) -> str:
    return text[0].upper() + text[1:]
