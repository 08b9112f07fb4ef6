"""News: articles of 6 to 12 sentences with highlights (as CNN/DailyMail) or with one sentence that says all (as XSum)."""

import random
from dataclasses import dataclass
from typing import Any

from tasks.base import Split
from tasks.world import facts
from tasks.world.draw import draw, pick, row_id

NUM_WORDS = range(60, 131)


@dataclass(frozen=True, slots=True)
class Story:
    """A kind of news. Templates name fields of the facts; the lead and each highlight are said differently in the text."""

    leads: tuple[str, ...]
    details: tuple[tuple[str, ...], ...]
    highlights: tuple[str, ...]
    summaries: tuple[str, ...]


FIRE = Story(
    (
        "a fire destroyed the {building} in {city} on {day} night.",
        "the {building} of {city} was destroyed by a fire on {day}.",
    ),
    (
        ("{some} people were hurt, police said.", "police said that {some} people were taken to hospital."),
        ("the fire began in the {room} at {hour} o'clock.", "it started shortly after {hour} o'clock in the {room}."),
        ("more than {many} firefighters worked for {some2} hours.", "it took {many} firefighters {some2} hours to stop it."),
        ("the damage is about {money} euros.", "experts think that the damage will cost {money} euros."),
    ),
    ("Fire destroys {building} in {city}.", "{Some} people are hurt.", "Damage is about {money} euros."),
    (
        "{Some} people were hurt when a fire destroyed the {building} in {city}.",
        "A fire in {city} has destroyed a {building} and hurt {some} people.",
    ),
)
THEFT = Story(
    (
        "thieves stole {treasure} from the {building} in {city} on {day}.",
        "{treasure} was stolen from a {building} in {city} on {day} night.",
    ),
    (
        ("it is worth {money} euros.", "experts say that it is worth about {money} euros."),
        (
            "{some} men came through the {room} at {hour} o'clock.",
            "police think that {some} people entered through the {room}.",
        ),
        ("the thieves left in a {colour} car.", "a {colour} car was seen near the {building}."),
        ("police are now looking for a man of about {many} years.", "a man of {many} years was arrested in {city2} on {day2}."),
    ),
    ("Thieves steal {treasure} from {building} in {city}.", "It is worth {money} euros.", "Police look for a {colour} car."),
    (
        "Police in {city} are looking for thieves who stole {treasure} from a {building}.",
        "{Treasure} worth {money} euros has been stolen in {city}.",
    ),
)
OPENING = Story(
    (
        "a new {building} was opened in {city} on {day}.",
        "{city} has a new {building} after the mayor opened it on {day}.",
    ),
    (
        ("it cost {money} euros and has {many} rooms.", "the house with {many} rooms cost {money} euros."),
        ("it was designed by {expert}, who lives in {city2}.", "{expert} from {city2} made the plans."),
        ("the work took {some} years.", "the builders needed {some} years."),
        ("more than {visitors} people came to the opening.", "about {visitors} visitors are expected every year."),
    ),
    ("New {building} opens in {city}.", "It cost {money} euros.", "The work took {some} years."),
    (
        "A new {building} that cost {money} euros has been opened in {city}.",
        "After {some} years of work, {city} has opened its new {building}.",
    ),
)
MATCH = Story(
    (
        "{city} beat {city2} {goals} to {fewer} in the final on {day}.",
        "{city} won the cup on {day} with {goals} goals against {fewer} for {city2}.",
    ),
    (
        ("{expert} scored the first goal after {many} minutes.", "the first goal came from {expert} in minute {many}."),
        ("more than {visitors} people watched the match.", "the match was seen by {visitors} visitors."),
        ("{city2} had lost only {some} matches this year.", "for {city2}, it was the end of {some} good weeks."),
        ("the cup was last won by {city} in {year}.", "{city} had not won the cup since {year}."),
    ),
    ("{city} beats {city2} {goals} to {fewer}.", "{expert} scores first goal.", "It is the first cup since {year}."),
    (
        "{city} have won the cup for the first time since {year} after beating {city2}.",
        "{expert} scored as {city} beat {city2} {goals} to {fewer}.",
    ),
)
STORM = Story(
    (
        "a heavy storm hit {city} on {day}.",
        "{city} was hit by a strong storm on {day} night.",
    ),
    (
        ("{visitors} houses were without light for {some} days.", "for {some} days, {visitors} families had no light."),
        ("the roof of the {building} was damaged.", "trees fell on the {building} and on {some2} cars."),
        ("trains between {city} and {city2} were stopped.", "the road to {city2} was closed."),
        ("the river {river} rose by {many} centimetres.", "the water of the {river} rose by {many} centimetres."),
    ),
    ("Storm hits {city}.", "{visitors} houses are without light.", "Road to {city2} is closed."),
    (
        "A storm has left {visitors} houses in {city} without light.",
        "Trains between {city} and {city2} were stopped after a heavy storm.",
    ),
)
ELECTION = Story(
    (
        "{expert} is the new mayor of {city}.",
        "the people of {city} chose {expert} as their mayor on {day}.",
    ),
    (
        ("{he} won {percent} percent of the votes.", "{percent} percent of the voters were for {him}."),
        ("the former {job} wants to build {some} new schools.", "{he} promised {some} new schools and a {building}."),
        ("{witness}, who was mayor since {year}, lost the election.", "{he} follows {witness}, who was mayor since {year}."),
        ("{visitors} people went to the vote.", "{many} percent of the people stayed at home."),
    ),
    ("{expert} is new mayor of {city}.", "{He} wins {percent} percent of votes.", "{witness} loses after long time."),
    (
        "{expert} has won the election in {city} with {percent} percent of the votes.",
        "The people of {city} have chosen the {job} {expert} as their new mayor.",
    ),
)
STORIES = (FIRE, THEFT, OPENING, MATCH, STORM, ELECTION)
COMMON = (
    (
        '"it was a {feeling} day for all of us," said {witness}, a {witness_job}.',
        '"we are {feeling}," {witness} told reporters.',
    ),
    (
        "{witness}, who lives near the {place2}, saw everything.",
        "{witness}, a {witness_job} from {city2}, was there with {some2} friends.",
    ),
    ("the mayor will speak about it on {day2}.", "the city wants to give more information on {day2}."),
    ("in {year2}, something similar happened in {city3}.", "it is the {rank} time in {some2} years."),
    ('"nobody knows what will happen next," the mayor said.', '"we have to wait," said a speaker of the city.'),
    ("the weather was {weather} on that day.", "the streets were full because the weather was {weather}."),
)
TREASURES = ("a golden ring", "an old map", "a famous painting", "a silver clock", "a rare book", "a royal letter")


def draw_facts(rng: random.Random) -> dict[str, str]:
    """Everything a template can name; capitalised keys start a sentence."""
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
    """(text, its kind, its facts)."""
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
    """id, article, highlights (a line each); the article decides between train and test."""
    return {"id": row_id(split, index), **draw("cnndm", seed, split, index, _with_highlights)}


def xsum_row(seed: int, split: Split, index: int) -> dict[str, Any]:
    """id, document, summary; the document decides between train and test."""
    return {"id": row_id(split, index), **draw("xsum", seed, split, index, _with_summary)}
