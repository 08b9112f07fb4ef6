"""English: the source of most pairs, and the text by which a sentence is put into train or test."""

from tasks.world.clauses import Clause, Person, Phrase, Place, Sentence, is_plural
from tasks.world.draw import choose
from tasks.world.language import Rng, VerbBeforeObject
from tasks.world.lexicon import Word


class _English(VerbBeforeObject):
    agrees = False

    def noun_phrase(self, phrase: Phrase | Person, rng: Rng) -> str:
        if isinstance(phrase, Person):
            return phrase.name
        parts = [self.number(phrase.count)] if phrase.count else []
        if phrase.adjective:
            parts.append(choose(rng, phrase.adjective.english)[0])
        parts.append(choose(rng, phrase.noun.english)[phrase.plural])
        if phrase.definite:
            parts.insert(0, "the")
        elif not phrase.plural:
            parts.insert(0, "an" if parts[0][0] in "aeiou" else "a")
        if phrase.of:
            parts.append("of " + self.noun_phrase(phrase.of, rng))
        return " ".join(parts)

    def recipient(self, phrase: Phrase, rng: Rng) -> str:
        return "to " + self.noun_phrase(phrase, rng)

    def place(self, where: Place, rng: Rng) -> str:
        return f"{where.preposition} {where.city or self.noun_phrase(where.thing, rng)}"

    def verb(self, clause: Clause, rng: Rng) -> str:
        plural, negated = is_plural(clause.subject), clause.negated
        if clause.kind == "copula":
            return self.be(clause) + (" not" if negated else "")
        base, third, past, participle = choose(rng, clause.action.english)
        do = "do" if plural else "does"
        if clause.kind == "passive":
            return f"{self.be(clause)} {participle}"
        if clause.tense == "past":
            return f"did not {base}" if negated else past
        if clause.tense == "present":
            return f"{do} not {base}" if negated else (base if plural else third)
        if clause.tense == "future":
            return f"will not {base}" if negated else f"will {base}"
        if clause.tense == "want":
            return f"{do} not want to {base}" if negated else f"{'want' if plural else 'wants'} to {base}"
        if clause.tense == "can":
            return f"cannot {base}" if negated else f"can {base}"
        return f"{'have' if plural else 'has'} to {base}"

    def state(self, adjective: Word, subject: Person | Phrase, rng: Rng) -> str:
        return choose(rng, adjective.english)[0]

    def gender(self, subject: Person | Phrase) -> str:
        female = subject.female if isinstance(subject, Person) else subject.noun.english[0][0] in self.words["women"]
        return "f" if female else "m"

    def time_first(self, sentence: Sentence, rng: Rng) -> bool:
        """The canonical sentence has its time last."""
        return sentence.time_first and rng is not None


ENGLISH = _English("english")
