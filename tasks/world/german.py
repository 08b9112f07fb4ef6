"""German: gender and four cases, weak and strong adjectives, the verb second in main and last in subordinate clauses."""

import random

from tasks.world.clauses import Clause, Person, Phrase, Place, Sentence, When
from tasks.world.draw import choose
from tasks.world.english import FIRST_YEAR, is_plural

NUMBERS = ("null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn")
WEEKDAYS = ("Montag", "Dienstag", "Mittwoch", "Donnerstag", "Freitag", "Samstag", "Sonntag")
MONTHS = (
    "Januar", "Februar", "März", "April", "Mai", "Juni",
    "Juli", "August", "September", "Oktober", "November", "Dezember",
)  # fmt: skip
DEFINITE = {
    "nom": {"m": "der", "f": "die", "n": "das", "p": "die"},
    "acc": {"m": "den", "f": "die", "n": "das", "p": "die"},
    "dat": {"m": "dem", "f": "der", "n": "dem", "p": "den"},
    "gen": {"m": "des", "f": "der", "n": "des", "p": "der"},
}
INDEFINITE_ENDING = {
    "nom": {"m": "", "f": "e", "n": ""},
    "acc": {"m": "en", "f": "e", "n": ""},
    "dat": {"m": "em", "f": "er", "n": "em"},
    "gen": {"m": "es", "f": "er", "n": "es"},
}
WEAK_E = {("nom", "m"), ("nom", "f"), ("nom", "n"), ("acc", "f"), ("acc", "n")}
MIXED = {("nom", "m"): "er", ("nom", "n"): "es", ("acc", "n"): "es", ("nom", "f"): "e", ("acc", "f"): "e"}
STRONG_PLURAL = {"nom": "e", "acc": "e", "dat": "en", "gen": "er"}
CONTRACTED = {"in dem ": "im ", "zu dem ": "zum ", "zu der ": "zur "}
ON_NOT_IN = {"Markt"}
FIXED_TIMES = {
    "yesterday": "gestern", "today": "heute", "tomorrow": "morgen", "last week": "letzte Woche", "last year": "letztes Jahr",
    "every day": "jeden Tag", "every evening": "jeden Abend",
}  # fmt: skip
MODALS = {"want": ("will", "wollen"), "must": ("muss", "müssen"), "can": ("kann", "können"), "future": ("wird", "werden")}
SPEECH = {"say": (("hat", "haben"), "gesagt"), "think": (("glaubt", "glauben"), ""), "know": (("weiß", "wissen"), "")}
Rng = random.Random | None


def _ending(phrase: Phrase, case: str, gender: str) -> str:
    if phrase.plural:
        return "en" if phrase.definite else STRONG_PLURAL[case]
    if phrase.definite:
        return "e" if (case, gender) in WEAK_E else "en"
    return MIXED.get((case, gender), "en")


def noun_phrase(phrase: Phrase | Person, case: str, rng: Rng) -> str:
    if isinstance(phrase, Person):
        return phrase.name
    noun = choose(rng, phrase.noun.german)
    gender = "p" if phrase.plural else noun.gender
    parts = []
    if phrase.definite:
        parts.append(DEFINITE[case][gender])
    elif not phrase.plural:
        parts.append("ein" + INDEFINITE_ENDING[case][gender])
    if phrase.count:
        parts.append(NUMBERS[phrase.count] if phrase.count < len(NUMBERS) else str(phrase.count))
    if phrase.adjective:
        parts.append(choose(rng, phrase.adjective.german)[0] + _ending(phrase, case, gender))
    if phrase.plural:
        parts.append(noun.dative_plural if case == "dat" else noun.plural)
    else:
        parts.append(noun.singular if case == "nom" else noun.genitive if case == "gen" else noun.oblique)
    if phrase.of:
        parts.append(noun_phrase(phrase.of, "gen", rng))
    return " ".join(parts)


def place(where: Place, rng: Rng) -> str:
    if where.city:
        return f"{'nach' if where.preposition == 'to' else 'in'} {where.city}"
    if where.preposition == "near":
        return "in der Nähe " + noun_phrase(where.thing, "gen", rng)
    name = where.thing.noun.german[0].singular
    words = {"in": "auf" if name in ON_NOT_IN else "in", "to": "zu", "in front of": "vor", "behind": "hinter"}
    text = f"{words[where.preposition]} {noun_phrase(where.thing, 'dat', rng)}"
    for full, short in CONTRACTED.items():
        if text.startswith(full):
            return short + text[len(full) :]
    return text


def when(time: When) -> str:
    if time.kind == "weekday":
        return "am " + WEEKDAYS[time.number]
    if time.kind == "month":
        return "im " + MONTHS[time.number]
    if time.kind == "year":
        return f"im Jahr {FIRST_YEAR + time.number}"
    if time.kind == "hour":
        return f"um {time.number + 1} Uhr"
    return FIXED_TIMES[time.kind]


def _verbs(clause: Clause, rng: Rng) -> tuple[str, str]:
    """Return (finite verb, end of a main clause)."""
    plural, past = is_plural(clause.subject), clause.tense == "past"
    if clause.kind == "copula":
        return (("waren" if plural else "war") if past else ("sind" if plural else "ist")), ""
    if clause.kind == "exist":
        return ("gab" if past else "gibt"), ""
    auxiliary, infinitive, third, participle = choose(rng, clause.action.german)
    if clause.kind == "passive":
        return ("wurden" if plural else "wurde"), participle
    if past:
        return (("haben" if plural else "hat") if auxiliary == "h" else ("sind" if plural else "ist")), participle
    if clause.tense == "present":
        return (infinitive if plural else third), ""
    return MODALS[clause.tense][plural], infinitive


def _middle(clause: Clause, rng: Rng) -> list[str]:
    parts = [noun_phrase(clause.recipient, "dat", rng)] if clause.recipient else []
    parts += [when(clause.when)] if clause.when else []
    parts += [noun_phrase(clause.object, "acc", rng)] if clause.object else []
    parts += [noun_phrase(clause.subject, "acc", rng)] if clause.kind == "exist" else []
    parts += ["mit " + noun_phrase(clause.company, "dat", rng)] if clause.company else []
    parts += ["nicht"] if clause.negated else []
    parts += [place(clause.place, rng)] if clause.place else []
    parts += [choose(rng, clause.state.german)[1]] if clause.adjective else []
    return parts


def _clause(clause: Clause, rng: Rng, front_time: bool, verb_last: bool, home: str = "") -> str:
    subject = "es" if clause.kind == "exist" else noun_phrase(clause.subject, "nom", rng) + home
    finite, last = _verbs(clause, rng)
    middle = _middle(clause, rng)
    tail = [last] if last else []
    if verb_last:
        return " ".join([subject, *middle, *tail, finite])
    if front_time and clause.when:
        time = when(clause.when)
        middle.remove(time)
        return " ".join([time, finite, subject, *middle, *tail])
    return " ".join([subject, finite, *middle, *tail])


def _reason(sentence: Sentence, rng: Rng) -> str:
    past = sentence.clause.tense == "past"
    be = "war" if past else "ist"
    if sentence.reason == "rain":
        return f", weil es {'regnete' if past else 'regnet'}"
    if sentence.reason == "weather":
        return f", obwohl das Wetter schlecht {be}"
    if sentence.reason == "late":
        return f", obwohl es spät {be}"
    subject = sentence.clause.subject
    if is_plural(subject):
        pronoun, be = "sie", "waren" if past else "sind"
    elif isinstance(subject, Person):
        pronoun = "sie" if subject.female else "er"
    else:
        pronoun = {"m": "er", "f": "sie", "n": "es"}[subject.noun.german[0].gender]
    return f", weil {pronoun} {choose(rng, sentence.cause.german)[1]} {be}"


def _home(sentence: Sentence) -> str:
    if not sentence.home:
        return ""
    if not sentence.lives_there:
        return " aus " + sentence.home
    subject = sentence.clause.thing
    pronoun = DEFINITE["nom"]["p" if subject.plural else subject.noun.german[0].gender]
    return f", {pronoun} in {sentence.home} {'wohnen' if subject.plural else 'wohnt'},"


def realise(sentence: Sentence, rng: Rng) -> str:
    """Say a sentence; a time that English says last may stand first, as is usual in German."""
    front = sentence.time_first or (rng is not None and rng.random() < 0.2)
    text = _clause(sentence.clause, rng, front, sentence.speaker is not None, _home(sentence))
    if sentence.speaker:
        finite, participle = SPEECH[sentence.speech]
        said = f"{finite[is_plural(sentence.speaker)]} {participle}".strip()
        text = f"{noun_phrase(sentence.speaker, 'nom', rng)} {said}, dass {text}"
    if sentence.reason:
        text += _reason(sentence, rng)
    return text[0].upper() + text[1:] + "."
