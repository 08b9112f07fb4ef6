"""Romanian: the article as a suffix, the genitive-dative, four-way adjectives, doubled datives and the subjunctive."""

import random

from tasks.world.clauses import Clause, Person, Phrase, Place, Sentence, When
from tasks.world.draw import choose
from tasks.world.english import FIRST_YEAR, is_plural
from tasks.world.lexicon import Romanian

NUMBERS = ("zero", "unu", "două", "trei", "patru", "cinci", "șase", "șapte", "opt", "nouă", "zece")
WEEKDAYS = ("luni", "marți", "miercuri", "joi", "vineri", "sâmbătă", "duminică")
MONTHS = (
    "ianuarie", "februarie", "martie", "aprilie", "mai", "iunie",
    "iulie", "august", "septembrie", "octombrie", "noiembrie", "decembrie",
)  # fmt: skip
FIXED_TIMES = {
    "yesterday": "ieri", "today": "astăzi", "tomorrow": "mâine", "last week": "săptămâna trecută", "last year": "anul trecut",
    "every day": "în fiecare zi", "every evening": "în fiecare seară",
}  # fmt: skip
MODALS = {"want": ("vrea", "vor"), "must": ("trebuie", "trebuie"), "can": ("poate", "pot")}
SPEECH = {"say": ("a spus", "au spus"), "think": ("crede", "cred"), "know": ("știe", "știu")}
Rng = random.Random | None


def _adjective(forms: tuple[str, ...], gender: str, plural: bool, oblique: bool = False) -> str:
    """Neuters are masculine in the singular and feminine in the plural; the feminine oblique looks like its plural."""
    if plural:
        return forms[2] if gender == "m" else forms[3]
    if gender == "f":
        return forms[3] if oblique else forms[1]
    return forms[0]


def _count(count: int, noun: Romanian) -> str:
    if count == 2:
        return "doi" if noun.gender == "m" else "două"
    if count < len(NUMBERS):
        return NUMBERS[count]
    return str(count) if 0 < count % 100 < 20 else f"{count} de"


def noun_phrase(phrase: Phrase | Person, rng: Rng, oblique: bool = False, bare: bool = False) -> str:
    """``oblique`` is the genitive-dative; ``bare`` is after a preposition that takes an unmodified noun without article."""
    if isinstance(phrase, Person):
        return phrase.name
    noun = choose(rng, phrase.noun.romanian)
    definite = phrase.definite and not (bare and not phrase.adjective and not phrase.of)
    if oblique:
        parts = [noun.oblique_plural if phrase.plural else noun.oblique]
    elif definite:
        parts = [noun.definite_plural if phrase.plural else noun.definite]
    elif phrase.plural:
        parts = [_count(phrase.count, noun), noun.plural] if phrase.count else [noun.plural]
    else:
        parts = [noun.singular] if phrase.definite else ["o" if noun.gender == "f" else "un", noun.singular]
    if phrase.adjective:
        parts.append(_adjective(choose(rng, phrase.adjective.romanian), noun.gender, phrase.plural, oblique))
    if phrase.of:
        parts.append(noun_phrase(phrase.of, rng, oblique=True))
    return " ".join(parts)


def place(where: Place, rng: Rng) -> str:
    if where.city:
        return f"{'la' if where.preposition == 'to' else 'în'} {where.city}"
    if where.preposition in {"in front of", "behind"}:
        words = "în fața" if where.preposition == "in front of" else "în spatele"
        return f"{words} {noun_phrase(where.thing, rng, oblique=True)}"
    words = {"in": "în", "to": "la", "near": "lângă"}[where.preposition]
    return f"{words} {noun_phrase(where.thing, rng, bare=True)}"


def when(time: When) -> str:
    if time.kind == "weekday":
        return WEEKDAYS[time.number]
    if time.kind == "month":
        return "în " + MONTHS[time.number]
    if time.kind == "year":
        return f"în {FIRST_YEAR + time.number}"
    if time.kind == "hour":
        return f"la ora {time.number + 1}"
    return FIXED_TIMES[time.kind]


def _participle(participle: str, subject: Phrase) -> str:
    gender = subject.noun.romanian[0].gender
    if not subject.plural:
        return participle + ("ă" if gender == "f" else "")
    if gender == "m":
        return participle[:-1] + ("ți" if participle.endswith("t") else "și")
    return participle + "e"


def _verb(clause: Clause, rng: Rng) -> str:
    plural, past = is_plural(clause.subject), clause.tense == "past"
    no = "nu " if clause.negated else ""
    if clause.kind in {"copula", "exist"}:
        return no + (("erau" if plural else "era") if past else ("sunt" if plural else "este"))
    participle, singular, third_plural, infinitive, subjunctive = choose(rng, clause.action.romanian)
    have = "au" if plural else "a"
    if clause.kind == "passive":
        return f"{have} fost {_participle(participle, clause.thing)}"
    many = clause.recipient is not None and clause.recipient.plural
    clitic = "" if clause.recipient is None else "le" if many else "i"
    if past:
        return f"{no}{clitic + '-' if clitic else ''}{have} {participle}"
    free_clitic = "" if not clitic else "le " if many else "îi "
    if clause.tense == "present":
        return f"{no}{free_clitic}{third_plural if plural else singular}"
    if clause.tense == "future":
        return f"{no}{free_clitic}{'vor' if plural else 'va'} {infinitive}"
    return f"{no}{MODALS[clause.tense][plural]} să {subjunctive}"


def _clause(clause: Clause, rng: Rng, time_first: bool, home: str = "") -> str:
    subject = clause.subject
    if clause.kind == "exist":
        parts = [_verb(clause, rng), noun_phrase(subject, rng)]
    else:
        # A synonym could have another gender than the one that the participle and the adjective agree with.
        agreeing = clause.kind in {"copula", "passive"}
        parts = [noun_phrase(subject, None if agreeing else rng) + home, _verb(clause, rng)]
    if clause.adjective:
        forms = choose(rng, clause.state.romanian)
        parts.append(_adjective(forms, clause.thing.noun.romanian[0].gender, clause.thing.plural))
    parts += [noun_phrase(clause.object, rng)] if clause.object else []
    parts += [noun_phrase(clause.recipient, rng, oblique=True)] if clause.recipient else []
    parts += ["cu " + noun_phrase(clause.company, rng)] if clause.company else []
    parts += [place(clause.place, rng)] if clause.place else []
    if clause.when:
        parts = [when(clause.when), *parts] if time_first else [*parts, when(clause.when)]
    return " ".join(parts)


def _reason(sentence: Sentence, rng: Rng) -> str:
    past = sentence.clause.tense == "past"
    if sentence.reason == "rain":
        return f" pentru că {'ploua' if past else 'plouă'}"
    be = "era" if past else "este"
    if sentence.reason == "weather":
        return f", deși vremea {be} rea"
    if sentence.reason == "late":
        return f", deși {be} târziu"
    subject = sentence.clause.subject
    plural = is_plural(subject)
    gender = ("f" if subject.female else "m") if isinstance(subject, Person) else subject.noun.romanian[0].gender
    be = ("erau" if past else "sunt") if plural else be
    return f" pentru că {be} {_adjective(choose(rng, sentence.cause.romanian), gender, plural)}"


def realise(sentence: Sentence, rng: Rng) -> str:
    home = ""
    if sentence.home:
        live = "locuiesc" if is_plural(sentence.clause.subject) else "locuiește"
        home = f", care {live} în {sentence.home}," if sentence.lives_there else f" din {sentence.home}"
    text = _clause(sentence.clause, rng, sentence.time_first, home)
    if sentence.speaker:
        said = SPEECH[sentence.speech][is_plural(sentence.speaker)]
        text = f"{noun_phrase(sentence.speaker, rng)} {said} că {text}"
    if sentence.reason:
        text += _reason(sentence, rng)
    return text[0].upper() + text[1:] + "."
