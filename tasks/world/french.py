"""French: two genders with agreement, elision and contraction, adjectives before or after, the passé composé."""

import random

from tasks.world.clauses import Clause, Person, Phrase, Place, Sentence, When
from tasks.world.draw import choose
from tasks.world.english import FIRST_YEAR, is_plural
from tasks.world.lexicon import starts_with_vowel

NUMBERS = ("zéro", "un", "deux", "trois", "quatre", "cinq", "six", "sept", "huit", "neuf", "dix")
WEEKDAYS = ("lundi", "mardi", "mercredi", "jeudi", "vendredi", "samedi", "dimanche")
MONTHS = (
    "janvier", "février", "mars", "avril", "mai", "juin",
    "juillet", "août", "septembre", "octobre", "novembre", "décembre",
)  # fmt: skip
BEFORE_VOWEL = {"vieux": "vieil", "nouveau": "nouvel", "beau": "bel"}
CONTRACTED = {("de", "le"): "du", ("de", "les"): "des", ("à", "le"): "au", ("à", "les"): "aux"}
AT_NOT_IN = {"marché", "gare"}
FIXED_TIMES = {
    "yesterday": "hier", "today": "aujourd'hui", "tomorrow": "demain", "last week": "la semaine dernière",
    "last year": "l'année dernière", "every day": "chaque jour", "every evening": "chaque soir",
}  # fmt: skip
MODALS = {"want": ("veut", "veulent"), "must": ("doit", "doivent"), "can": ("peut", "peuvent")}
SPEECH = {"say": ("a dit", "ont dit"), "think": ("pense", "pensent"), "know": ("sait", "savent")}
Rng = random.Random | None


def elide(word: str, following: str) -> str:
    """``le`` + ``ami`` gives ``l'ami``; ``que`` + ``Anna`` gives ``qu'Anna``."""
    return f"{word[:-1]}'{following}" if starts_with_vowel(following) else f"{word} {following}"


def pluralise(adjective: str) -> str:
    if adjective.endswith(("s", "x")):
        return adjective
    return adjective + ("x" if adjective.endswith("eau") else "s")


def _adjective(forms: tuple[bool, str, str], gender: str, plural: bool, following: str = "") -> str:
    word = forms[1] if gender == "m" else forms[2]
    if plural:
        return pluralise(word)
    return BEFORE_VOWEL.get(word, word) if following and starts_with_vowel(following) else word


def noun_phrase(phrase: Phrase | Person, rng: Rng, preposition: str = "") -> str:
    """With ``preposition`` de or à, which contract with the article."""
    if isinstance(phrase, Person):
        return elide(preposition, phrase.name) if preposition == "de" else f"{preposition} {phrase.name}".strip()
    noun = choose(rng, phrase.noun.french)
    words, forms = noun.plural if phrase.plural else noun.singular, None
    before = False
    if phrase.adjective:
        forms = choose(rng, phrase.adjective.french)
        before = forms[0]
        adjective = _adjective(forms, noun.gender, phrase.plural, words if before else "")
        words = f"{adjective} {words}" if before else f"{words} {adjective}"
    if phrase.count:
        text = f"{NUMBERS[phrase.count] if phrase.count < len(NUMBERS) else phrase.count} {words}"
        text = f"{preposition} {text}".strip()
    else:
        text = _with_article(phrase, noun.gender, words, before, preposition)
    return f"{text} {noun_phrase(phrase.of, rng, 'de')}" if phrase.of else text


def _with_article(phrase: Phrase, gender: str, words: str, before: bool, preposition: str) -> str:
    if not phrase.definite:
        indefinite = ("de" if before else "des") if phrase.plural else ("un" if gender == "m" else "une")
        text = elide("de", words) if indefinite == "de" else f"{indefinite} {words}"
        return f"{preposition} {text}".strip()
    if phrase.plural:
        article = "les"
    elif starts_with_vowel(words):
        return f"{preposition} l'{words}".strip()
    else:
        article = "le" if gender == "m" else "la"
    contracted = CONTRACTED.get((preposition, article))
    return f"{contracted} {words}" if contracted else f"{preposition} {article} {words}".strip()


def place(where: Place, rng: Rng) -> str:
    if where.city:
        return "à " + where.city
    if where.preposition == "to" or (where.preposition == "in" and where.thing.noun.french[0].singular in AT_NOT_IN):
        return noun_phrase(where.thing, rng, "à")
    if where.preposition == "near":
        return "près " + noun_phrase(where.thing, rng, "de")
    words = {"in": "dans", "in front of": "devant", "behind": "derrière"}
    return f"{words[where.preposition]} {noun_phrase(where.thing, rng)}"


def when(time: When) -> str:
    if time.kind == "weekday":
        return WEEKDAYS[time.number]
    if time.kind == "month":
        return "en " + MONTHS[time.number]
    if time.kind == "year":
        return f"en {FIRST_YEAR + time.number}"
    if time.kind == "hour":
        return f"à {time.number + 1} heure{'s' if time.number else ''}"
    return FIXED_TIMES[time.kind]


def _agreement(subject: Person | Phrase) -> str:
    if isinstance(subject, Person):
        return "e" if subject.female else ""
    return ("e" if subject.noun.french[0].gender == "f" else "") + ("s" if subject.plural else "")


def _negate(finite: str, negated: bool) -> str:
    return f"{elide('ne', finite)} pas" if negated else finite


def _verb(clause: Clause, rng: Rng) -> str:
    plural, past = is_plural(clause.subject), clause.tense == "past"
    have = "ont" if plural else "a"
    if clause.kind == "copula":
        return _negate(("étaient" if plural else "était") if past else ("sont" if plural else "est"), clause.negated)
    auxiliary, infinitive, singular, third_plural, participle, future = choose(rng, clause.action.french)
    if clause.kind == "passive":
        return f"{have} été {participle}{_agreement(clause.subject)}"
    if past and auxiliary == "e":
        return f"{_negate('sont' if plural else 'est', clause.negated)} {participle}{_agreement(clause.subject)}"
    if past:
        return f"{_negate(have, clause.negated)} {participle}"
    if clause.tense == "present":
        return _negate(third_plural if plural else singular, clause.negated)
    if clause.tense == "future":
        return _negate(future + ("ont" if plural else "a"), clause.negated)
    return f"{_negate(MODALS[clause.tense][plural], clause.negated)} {infinitive}"


def _state(clause: Clause, rng: Rng) -> str:
    subject, forms = clause.thing, choose(rng, clause.state.french)
    return _adjective(forms, subject.noun.french[0].gender, subject.plural)


def _clause(clause: Clause, rng: Rng, time_first: bool, home: str = "") -> str:
    if clause.kind == "exist":
        parts = ["il y " + ("avait" if clause.tense == "past" else "a"), noun_phrase(clause.subject, rng)]
    else:
        subject = clause.subject
        # A synonym could have another gender than the one that the participle and the adjective agree with.
        agreeing = clause.kind in {"copula", "passive"}
        parts = [noun_phrase(subject, None if agreeing else rng) + home, _verb(clause, rng)]
    parts += [_state(clause, rng)] if clause.adjective else []
    parts += [noun_phrase(clause.object, rng)] if clause.object else []
    parts += [noun_phrase(clause.recipient, rng, "à")] if clause.recipient else []
    parts += ["avec " + noun_phrase(clause.company, rng)] if clause.company else []
    parts += [place(clause.place, rng)] if clause.place else []
    if clause.when:
        parts = [when(clause.when) + ",", *parts] if time_first else [*parts, when(clause.when)]
    return " ".join(parts)


def _reason(sentence: Sentence, rng: Rng) -> str:
    past = sentence.clause.tense == "past"
    be = "était" if past else "est"
    if sentence.reason == "rain":
        return f" parce qu'il {'pleuvait' if past else 'pleut'}"
    if sentence.reason == "weather":
        return f" même si le temps {be} mauvais"
    if sentence.reason == "late":
        return f" même s'il {be} tard"
    subject = sentence.clause.subject
    plural = is_plural(subject)
    female = subject.female if isinstance(subject, Person) else subject.noun.french[0].gender == "f"
    pronoun = ("elle" if female else "il") + ("s" if plural else "")
    be = ("étaient" if past else "sont") if plural else be
    adjective = _adjective(choose(rng, sentence.cause.french), "f" if female else "m", plural)
    return f" parce qu'{pronoun} {be} {adjective}"


def realise(sentence: Sentence, rng: Rng) -> str:
    home = ""
    if sentence.home and sentence.lives_there:
        home = f", qui {'habitent' if is_plural(sentence.clause.subject) else 'habite'} à {sentence.home},"
    elif sentence.home:
        home = " " + elide("de", sentence.home)
    text = _clause(sentence.clause, rng, sentence.time_first, home)
    if sentence.speaker:
        said = SPEECH[sentence.speech][is_plural(sentence.speaker)]
        text = f"{noun_phrase(sentence.speaker, rng)} {said} {elide('que', text)}"
    if sentence.reason:
        text += _reason(sentence, rng)
    return text[0].upper() + text[1:] + "."
