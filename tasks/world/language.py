"""The grammar that English, French, German and Romanian share when they say a drawn sentence.

``grammar.json`` holds the fixed words of each: numbers, names of days and months, reasons, who lives where and who says what.
"""

import json
import random
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from tasks.world.clauses import Clause, Person, Phrase, Place, Sentence, When, is_plural
from tasks.world.lexicon import Word

GRAMMAR: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("grammar.json").read_text(encoding="utf8"))
FIRST_YEAR = 1890
Rng = random.Random | None


class Language(ABC):
    """A language with its fixed words. Without a generator it says everything in the canonical way, without synonyms."""

    def __init__(self, name: str) -> None:
        self.words = GRAMMAR[name]

    @abstractmethod
    def clause(self, sentence: Sentence, rng: Rng, time_first: bool) -> str:
        """Say a clause, beginning with the time if ``time_first``."""

    @abstractmethod
    def noun_phrase(self, phrase: Phrase | Person, rng: Rng) -> str:
        """Say a phrase as the subject."""

    @abstractmethod
    def place(self, where: Place, rng: Rng) -> str:
        """Say a place with its preposition."""

    @abstractmethod
    def state(self, adjective: Word, subject: Person | Phrase, rng: Rng) -> str:
        """Say an adjective behind a form of "be"."""

    @abstractmethod
    def gender(self, subject: Person | Phrase) -> str:
        """Return the letter of the subject's gender."""

    def number(self, count: int) -> str:
        numbers = self.words["numbers"]
        return numbers[count] if count < len(numbers) else str(count)

    def when(self, time: When) -> str:
        names = {"weekday": "weekdays", "month": "months"}
        first = FIRST_YEAR if time.kind == "year" else 1
        name = self.words[names[time.kind]][time.number] if time.kind in names else first + time.number
        return self.words["when"][time.kind].format(name)

    def be(self, clause: Clause) -> str:
        return self.words["be"][_tense(clause)][is_plural(clause.subject)]

    def home(self, sentence: Sentence, **more: str) -> str:
        """Say where the subject is from, or lives; nothing in most sentences."""
        if not sentence.home:
            return ""
        lives = self.words["lives"][is_plural(sentence.clause.subject)]
        return (lives if sentence.lives_there else self.words["from"]).format(home=sentence.home, **more)

    def time_first(self, sentence: Sentence, rng: Rng) -> bool:
        return sentence.time_first

    def subordinate(self, text: str) -> str:
        """Join a clause to what somebody says, whose last word may depend on how the clause begins."""
        return text

    def reason(self, sentence: Sentence, rng: Rng) -> str:
        reasons, clause = self.words["reasons"], sentence.clause
        if sentence.reason != "state":
            return reasons[sentence.reason][_tense(clause)]
        pronoun = self.words["pronouns"][self.gender(clause.subject)][is_plural(clause.subject)]
        state = self.state(sentence.cause, clause.subject, rng)
        return reasons["state"].format(pronoun=pronoun, be=self.be(clause), state=state)

    def realise(self, sentence: Sentence, rng: Rng) -> str:
        """Say a sentence."""
        text = self.clause(sentence, rng, self.time_first(sentence, rng))
        if sentence.speaker:
            says = self.words["says"][sentence.speech][is_plural(sentence.speaker)]
            text = says.format(speaker=self.noun_phrase(sentence.speaker, rng), text=self.subordinate(text))
        if sentence.reason:
            text += self.reason(sentence, rng)
        return text[0].upper() + text[1:] + "."


class VerbBeforeObject(Language):
    """A language that says subject, verb, state, object, recipient, company, place and time, unless the time is first."""

    agrees: ClassVar[bool] = True  # states and participles agree with the subject's gender, which a synonym may not have

    @abstractmethod
    def recipient(self, phrase: Phrase, rng: Rng) -> str:
        """Say to whom something is given."""

    @abstractmethod
    def verb(self, clause: Clause, rng: Rng) -> str:
        """Say the verb of a clause, but "there is"."""

    def clause(self, sentence: Sentence, rng: Rng, time_first: bool) -> str:
        clause, subject, words = sentence.clause, sentence.clause.subject, self.words
        if clause.kind == "exist":
            parts = [words["there"][_tense(clause)], self.noun_phrase(subject, rng)]
        else:
            agreeing = self.agrees and clause.kind in {"copula", "passive"}
            parts = [self.noun_phrase(subject, None if agreeing else rng) + self.home(sentence), self.verb(clause, rng)]
        parts += [self.state(clause.adjective, subject, rng)] if clause.adjective else []
        parts += [self.noun_phrase(clause.object, rng)] if clause.object else []
        parts += [self.recipient(clause.recipient, rng)] if clause.recipient else []
        parts += [words["with"].format(self.noun_phrase(clause.company, rng))] if clause.company else []
        parts += [self.place(clause.place, rng)] if clause.place else []
        if clause.when and time_first:
            return " ".join([words["time first"].format(self.when(clause.when)), *parts])
        return " ".join([*parts, self.when(clause.when)] if clause.when else parts)


def _tense(clause: Clause) -> str:
    return "past" if clause.tense == "past" else "present"
