"""Romanian: the article as a suffix, the genitive-dative, four-way adjectives, doubled datives and the subjunctive."""

from functools import cache

from tasks.world.clauses import Clause, Person, Phrase, Place, is_plural
from tasks.world.draw import choose
from tasks.world.language import Rng, VerbBeforeObject
from tasks.world.lexicon import Word


@cache
def _definite(gender: str, singular: str, plural: str, many: bool, oblique: bool) -> str:
    """Add the article to a noun. ``oblique`` is the genitive and dative."""
    if many:
        return plural + ("lor" if oblique else "i" if gender == "m" else "le")
    if gender == "f":
        stem = singular[:-2] + "i" if singular.endswith("ie") else singular if singular[-1] == "e" else singular[:-1]
        return plural + "i" if oblique else stem + "a"
    if oblique:
        return singular + ("lui" if singular[-1] in "eu" else "ului")
    return singular + ("le" if singular[-1] == "e" else "l" if singular[-1] == "u" else "ul")


def _adjective(forms: tuple[str, ...], gender: str, plural: bool, oblique: bool = False) -> str:
    """Neuters are masculine in the singular and feminine in the plural; the feminine oblique looks like its plural."""
    if plural:
        return forms[2] if gender == "m" else forms[3]
    if gender == "f":
        return forms[3] if oblique else forms[1]
    return forms[0]


def _participle(participle: str, gender: str, plural: bool) -> str:
    if not plural:
        return participle + ("ă" if gender == "f" else "")
    if gender == "m":
        return participle[:-1] + ("ți" if participle.endswith("t") else "și")
    return participle + "e"


class _Romanian(VerbBeforeObject):
    def _count(self, count: int, gender: str) -> str:
        if count == 2:
            return "doi" if gender == "m" else "două"
        return self.number(count) if count <= 10 or 0 < count % 100 < 20 else f"{count} de"

    def noun_phrase(self, phrase: Phrase | Person, rng: Rng, oblique: bool = False, bare: bool = False) -> str:
        """``oblique`` is the genitive-dative; ``bare`` is after a preposition that takes an unmodified noun without article."""
        if isinstance(phrase, Person):
            return phrase.name
        gender, singular, plural = choose(rng, phrase.noun.romanian)
        if oblique or (phrase.definite and not (bare and not phrase.adjective and not phrase.of)):
            parts = [_definite(gender, singular, plural, phrase.plural, oblique)]
        elif phrase.plural:
            parts = [self._count(phrase.count, gender), plural] if phrase.count else [plural]
        else:
            parts = [singular] if phrase.definite else ["o" if gender == "f" else "un", singular]
        if phrase.adjective:
            parts.append(_adjective(choose(rng, phrase.adjective.romanian), gender, phrase.plural, oblique))
        if phrase.of:
            parts.append(self.noun_phrase(phrase.of, rng, oblique=True))
        return " ".join(parts)

    def recipient(self, phrase: Phrase, rng: Rng) -> str:
        return self.noun_phrase(phrase, rng, oblique=True)

    def place(self, where: Place, rng: Rng) -> str:
        if where.city:
            return f"{'la' if where.preposition == 'to' else 'în'} {where.city}"
        oblique = where.preposition in {"in front of", "behind"}
        return f"{self.words['places'][where.preposition]} {self.noun_phrase(where.thing, rng, oblique, not oblique)}"

    def verb(self, clause: Clause, rng: Rng) -> str:
        plural, past = is_plural(clause.subject), clause.tense == "past"
        no = "nu " if clause.negated else ""
        if clause.kind == "copula":
            return no + self.be(clause)
        participle, singular, third_plural, infinitive, subjunctive = choose(rng, clause.action.romanian)
        have = "au" if plural else "a"
        if clause.kind == "passive":
            return f"{have} fost {_participle(participle, self.gender(clause.subject), plural)}"
        many = clause.recipient is not None and clause.recipient.plural
        clitic, free_clitic = ("", "") if clause.recipient is None else ("le-", "le ") if many else ("i-", "îi ")
        if past:
            return f"{no}{clitic}{have} {participle}"
        if clause.tense == "present":
            return f"{no}{free_clitic}{third_plural if plural else singular}"
        if clause.tense == "future":
            return f"{no}{free_clitic}{'vor' if plural else 'va'} {infinitive}"
        return f"{no}{self.words['modals'][clause.tense][plural]} să {subjunctive}"

    def state(self, adjective: Word, subject: Person | Phrase, rng: Rng) -> str:
        return _adjective(choose(rng, adjective.romanian), self.gender(subject), is_plural(subject))

    def gender(self, subject: Person | Phrase) -> str:
        return subject.gender if isinstance(subject, Person) else subject.noun.romanian[0][0]


ROMANIAN = _Romanian("romanian")
