"""English prose: news of 6 to 12 sentences with highlights (rows as CNN/DailyMail has them) or one sentence as summary (XSum),
small stories told in order, and passages of an encyclopaedia with a question that a span of the passage answers (SQuAD).

``prose.json`` holds the templates and says what is drawn for the names in them.
"""

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.base import Split
from tasks.world import clauses
from tasks.world.draw import draw, pick, row_id
from tasks.world.english import ENGLISH
from tasks.world.lexicon import CITIES, FAMILY_NAMES, FEMALE_NAMES, MALE_NAMES

NUM_WORDS = range(60, 131)
ANSWER_OPEN, ANSWER_CLOSE = "\x02", "\x03"
DATA = json.loads(Path(__file__).with_name("prose.json").read_text(encoding="utf8"))
NEWS, STORY = DATA["news"], DATA["story"]
# Kinds of news: wordings of the first sentence and of each detail, highlights and summaries that say the same in other words.
KINDS = list(NEWS["kinds"].values())
# Subjects: a title and facts, each a sentence in some wordings with ``{answer}`` once, and the questions that it answers.
SUBJECTS = list(DATA["passages"].values())
LISTS = DATA["lists"] | {"cities": CITIES, "weekdays": ENGLISH.words["weekdays"], "months": ENGLISH.words["months"]}
Values = dict[str, str]


def draw_person(rng: random.Random, who: str) -> Values:
    """Draw a person: the full name under ``who``; parts of it, pronouns and job under names that begin with ``who``."""
    female = rng.random() < 0.5
    first, family = pick(rng, FEMALE_NAMES if female else MALE_NAMES), pick(rng, FAMILY_NAMES)
    he, his, him = ("she", "her", "her") if female else ("he", "his", "him")
    more = {"first": first, "family": family, "he": he, "his": his, "him": him, "job": pick(rng, LISTS["jobs"])}
    return {who: f"{first} {family}"} | {f"{who}_{name}": value for name, value in more.items()}


def draw_values(rng: random.Random, draws: Mapping[str, Any]) -> Values:
    """Draw a value for each name, in order.

    A list, or the name of one of ``LISTS``, gives one of its entries, "person" all of a person. An object gives a number:
    ``number`` one of so many from the first, counted from the value of ``after`` if there is one; ``words`` the same, spelled
    out; ``below`` one that is less than another name's; ``round`` one such as 700 or 40,000, of at least so many zeros.
    """
    values: Values = {}
    for name, what in draws.items():
        if what == "person":
            values |= draw_person(rng, name)
        else:
            listed = LISTS[what] if isinstance(what, str) else what
            values[name] = _number(rng, what, values) if isinstance(what, dict) else pick(rng, listed)
    return values


def _number(rng: random.Random, what: Mapping[str, Any], values: Values) -> str:
    if "round" in what:
        digits, zeros = 1 + int(rng.random() * 9), what["round"] + int(rng.random() * 4)
        return f"{digits * 10**zeros:,}"
    if "below" in what:
        return ENGLISH.number(int(rng.random() * ENGLISH.words["numbers"].index(values[what["below"]])))
    first, count = what["words"] if "words" in what else what["number"]
    drawn = first + int(rng.random() * count)
    return ENGLISH.number(drawn) if "words" in what else str(int(values[what["after"]]) + drawn if "after" in what else drawn)


def sentence(text: str) -> str:
    """Begin a sentence with a capital letter, behind a quotation mark or the mark of an answer too."""
    start = 1 if text[0] in ('"', ANSWER_OPEN) else 0
    return text[:start] + text[start].upper() + text[start + 1 :]


def article(rng: random.Random) -> tuple[str, dict[str, Any], Values]:
    """Draw an article: its text, its kind, its values; a capitalised name starts a sentence."""
    kind = pick(rng, KINDS)
    values = draw_person(rng, "expert") | draw_person(rng, "witness")
    values |= zip(("city", "city2", "city3"), rng.sample(CITIES, 3), strict=True)
    values |= draw_values(rng, NEWS["draws"])
    values |= {name.capitalize(): sentence(values[name]) for name in ("some", "treasure", "expert_he")}
    details = [pick(rng, wordings) for wordings in kind["details"]]
    common = [pick(rng, wordings) for wordings in NEWS["common"]]
    rng.shuffle(common)
    templates = [pick(rng, kind["leads"]), *details]
    for extra in common[: 1 + int(rng.random() * 5)]:
        templates.insert(2 + int(rng.random() * (len(templates) - 1)), extra)
    return " ".join(sentence(template.format_map(values)) for template in templates), kind, values


def _with_highlights(rng: random.Random) -> tuple[str, Values] | None:
    text, kind, values = article(rng)
    if len(text.split()) not in NUM_WORDS:
        return None
    told = kind["highlights"] if rng.random() < 0.7 else kind["highlights"][:2]
    return text, {"article": text, "highlights": "\n".join(line.format_map(values) for line in told)}


def _with_summary(rng: random.Random) -> tuple[str, Values] | None:
    text, kind, values = article(rng)
    if len(text.split()) not in NUM_WORDS:
        return None
    return text, {"document": text, "summary": pick(rng, kind["summaries"]).format_map(values)}


def cnndm_row(seed: int, split: Split, index: int) -> dict[str, Any]:
    """Make a row: id, article, highlights (a line each). The article decides between train and test."""
    return {"id": row_id(split, index), **draw("cnndm", seed, split, index, _with_highlights)}


def xsum_row(seed: int, split: Split, index: int) -> dict[str, Any]:
    """Make a row: id, document, summary. The document decides between train and test."""
    return {"id": row_id(split, index), **draw("xsum", seed, split, index, _with_summary)}


def _story(rng: random.Random) -> str:
    values = draw_person(rng, "hero") | draw_person(rng, "friend")
    while values["friend_first"] == values["hero_first"]:
        values |= draw_person(rng, "friend")
    values |= draw_values(rng, STORY["draws"])
    templates = [pick(rng, STORY["openings"]), pick(rng, STORY["finds"])]
    templates += rng.sample(STORY["turns"], 2 + int(rng.random() * 2))
    templates.append(pick(rng, STORY["endings"]))
    told = [sentence(template.format_map(values)) for template in templates]
    told.insert(1 + int(rng.random() * (len(told) - 1)), ENGLISH.realise(clauses.draw_sentence(rng), rng))
    return " ".join(told)


def _text(rng: random.Random) -> tuple[str, str]:
    text = article(rng)[0] if rng.random() < 0.35 else _story(rng)
    return text, text


def text_row(seed: int, split: Split, index: int) -> dict[str, Any]:
    """Make a row: id, text, which is a story or now and then an article. The text decides between train and test."""
    return {"id": row_id(split, index), "text": draw("text", seed, split, index, _text)}


def _passage(rng: random.Random) -> tuple[str, dict[str, Any]]:
    subject = pick(rng, SUBJECTS)
    values, others = draw_values(rng, subject["draws"]), subject["facts"][1:]
    rng.shuffle(others)
    told = [subject["facts"][0], *others[: 3 + int(rng.random() * 3)]]
    asked = pick(rng, told)
    sentences = []
    for fact in told:
        answer = fact["answer"].format_map(values)
        marked = f"{ANSWER_OPEN}{answer}{ANSWER_CLOSE}" if fact is asked else answer
        sentences.append(sentence(pick(rng, fact["wordings"]).format_map(values | {"answer": marked})))
    text = " ".join(sentences)
    start, end = text.index(ANSWER_OPEN), text.index(ANSWER_CLOSE) - 1
    context = text.replace(ANSWER_OPEN, "").replace(ANSWER_CLOSE, "")
    texts, starts = [context[start:end]], [start]
    if "shorter" in asked:
        texts.append(asked["shorter"].format_map(values))
        starts.append(context.index(texts[1], start, end))
    question = pick(rng, asked["questions"]).format_map(values)
    answers = {"text": texts, "answer_start": starts}
    return context, {
        "title": subject["title"].format_map(values), "context": context, "question": question, "answers": answers,
    }  # fmt: skip


def squad_row(seed: int, split: Split, index: int) -> dict[str, Any]:
    """Make a row: id, title, context, question, answers {text, answer_start}. The context decides between train and test."""
    return {"id": row_id(split, index), **draw("squad", seed, split, index, _passage)}
