"""Sentence pairs, one drawn sentence in English and in German, French or Romanian; and dialogues that ask for one."""

import random
from types import ModuleType
from typing import Any

from tasks.base import Split
from tasks.world import english, french, german, romanian
from tasks.world.clauses import draw_sentence
from tasks.world.draw import draw, row_id
from tasks.world.passages import squad_row

LANGUAGES: dict[str, ModuleType] = {"de": german, "fr": french, "ro": romanian}
NUM_WORDS = range(6, 17)


def wmt_row(language: str, more: int, seed: int, split: Split, index: int) -> dict[str, Any]:
    """Make a row as WMT has them, 6 to 16 English words. Canonical English (no synonyms) decides between train and test.

    ``more`` is added to the seed of test rows, so that another test set shares no row with the usual one but by chance.
    """
    other, seed = LANGUAGES[language], seed + more if split == "test" else seed

    def make(rng: random.Random) -> tuple[str, dict[str, str]] | None:
        sentence = draw_sentence(rng)
        key = english.realise(sentence, None)
        if len(key.split()) not in NUM_WORDS:
            return None
        return key, {"en": english.realise(sentence, rng), language: other.realise(sentence, rng)}

    return {"id": row_id(split, index), "translation": draw("wmt", seed, split, index, make)}


def dialogue_row(seed: int, split: Split, index: int) -> dict[str, Any]:
    """Make a dialogue: a question about a passage of the generated world, then a sentence to translate."""
    asked, pair = squad_row(seed, split, index), wmt_row("fr", 0, seed, split, index)["translation"]
    turns = (
        ("human", f"{asked['context']} {asked['question']}"),
        ("gpt", asked["answers"]["text"][0]),
        ("human", f"Translate into French: {pair['en']}"),
        ("gpt", pair["fr"]),
    )
    return {"id": asked["id"], "conversations": [{"from": speaker, "value": text} for speaker, text in turns]}
