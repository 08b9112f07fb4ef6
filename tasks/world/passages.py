"""Passages of an encyclopaedia with a question each; the answer is a span of the passage (rows as SQuAD has them)."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tasks.base import Split
from tasks.world import facts
from tasks.world.draw import draw, pick, row_id

ANSWER_OPEN, ANSWER_CLOSE = "\x02", "\x03"


@dataclass(frozen=True, slots=True)
class Fact:
    """A sentence in some wordings, each with ``{answer}`` once, and the questions that it answers."""

    wordings: tuple[str, ...]
    questions: tuple[str, ...]
    answer: str
    shorter: str = ""


def _life(rng: random.Random) -> tuple[str, list[Fact]]:
    person, friend = facts.draw_character(rng), facts.draw_character(rng)
    born, home, new_home = facts.draw_year(rng, 1800, 1950), facts.draw_city(rng), facts.draw_city(rng)
    n, he, his, him = person.name, person.he, person.his, person.him
    kind, subject = pick(rng, WORKS)
    date, year = facts.draw_date(rng), born + 20 + int(rng.random() * 40)
    moved, prize = born + 18 + int(rng.random() * 10), pick(rng, PRIZES)
    born_on = f"{date} {born}"
    return n, [
        Fact(
            (f"{n} was a {person.job} who was born in {{answer}}.", f"{n} , a {person.job} , was born in {{answer}}."),
            (f"Where was {n} born?", f"In which city was {n} born?"),
            home,
        ),
        Fact(
            (f"{he} was born on {{answer}}.", f"the date of {his} birth was {{answer}}."),
            (f"When was {n} born?",),
            born_on,
            str(born),
        ),
        Fact(
            (f"in {{answer}} , {he} moved to {new_home}.", f"{he} left for {new_home} in {{answer}}."),
            (f"When did {n} move to {new_home}?", f"In what year did {n} go to {new_home}?"),
            str(moved),
        ),
        Fact(
            (
                f"{his} best friend was {{answer}} , a {friend.job}.",
                f"{he} often worked with {{answer}} , who was a {friend.job}.",
            ),
            (f"Who was a friend of {n}?", f"Who worked with {n}?"),
            friend.name,
            friend.family,
        ),
        Fact(
            (f"{he} wrote {{answer}} in {year}.", f"{his} most important work , {{answer}} , appeared in {year}."),
            (f"What did {n} write in {year}?", f"What was the most important work of {n}?"),
            f"a {kind} about {subject}",
            f"{kind} about {subject}",
        ),
        Fact(
            (f"{he} won {{answer}} for {his} work.", f"the city gave {him} {{answer}}."),
            (f"Which prize did {n} win?", f"What did {n} win?"),
            f"the {prize} prize",
            f"{prize} prize",
        ),
    ]


WORKS = tuple((kind, subject) for kind in ("book", "poem", "story", "play", "report") for subject in (
    "the sea", "the old forest", "the war", "the stars", "the winter", "the king", "the birds", "a long journey"))  # fmt: skip
PRIZES = ("golden", "silver", "royal", "national", "summer", "science", "peace")


def _building(rng: random.Random) -> tuple[str, list[Fact]]:
    city, builder, river = facts.draw_city(rng), facts.draw_character(rng), pick(rng, facts.RIVERS)
    name = f"{pick(rng, ('old', 'new', 'white', 'royal', 'great', 'red'))} {pick(rng, facts.BUILDINGS)} of {city}"
    year, visitors, rooms = facts.draw_year(rng), facts.round_number(rng), 11 + int(rng.random() * 89)
    collection, metres = pick(rng, COLLECTIONS), 11 + int(rng.random() * 89)
    reason, material = pick(rng, DAMAGES), pick(rng, ("stone", "wood", "brick", "glass", "marble"))
    repaired = year + 5 + int(rng.random() * 60)
    return f"the {name}", [
        Fact(
            (f"the {name} was built by {{answer}} in {year}.", f"{{answer}} designed the {name} in {year}."),
            (f"Who built the {name}?", f"Who designed the {name}?"),
            builder.name,
            builder.family,
        ),
        Fact(
            ("it stands on the river {answer}.", "it is near the river {answer}."),
            (f"On which river does the {name} stand?",),
            river,
        ),
        Fact(
            ("every year , {answer} people visit it.", "it has {answer} visitors every year."),
            (f"How many people visit the {name} every year?", f"How many visitors does the {name} have?"),
            visitors,
        ),
        Fact(
            (f"it has {rooms} rooms and is famous for its {{answer}}.", f"in its {rooms} rooms , one can see {{answer}}."),
            (f"What can one see in the {name}?", f"What is the {name} famous for?"),
            collection,
        ),
        Fact(
            ("its tower is {answer} high.", "the tower has a height of {answer}."),
            (f"How high is the tower of the {name}?",),
            f"{metres} metres",
        ),
        Fact(
            (f"in {repaired} , it was repaired after {{answer}}.", f"{{answer}} destroyed the roof in {repaired}."),
            (f"What destroyed the roof of the {name}?", f"After what was the {name} repaired?"),
            reason,
        ),
        Fact(
            ("the walls are made of {answer}.", "it was built of {answer}."),
            (f"What are the walls of the {name} made of?",),
            material,
        ),
    ]


COLLECTIONS = (
    "old maps",
    "blue lamps",
    "paintings",
    "golden clocks",
    "letters",
    "ships",
    "white horses",
    "rare books",
    "rings",
)
DAMAGES = ("a fire", "a storm", "a flood", "the war", "an earthquake")


def _city(rng: random.Random) -> tuple[str, list[Fact]]:
    city, mayor, river = facts.draw_city(rng), facts.draw_character(rng), pick(rng, facts.RIVERS)
    people, founded, product = facts.round_number(rng, 4), facts.draw_year(rng, 900, 1700), pick(rng, PRODUCTS)
    festival, month, other = pick(rng, FESTIVALS), pick(rng, facts.MONTHS), facts.draw_city(rng)
    return city, [
        Fact(
            (f"{city} is a city with {{answer}} people.", f"about {{answer}} people live in {city}."),
            (f"How many people live in {city}?",),
            people,
        ),
        Fact(("it was founded in {answer}.", "its history began in {answer}."), (f"When was {city} founded?",), str(founded)),
        Fact(
            ("the river {answer} runs through the city.", "it lies on the {answer} , a long river."),
            (f"Which river runs through {city}?",),
            river,
        ),
        Fact(
            (f"its mayor is {{answer}} , a former {mayor.job}.", f"{{answer}} , a {mayor.job} , became mayor last year."),
            (f"Who is the mayor of {city}?",),
            mayor.name,
            mayor.family,
        ),
        Fact(
            ("many families there sell {answer}.", "the city is famous for its {answer}."),
            (f"What is {city} famous for?", f"What do many families in {city} sell?"),
            product,
        ),
        Fact(
            (
                f"the festival of {festival} takes place in {{answer}}.",
                f"every {{answer}} , there is a festival of {festival}.",
            ),
            (
                f"When does the festival of {festival} take place in {city}?",
                f"When is there a festival of {festival} in {city}?",
            ),
            month,
        ),
        Fact(
            ("a new road to {answer} was opened last week.", "the next large city is {answer}."),
            (f"What is the next city after {city}?",),
            other,
        ),
    ]


PRODUCTS = ("cheese", "bread", "apples", "fish", "clocks", "boats", "umbrellas", "rings", "cakes", "coats", "bicycles")
FESTIVALS = ("music", "light", "flowers", "books", "wine", "theatre")
SUBJECTS: tuple[Callable[[random.Random], tuple[str, list[Fact]]], ...] = (_life, _building, _city)


def _passage(rng: random.Random) -> tuple[str, dict[str, Any]]:
    title, all_facts = pick(rng, SUBJECTS)(rng)
    others = all_facts[1:]
    rng.shuffle(others)
    told = [all_facts[0], *others[: 3 + int(rng.random() * 3)]]
    asked = pick(rng, told)
    sentences = []
    for fact in told:
        answer = f"{ANSWER_OPEN}{fact.answer}{ANSWER_CLOSE}" if fact is asked else fact.answer
        text = pick(rng, fact.wordings).replace(" ,", ",").replace("{answer}", answer)
        sentences.append(ANSWER_OPEN + text[1:2].upper() + text[2:] if text[0] == ANSWER_OPEN else facts.sentence(text))
    marked = " ".join(sentences)
    start, end = marked.index(ANSWER_OPEN), marked.index(ANSWER_CLOSE) - 1
    context = marked.replace(ANSWER_OPEN, "").replace(ANSWER_CLOSE, "")
    texts, starts = [context[start:end]], [start]
    if asked.shorter:
        texts.append(asked.shorter)
        starts.append(context.index(asked.shorter, start, end))
    answers = {"text": texts, "answer_start": starts}
    row = {"title": title, "context": context, "question": pick(rng, asked.questions), "answers": answers}
    return context, row


def squad_row(seed: int, split: Split, index: int) -> dict[str, Any]:
    """Make a row: id, title, context, question, answers {text, answer_start}. The context decides between train and test."""
    return {"id": row_id(split, index), **draw("squad", seed, split, index, _passage)}
