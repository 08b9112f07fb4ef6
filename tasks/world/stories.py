"""Plain prose for continuation: small stories told in order, and now and then a news article."""

import random
from typing import Any

from tasks.base import Split
from tasks.world import clauses, english, facts
from tasks.world.draw import draw, pick, row_id
from tasks.world.news import article

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
    """id, text; the text decides between train and test."""
    return {"id": row_id(split, index), "text": draw("text", seed, split, index, _text)}
