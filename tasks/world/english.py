"""English: the source of most pairs, and the text by which a sentence is put into train or test."""

import random

from tasks.world.clauses import Clause, Person, Phrase, Place, Sentence, When
from tasks.world.draw import choose

NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
FIRST_YEAR = 1890
WOMEN = {"sister", "mother", "woman", "girl", "queen", "nurse", "actress"}
SPEECH = {"say": ("said", "said"), "think": ("thinks", "think"), "know": ("knows", "know")}
Rng = random.Random | None


def is_plural(subject: Person | Phrase) -> bool:
    return isinstance(subject, Phrase) and subject.plural


def number(count: int) -> str:
    return NUMBERS[count] if count < len(NUMBERS) else str(count)


def noun_phrase(phrase: Phrase | Person, rng: Rng) -> str:
    if isinstance(phrase, Person):
        return phrase.name
    parts = [number(phrase.count)] if phrase.count else []
    if phrase.adjective:
        parts.append(choose(rng, phrase.adjective.english))
    parts.append(choose(rng, phrase.noun.english)[phrase.plural])
    if phrase.definite:
        parts.insert(0, "the")
    elif not phrase.plural:
        parts.insert(0, "an" if parts[0][0] in "aeiou" else "a")
    if phrase.of:
        parts.append("of " + noun_phrase(phrase.of, rng))
    return " ".join(parts)


def place(where: Place, rng: Rng) -> str:
    return f"{where.preposition} {where.city or noun_phrase(where.thing, rng)}"


def when(time: When) -> str:
    if time.kind == "weekday":
        return "on " + WEEKDAYS[time.number]
    if time.kind == "month":
        return "in " + MONTHS[time.number]
    if time.kind == "year":
        return f"in {FIRST_YEAR + time.number}"
    if time.kind == "hour":
        return f"at {time.number + 1} o'clock"
    return time.kind


def _verb(clause: Clause, forms: tuple[str, ...]) -> str:
    base, third, past, _ = forms
    plural, negated = is_plural(clause.subject), clause.negated
    do = "do" if plural else "does"
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


def _be(clause: Clause) -> str:
    past, plural = clause.tense == "past", is_plural(clause.subject)
    return ("were" if plural else "was") if past else ("are" if plural else "is")


def _predicate(clause: Clause, rng: Rng) -> list[str]:
    if clause.kind == "copula":
        parts = [_be(clause), *(["not"] if clause.negated else []), choose(rng, clause.state.english)]
    elif clause.kind == "passive":
        parts = [_be(clause), choose(rng, clause.action.english)[3]]
    else:
        parts = [_verb(clause, choose(rng, clause.action.english))]
    if clause.object:
        parts.append(noun_phrase(clause.object, rng))
    if clause.recipient:
        parts.append("to " + noun_phrase(clause.recipient, rng))
    if clause.company:
        parts.append("with " + noun_phrase(clause.company, rng))
    return parts


def _clause(clause: Clause, rng: Rng, time_first: bool, home: str = "") -> str:
    if clause.kind == "exist":
        parts = ["there", _be(clause), noun_phrase(clause.subject, rng)]
    else:
        parts = [noun_phrase(clause.subject, rng) + home, *_predicate(clause, rng)]
    if clause.place:
        parts.append(place(clause.place, rng))
    if clause.when and time_first:
        parts[0] = f"{when(clause.when)} , {parts[0]}".replace(" ,", ",")
    elif clause.when:
        parts.append(when(clause.when))
    return " ".join(parts)


def _reason(sentence: Sentence, rng: Rng) -> str:
    past = sentence.clause.tense == "past"
    be = "was" if past else "is"
    if sentence.reason == "rain":
        return f" because it {be} raining"
    if sentence.reason == "weather":
        return f" although the weather {be} bad"
    if sentence.reason == "late":
        return f" although it {be} late"
    subject = sentence.clause.subject
    female = subject.female if isinstance(subject, Person) else subject.noun.english[0][0] in WOMEN
    pronoun = "they" if is_plural(subject) else "she" if female else "he"
    return f" because {pronoun} {_be(sentence.clause)} {choose(rng, sentence.cause.english)}"


def realise(sentence: Sentence, rng: Rng) -> str:
    """Say a sentence; without a generator in the canonical way, which has no synonyms and puts the time last."""
    home = ""
    if sentence.home:
        live = "live" if is_plural(sentence.clause.subject) else "lives"
        home = f", who {live} in {sentence.home}," if sentence.lives_there else f" from {sentence.home}"
    text = _clause(sentence.clause, rng, sentence.time_first and rng is not None, home)
    if sentence.speaker:
        said = SPEECH[sentence.speech][is_plural(sentence.speaker)]
        text = f"{noun_phrase(sentence.speaker, rng)} {said} that {text}"
    if sentence.reason:
        text += _reason(sentence, rng)
    return text[0].upper() + text[1:] + "."
