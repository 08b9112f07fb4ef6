"""Draw the meaning of a sentence, before any language: phrases and clauses.

The same :class:`Sentence` is said by every ``Language``.
"""

import random
from dataclasses import dataclass, replace
from typing import Literal

from tasks.world import lexicon
from tasks.world.draw import pick
from tasks.world.lexicon import CITIES, FAMILY_NAMES, FEMALE_NAMES, MALE_NAMES, Word

Tense = Literal["past", "present", "future", "want", "must", "can"]
TENSES: tuple[Tense, ...] = ("past", "past", "past", "past", "present", "future", "want", "must", "can")
STATE_TENSES: tuple[Tense, ...] = ("past", "present")
PLAIN_TENSES: tuple[Tense, ...] = ("past", "past", "present", "future")
MASS_NOUNS = {"bread", "cheese", "soup"}
PASSIVE_VERBS = {"repair", "paint", "sell", "open", "close", "build", "clean"}
STATE_NAMES = {"old", "young", "tired", "sick", "happy", "poor", "rich"}
STATES = tuple(item for item in lexicon.ADJECTIVES_BY_CLASS["p"] if item.english[0][0] in STATE_NAMES)


@dataclass(frozen=True, slots=True)
class Person:
    name: str
    female: bool

    @property
    def gender(self) -> str:
        return "f" if self.female else "m"


@dataclass(frozen=True, slots=True)
class Phrase:
    """A noun with its article, number, adjective and owner. ``count`` 0 means none is said."""

    noun: Word
    noun_class: str
    definite: bool = True
    plural: bool = False
    count: int = 0
    adjective: Word | None = None
    of: "Phrase | None" = None


@dataclass(frozen=True, slots=True)
class Place:
    """A city (``city``) or a phrase with a preposition: in, near, in front of, behind, to."""

    preposition: str
    city: str = ""
    phrase: Phrase | None = None

    @property
    def thing(self) -> Phrase:
        """The phrase of a place that is not a city."""
        assert self.phrase is not None
        return self.phrase


@dataclass(frozen=True, slots=True)
class When:
    """A kind (a word such as yesterday, or weekday, month, year, hour) and its number."""

    kind: str
    number: int = 0


@dataclass(frozen=True, slots=True)
class Clause:
    """One predication. ``kind``: object, recipient, place, motion, copula, exist, passive."""

    kind: str
    subject: Person | Phrase
    tense: Tense = "past"
    verb: Word | None = None
    negated: bool = False
    object: Phrase | None = None
    recipient: Phrase | None = None
    company: Person | Phrase | None = None
    place: Place | None = None
    when: When | None = None
    adjective: Word | None = None

    @property
    def action(self) -> Word:
        """The verb of every kind but copula and exist."""
        assert self.verb is not None
        return self.verb


@dataclass(frozen=True, slots=True)
class Sentence:
    """A clause, perhaps said by somebody, with a reason that names the subject's state or the weather."""

    clause: Clause
    time_first: bool = False
    speaker: Person | Phrase | None = None
    speech: str = "say"
    reason: str = ""
    reason_state: Word | None = None
    home: str = ""
    lives_there: bool = False

    @property
    def cause(self) -> Word:
        """The state that a reason of kind "state" names."""
        assert self.reason_state is not None
        return self.reason_state


def is_plural(subject: Person | Phrase) -> bool:
    return isinstance(subject, Phrase) and subject.plural


def draw_person(rng: random.Random) -> Person:
    female = rng.random() < 0.5
    first = pick(rng, FEMALE_NAMES if female else MALE_NAMES)
    return Person(f"{first} {pick(rng, FAMILY_NAMES)}" if rng.random() < 0.5 else first, female)


def draw_phrase(rng: random.Random, classes: str, owner_share: float = 0.0, plural_share: float = 0.25) -> Phrase:
    noun_class = pick(rng, classes)
    noun = pick(rng, lexicon.NOUNS_BY_CLASS[noun_class])
    adjectives = lexicon.ADJECTIVES_BY_CLASS[noun_class]
    if noun_class == "b" and rng.random() < owner_share:
        owner = Phrase(pick(rng, lexicon.NOUNS_BY_CLASS["p"]), "p", True, rng.random() < 0.2)
        return Phrase(noun, noun_class, of=owner)
    plural = rng.random() < plural_share and noun_class != "f"
    count = 2 + int(rng.random() * 9) if plural and rng.random() < 0.4 else 0
    adjective = pick(rng, adjectives) if adjectives and rng.random() < 0.45 else None
    definite = noun.english[0][0] in MASS_NOUNS or (rng.random() < 0.6 and not count)
    return Phrase(noun, noun_class, definite, plural, count, adjective)


def draw_subject(rng: random.Random) -> Person | Phrase:
    return draw_person(rng) if rng.random() < 0.5 else draw_phrase(rng, "p", plural_share=0.3)


def draw_place(rng: random.Random) -> Place:
    if rng.random() < 0.35:
        return Place("in", city=pick(rng, CITIES))
    preposition = pick(rng, ("in", "in", "near", "in front of", "behind"))
    phrase = draw_phrase(rng, "b", owner_share=0.2 if preposition != "in" else 0.0, plural_share=0.0)
    return Place(preposition, phrase=replace(phrase, definite=True, plural=False, count=0))


def draw_goal(rng: random.Random) -> Place:
    if rng.random() < 0.5:
        return Place("to", city=pick(rng, CITIES))
    return Place("to", phrase=Phrase(pick(rng, lexicon.NOUNS_BY_CLASS["g"]), "b"))


def draw_when(rng: random.Random, tense: Tense) -> When:
    if tense == "past":
        kind = pick(rng, ("yesterday", "last week", "last year", "weekday", "weekday", "month", "year", "year", "hour"))
    elif tense == "present":
        kind = pick(rng, ("today", "every day", "every evening"))
    else:
        kind = pick(rng, ("today", "tomorrow", "weekday", "weekday", "month", "hour"))
    limits = {"weekday": 7, "month": 12, "year": 130, "hour": 12}
    return When(kind, int(rng.random() * limits[kind]) if kind in limits else 0)


def _maybe_when(rng: random.Random, tense: Tense, share: float) -> When | None:
    return draw_when(rng, tense) if rng.random() < share else None


def _object_clause(rng: random.Random) -> Clause:
    verb, tense = pick(rng, lexicon.VERBS_WITH_OBJECT), pick(rng, TENSES)
    thing = draw_phrase(rng, pick(rng, verb.classes))
    negated = thing.definite and tense != "must" and rng.random() < 0.12
    place = draw_place(rng) if rng.random() < 0.4 and verb.english[0][0] not in {"visit", "build"} else None
    return Clause("object", draw_subject(rng), tense, verb, negated, thing, None, None, place, _maybe_when(rng, tense, 0.5))


def _recipient_clause(rng: random.Random) -> Clause:
    verb, tense = pick(rng, lexicon.VERBS_WITH_RECIPIENT), pick(rng, PLAIN_TENSES)
    thing = draw_phrase(rng, pick(rng, verb.classes))
    recipient = draw_phrase(rng, "p", plural_share=0.2)
    recipient = replace(recipient, definite=True, count=0)
    negated = thing.definite and rng.random() < 0.1
    return Clause("recipient", draw_subject(rng), tense, verb, negated, thing, recipient, when=_maybe_when(rng, tense, 0.5))


def _place_clause(rng: random.Random) -> Clause:
    tense = pick(rng, TENSES)
    moves = rng.random() < 0.45
    verb = pick(rng, lexicon.VERBS_OF_MOTION if moves else lexicon.VERBS_AT_PLACE)
    company = (draw_person(rng) if rng.random() < 0.5 else draw_phrase(rng, "p")) if rng.random() < 0.3 else None
    if isinstance(company, Phrase):
        company = replace(company, definite=True, count=0)
    place = draw_goal(rng) if moves else draw_place(rng)
    negated = tense != "must" and rng.random() < 0.1
    kind = "motion" if moves else "place"
    return Clause(kind, draw_subject(rng), tense, verb, negated, None, None, company, place, _maybe_when(rng, tense, 0.6))


def _copula_clause(rng: random.Random) -> Clause:
    subject = draw_phrase(rng, "pborvf", owner_share=0.3)
    subject = replace(subject, definite=True, count=0)
    options = [item for item in lexicon.ADJECTIVES_BY_CLASS[subject.noun_class] if item is not subject.adjective]
    tense = pick(rng, STATE_TENSES)
    place = draw_place(rng) if subject.noun_class != "b" and rng.random() < 0.4 and not subject.of else None
    return Clause("copula", subject, tense, None, rng.random() < 0.15, place=place, adjective=pick(rng, options))


def _exist_clause(rng: random.Random) -> Clause:
    noun_class = pick(rng, "porva")
    noun = pick(rng, lexicon.NOUNS_BY_CLASS[noun_class])
    adjectives = lexicon.ADJECTIVES_BY_CLASS[noun_class]
    adjective = pick(rng, adjectives) if rng.random() < 0.5 else None
    count = 2 + int(rng.random() * 9) if rng.random() < 0.6 else 11 + int(rng.random() * 89)
    things = Phrase(noun, noun_class, False, True, count, adjective)
    tense = pick(rng, STATE_TENSES)
    return Clause("exist", things, tense, place=draw_place(rng), when=_maybe_when(rng, tense, 0.3))


def _passive_clause(rng: random.Random) -> Clause:
    verb = pick(rng, [item for item in lexicon.VERBS_WITH_OBJECT if item.english[0][0] in PASSIVE_VERBS])
    thing = draw_phrase(rng, pick(rng, verb.classes), owner_share=0.3)
    thing = replace(thing, definite=True, count=0)
    place = draw_place(rng) if rng.random() < 0.4 and thing.noun_class != "b" else None
    return Clause("passive", thing, "past", verb, place=place, when=draw_when(rng, "past"))


MAKERS = (
    *(_object_clause,) * 9,
    *(_recipient_clause,) * 4,
    *(_place_clause,) * 6,
    *(_copula_clause, _copula_clause, _exist_clause, _exist_clause, _passive_clause, _passive_clause),
)


def draw_sentence(rng: random.Random) -> Sentence:
    clause = pick(rng, MAKERS)(rng)
    time_first = clause.when is not None and rng.random() < 0.35
    if rng.random() < 0.16:
        speaker = draw_person(rng) if rng.random() < 0.6 else Phrase(pick(rng, lexicon.NOUNS_BY_CLASS["p"]), "p")
        return Sentence(clause, False, speaker, pick(rng, ("say", "think", "know")))
    personal = isinstance(clause.subject, Person) or clause.subject.noun_class == "p"
    if personal and clause.kind not in {"exist", "copula"} and rng.random() < 0.22:
        if rng.random() < 0.4:
            return Sentence(clause, time_first, reason=pick(rng, ("rain", "weather", "late")))
        return Sentence(clause, time_first, reason="state", reason_state=pick(rng, STATES))
    home = pick(rng, CITIES) if isinstance(clause.subject, Phrase) and clause.subject.noun_class == "p" else ""
    says_home = clause.kind in {"object", "recipient"} and rng.random() < 0.35
    return Sentence(clause, time_first, home=home if says_home else "", lives_there=rng.random() < 0.5)
