"""Prose: news articles of 6 to 12 sentences with highlights (as CNN/DailyMail) or one sentence as summary (as XSum); stories.

Stories are small, told in order, for continuation; now and then an article stands between them.
"""

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.base import Split
from tasks.world import clauses, english, facts
from tasks.world.draw import draw, pick, row_id

NUM_WORDS = range(60, 131)


@dataclass(frozen=True, slots=True)
class Story:
    """A kind of news, of ``news.json``. Templates name fields of the facts; the text says the highlights in other words."""

    leads: list[str]
    details: list[list[str]]
    highlights: list[str]
    summaries: list[str]


TEMPLATES = json.loads(Path(__file__).with_name("news.json").read_text(encoding="utf8"))
STORIES = [Story(**templates) for templates in TEMPLATES["kinds"].values()]
COMMON = TEMPLATES["common"]
TREASURES = ("a golden ring", "an old map", "a famous painting", "a silver clock", "a rare book", "a royal letter")


def draw_facts(rng: random.Random) -> dict[str, str]:
    """Draw all that a template can name; capitalised keys start a sentence."""
    expert, witness = facts.draw_character(rng), facts.draw_character(rng)
    first, second, third = rng.sample(range(len(facts.CITIES)), 3)
    goals = 2 + int(rng.random() * 4)
    values = {
        "city": facts.CITIES[first], "city2": facts.CITIES[second], "city3": facts.CITIES[third],
        "building": pick(rng, facts.BUILDINGS), "place2": pick(rng, facts.BUILDINGS), "day": facts.draw_weekday(rng),
        "day2": facts.draw_weekday(rng), "expert": expert.name, "he": expert.he, "him": expert.him, "job": expert.job,
        "witness": witness.name, "witness_job": witness.job, "some": facts.count_word(2 + int(rng.random() * 9)),
        "some2": facts.count_word(2 + int(rng.random() * 9)), "many": str(11 + int(rng.random() * 79)),
        "percent": str(51 + int(rng.random() * 30)), "money": facts.round_number(rng, 3), "visitors": facts.round_number(rng),
        "hour": str(1 + int(rng.random() * 12)), "room": pick(rng, ("kitchen", "roof", "garden", "office", "cellar")),
        "colour": pick(rng, ("red", "blue", "green", "white", "black", "yellow")), "treasure": pick(rng, TREASURES),
        "goals": facts.count_word(goals), "fewer": facts.count_word(int(rng.random() * goals)),
        "year": str(facts.draw_year(rng, 1950, 2010)), "year2": str(facts.draw_year(rng, 1950, 2010)),
        "river": pick(rng, facts.RIVERS), "feeling": pick(rng, ("happy", "sad", "tired", "proud", "strange", "terrible")),
        "rank": pick(rng, ("second", "third", "fourth", "first")),
        "weather": pick(rng, ("bad", "warm", "cold", "good", "beautiful")),
    }  # fmt: skip
    return values | {name.capitalize(): facts.sentence(values[name]) for name in ("some", "treasure", "he")}


def article(rng: random.Random) -> tuple[str, Story, dict[str, str]]:
    """Draw an article: its text, its kind, its facts."""
    story, values = pick(rng, STORIES), draw_facts(rng)
    details = [pick(rng, wordings) for wordings in story.details]
    common = [pick(rng, wordings) for wordings in COMMON]
    rng.shuffle(common)
    templates = [pick(rng, story.leads), *details]
    for extra in common[: 1 + int(rng.random() * 5)]:
        templates.insert(2 + int(rng.random() * (len(templates) - 1)), extra)
    return " ".join(_sentence(template.format_map(values)) for template in templates), story, values


def _sentence(text: str) -> str:
    return text[0] + facts.sentence(text[1:]) if text[0] == '"' else facts.sentence(text)


def _long_enough(text: str) -> bool:
    return len(text.split()) in NUM_WORDS


def _with_highlights(rng: random.Random) -> tuple[str, dict[str, str]] | None:
    text, story, values = article(rng)
    if not _long_enough(text):
        return None
    told = story.highlights if rng.random() < 0.7 else story.highlights[:2]
    return text, {"article": text, "highlights": "\n".join(line.format_map(values) for line in told)}


def _with_summary(rng: random.Random) -> tuple[str, dict[str, str]] | None:
    text, story, values = article(rng)
    if not _long_enough(text):
        return None
    return text, {"document": text, "summary": pick(rng, story.summaries).format_map(values)}


def cnndm_row(seed: int, split: Split, index: int) -> dict[str, Any]:
    """Make a row: id, article, highlights (a line each). The article decides between train and test."""
    return {"id": row_id(split, index), **draw("cnndm", seed, split, index, _with_highlights)}


def xsum_row(seed: int, split: Split, index: int) -> dict[str, Any]:
    """Make a row: id, document, summary. The document decides between train and test."""
    return {"id": row_id(split, index), **draw("xsum", seed, split, index, _with_summary)}


OPENINGS = (
    "one {time}, {n} went to the {place} in {city}.",
    "{n} was a {adj} {job} who lived in {city}.",
    "there was once a {adj} {job} whose name was {n}.",
    "on {day} {time}, {n} walked along the river {river}.",
)
FINDS = (
    "{he} found {thing} near the {place2}.",
    "behind the {place2}, {he} saw {thing}.",
    "{he} wanted to buy {thing}, but it cost {many} euros.",
    "{friend} gave {him} {thing} as a present.",
)
TURNS = (
    'then {he} met {friend}, a {fjob}. "{quote}" asked {friend}.',
    'suddenly, {friend} came in. "{quote}" {fhe} asked.',
    "but the {thing_noun} was {state}, and {n} did not know what to do.",
    "{he} showed it to {friend}, who had been a {fjob} for {some} years.",
    "it rained for {some} days, and nobody came to the {place}.",
    "{he} waited for {friend} until {hour} o'clock.",
)
ENDINGS = (
    "in the end, they went home together and were {feeling}.",
    "after that, {he} never went to the {place} again.",
    "{n} was {feeling} and told {his} {relative} about it.",
    "since that day, {n} and {friend} have been good friends.",
    "{he} still keeps the {thing_noun} in {his} {room}.",
)
QUOTES = ("what are you doing here?", "did you lose something?", "is this yours?", "where do you come from?", "can I help you?")
THINGS = ("letter", "book", "map", "clock", "lamp", "key", "bag", "coat", "box", "ring", "camera", "picture")


def _story_facts(rng: random.Random) -> dict[str, str]:
    hero, friend = facts.draw_character(rng), facts.draw_character(rng)
    while friend.first == hero.first:
        friend = facts.draw_character(rng)
    noun, looks = pick(rng, THINGS), pick(rng, ("old", "small", "red", "golden", "blue", "heavy", "strange", "beautiful"))
    return {
        "n": hero.first, "he": hero.he, "him": hero.him, "his": hero.his, "job": hero.job, "friend": friend.first,
        "fhe": friend.he, "fjob": friend.job, "city": facts.draw_city(rng), "day": facts.draw_weekday(rng),
        "time": pick(rng, ("morning", "evening", "night", "day")), "place": pick(rng, facts.BUILDINGS),
        "place2": pick(rng, facts.BUILDINGS), "adj": pick(rng, ("young", "poor", "rich", "happy", "famous", "quiet")),
        "thing": f"{'an' if looks == 'old' else 'a'} {looks} {noun}", "thing_noun": noun, "river": pick(rng, facts.RIVERS),
        "many": str(11 + int(rng.random() * 79)), "some": facts.count_word(2 + int(rng.random() * 9)),
        "hour": str(1 + int(rng.random() * 12)), "quote": facts.sentence(pick(rng, QUOTES)),
        "state": pick(rng, ("broken", "empty", "dirty", "wet", "lost")),
        "feeling": pick(rng, ("happy", "tired", "sad", "proud")),
        "relative": pick(rng, ("mother", "brother", "sister", "father")),
        "room": pick(rng, ("kitchen", "room", "garden", "office")),
    }  # fmt: skip


def _story(rng: random.Random) -> str:
    values = _story_facts(rng)
    templates = [pick(rng, OPENINGS), pick(rng, FINDS), *rng.sample(TURNS, 2 + int(rng.random() * 2)), pick(rng, ENDINGS)]
    told = [facts.sentence(template.format_map(values)) for template in templates]
    told.insert(1 + int(rng.random() * (len(told) - 1)), english.realise(clauses.draw_sentence(rng), rng))
    return " ".join(told)


def _text(rng: random.Random) -> tuple[str, str]:
    text = article(rng)[0] if rng.random() < 0.35 else _story(rng)
    return text, text


def text_row(seed: int, split: Split, index: int) -> dict[str, Any]:
    """Make a row: id, text. The text decides between train and test."""
    return {"id": row_id(split, index), "text": draw("text", seed, split, index, _text)}
