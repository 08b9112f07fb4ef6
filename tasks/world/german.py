"""German: gender and four cases, weak and strong adjectives, the verb second in main and last in subordinate clauses."""

from functools import cache
from itertools import pairwise

from tasks.world.clauses import Clause, Person, Phrase, Place, Sentence, is_plural
from tasks.world.draw import choose
from tasks.world.language import Language, Rng
from tasks.world.lexicon import Word

VOWELS = "aeiouäöüy"


def _genitive(gender: str, singular: str, plural: str) -> str:
    if gender in "fw":
        return singular if gender == "f" else plural
    groups = sum(letter in VOWELS and before not in VOWELS for before, letter in pairwise(" " + singular.lower()))
    return singular + ("es" if groups == 1 or singular.endswith(("s", "ß", "z")) else "s")


@cache
def _declined(gender: str, singular: str, plural: str, case: str, many: bool) -> str:
    """Decline a noun; gender "w" is a masculine of the weak declension."""
    if many:
        return plural + "n" if case == "dat" and not plural.endswith(("n", "s")) else plural
    if case == "gen":
        return _genitive(gender, singular, plural)
    return plural if gender == "w" and case != "nom" else singular


class _German(Language):
    def noun_phrase(self, phrase: Phrase | Person, rng: Rng, case: str = "nom") -> str:
        if isinstance(phrase, Person):
            return phrase.name
        noun = choose(rng, phrase.noun.german)
        gender = "p" if phrase.plural else noun[0].replace("w", "m")
        parts = []
        if phrase.definite:
            parts.append(self.words["articles"][case][gender])
        elif not phrase.plural:
            parts.append(self.words["a"][case][gender])
        if phrase.count:
            parts.append(self.number(phrase.count))
        if phrase.adjective:
            endings = self.words["adjectives"]["the" if phrase.definite else "a"]
            parts.append(choose(rng, phrase.adjective.german)[0] + endings[case][gender])
        parts.append(_declined(*noun, case, phrase.plural))
        if phrase.of:
            parts.append(self.noun_phrase(phrase.of, rng, "gen"))
        return " ".join(parts)

    def place(self, where: Place, rng: Rng) -> str:
        if where.city:
            return f"{'nach' if where.preposition == 'to' else 'in'} {where.city}"
        if where.preposition == "near":
            return "in der Nähe " + self.noun_phrase(where.thing, rng, "gen")
        on_not_in = where.preposition == "in" and where.thing.noun.german[0][1] in self.words["on, not in"]
        preposition = "auf" if on_not_in else self.words["places"][where.preposition]
        text = f"{preposition} {self.noun_phrase(where.thing, rng, 'dat')}"
        for full, short in self.words["contracted"].items():
            if text.startswith(full):
                return short + text[len(full) :]
        return text

    def _verbs(self, clause: Clause, rng: Rng) -> tuple[str, str]:
        """Return (finite verb, end of a main clause)."""
        plural, past = is_plural(clause.subject), clause.tense == "past"
        if clause.kind == "copula":
            return self.be(clause), ""
        if clause.kind == "exist":
            return ("gab" if past else "gibt"), ""
        auxiliary, infinitive, third, participle = choose(rng, clause.action.german)
        if clause.kind == "passive":
            return ("wurden" if plural else "wurde"), participle
        if past:
            return (("haben" if plural else "hat") if auxiliary == "h" else ("sind" if plural else "ist")), participle
        if clause.tense == "present":
            return (infinitive if plural else third), ""
        return self.words["modals"][clause.tense][plural], infinitive

    def _middle(self, clause: Clause, rng: Rng) -> list[str]:
        parts = [self.noun_phrase(clause.recipient, rng, "dat")] if clause.recipient else []
        parts += [self.when(clause.when)] if clause.when else []
        parts += [self.noun_phrase(clause.object, rng, "acc")] if clause.object else []
        parts += [self.noun_phrase(clause.subject, rng, "acc")] if clause.kind == "exist" else []
        parts += ["mit " + self.noun_phrase(clause.company, rng, "dat")] if clause.company else []
        parts += ["nicht"] if clause.negated else []
        parts += [self.place(clause.place, rng)] if clause.place else []
        parts += [self.state(clause.adjective, clause.subject, rng)] if clause.adjective else []
        return parts

    def clause(self, sentence: Sentence, rng: Rng, time_first: bool) -> str:
        """Say a clause: its verb is second, or last where somebody says it."""
        clause = sentence.clause
        subject = "es" if clause.kind == "exist" else self.noun_phrase(clause.subject, rng) + self.home(sentence)
        finite, last = self._verbs(clause, rng)
        middle = self._middle(clause, rng)
        tail = [last] if last else []
        if sentence.speaker is not None:
            return " ".join([subject, *middle, *tail, finite])
        if time_first and clause.when:
            time = self.when(clause.when)
            middle.remove(time)
            return " ".join([time, finite, subject, *middle, *tail])
        return " ".join([subject, finite, *middle, *tail])

    def state(self, adjective: Word, subject: Person | Phrase, rng: Rng) -> str:
        return choose(rng, adjective.german)[-1]

    def gender(self, subject: Person | Phrase) -> str:
        return subject.gender if isinstance(subject, Person) else subject.noun.german[0][0].replace("w", "m")

    def home(self, sentence: Sentence, **more: str) -> str:
        subject = sentence.clause.subject
        who = self.words["articles"]["nom"]["p" if is_plural(subject) else self.gender(subject)]
        return super().home(sentence, who=who)

    def time_first(self, sentence: Sentence, rng: Rng) -> bool:
        """A time that English says last may stand first, as is usual in German."""
        return sentence.time_first or (rng is not None and rng.random() < 0.2)


GERMAN = _German("german")
