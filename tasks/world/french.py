"""French: two genders with agreement, elision and contraction, adjectives before or after, the passé composé."""

from tasks.world.clauses import Clause, Person, Phrase, Place, Sentence, When, is_plural
from tasks.world.draw import choose
from tasks.world.language import Rng, VerbBeforeObject
from tasks.world.lexicon import Word

VOWELS = "aeiouäöüéèêâîôûăhœ"  # and h: every h of our lexicon is mute


def _starts_with_vowel(word: str) -> bool:
    return word[0].lower() in VOWELS


def _elide(word: str, following: str) -> str:
    """``le`` + ``ami`` gives ``l'ami``; ``que`` + ``Anna`` gives ``qu'Anna``."""
    return f"{word[:-1]}'{following}" if _starts_with_vowel(following) else f"{word} {following}"


def _pluralise(adjective: str) -> str:
    if adjective.endswith(("s", "x")):
        return adjective
    return adjective + ("x" if adjective.endswith("eau") else "s")


def _negate(finite: str, negated: bool) -> str:
    return f"{_elide('ne', finite)} pas" if negated else finite


class _French(VerbBeforeObject):
    def _adjective(self, forms: tuple[str, ...], gender: str, plural: bool, following: str = "") -> str:
        word = forms[1] if gender == "m" else forms[2]
        if plural:
            return _pluralise(word)
        return self.words["before a vowel"].get(word, word) if following and _starts_with_vowel(following) else word

    def noun_phrase(self, phrase: Phrase | Person, rng: Rng, preposition: str = "") -> str:
        """With ``preposition`` de or à, which contract with the article."""
        if isinstance(phrase, Person):
            return _elide(preposition, phrase.name) if preposition == "de" else f"{preposition} {phrase.name}".strip()
        gender, singular, plural = choose(rng, phrase.noun.french)
        words, before = plural if phrase.plural else singular, False
        if phrase.adjective:
            forms = choose(rng, phrase.adjective.french)
            before = forms[0] == "b"
            adjective = self._adjective(forms, gender, phrase.plural, words if before else "")
            words = f"{adjective} {words}" if before else f"{words} {adjective}"
        if phrase.count:
            text = f"{preposition} {self.number(phrase.count)} {words}".strip()
        else:
            text = self._with_article(phrase, gender, words, before, preposition)
        return f"{text} {self.noun_phrase(phrase.of, rng, 'de')}" if phrase.of else text

    def _with_article(self, phrase: Phrase, gender: str, words: str, before: bool, preposition: str) -> str:
        if not phrase.definite:
            indefinite = ("de" if before else "des") if phrase.plural else ("un" if gender == "m" else "une")
            text = _elide("de", words) if indefinite == "de" else f"{indefinite} {words}"
            return f"{preposition} {text}".strip()
        if not phrase.plural and _starts_with_vowel(words):
            return f"{preposition} l'{words}".strip()
        article = "les" if phrase.plural else "le" if gender == "m" else "la"
        both = f"{preposition} {article}"
        return f"{self.words['contracted'].get(both, both)} {words}".strip()

    def recipient(self, phrase: Phrase, rng: Rng) -> str:
        return self.noun_phrase(phrase, rng, "à")

    def place(self, where: Place, rng: Rng) -> str:
        if where.city:
            return "à " + where.city
        at_not_in = where.thing.noun.french[0][1] in self.words["at, not in"]
        if where.preposition == "to" or (where.preposition == "in" and at_not_in):
            return self.noun_phrase(where.thing, rng, "à")
        if where.preposition == "near":
            return "près " + self.noun_phrase(where.thing, rng, "de")
        return f"{self.words['places'][where.preposition]} {self.noun_phrase(where.thing, rng)}"

    def when(self, time: When) -> str:
        return self.words["when"]["one o'clock"] if time == When("hour", 0) else super().when(time)

    def verb(self, clause: Clause, rng: Rng) -> str:
        subject, plural, past = clause.subject, is_plural(clause.subject), clause.tense == "past"
        if clause.kind == "copula":
            return _negate(self.be(clause), clause.negated)
        auxiliary, infinitive, singular, third_plural, participle, future = choose(rng, clause.action.french)
        agreement = ("e" if self.gender(subject) == "f" else "") + ("s" if plural else "")
        have = "ont" if plural else "a"
        if clause.kind == "passive":
            return f"{have} été {participle}{agreement}"
        if past and auxiliary == "e":
            return f"{_negate('sont' if plural else 'est', clause.negated)} {participle}{agreement}"
        if past:
            return f"{_negate(have, clause.negated)} {participle}"
        if clause.tense == "present":
            return _negate(third_plural if plural else singular, clause.negated)
        if clause.tense == "future":
            return _negate(future + have, clause.negated)
        return f"{_negate(self.words['modals'][clause.tense][plural], clause.negated)} {infinitive}"

    def state(self, adjective: Word, subject: Person | Phrase, rng: Rng) -> str:
        return self._adjective(choose(rng, adjective.french), self.gender(subject), is_plural(subject))

    def gender(self, subject: Person | Phrase) -> str:
        return subject.gender if isinstance(subject, Person) else subject.noun.french[0][0]

    def home(self, sentence: Sentence, **more: str) -> str:
        return super().home(sentence, of_home=_elide("de", sentence.home)) if sentence.home else ""

    def subordinate(self, text: str) -> str:
        return _elide("que", text)


FRENCH = _French("french")
