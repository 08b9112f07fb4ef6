"""Sentence pairs: one drawn sentence, realised in English and in German, French or Romanian."""

import random
from types import ModuleType
from typing import Any

from tasks.base import Split
from tasks.world import english, french, german, romanian
from tasks.world.clauses import draw_sentence
from tasks.world.draw import draw, row_id

LANGUAGES: dict[str, ModuleType] = {"de": german, "fr": french, "ro": romanian}
NUM_WORDS = range(6, 17)


def wmt_row(language: str, seed: int, split: Split, index: int) -> dict[str, Any]:
    """A row as WMT has them, 6 to 16 English words. Canonical English (no synonyms) decides between train and test."""
    other = LANGUAGES[language]

    def make(rng: random.Random) -> tuple[str, dict[str, str]] | None:
        sentence = draw_sentence(rng)
        key = english.realise(sentence, None)
        if len(key.split()) not in NUM_WORDS:
            return None
        return key, {"en": english.realise(sentence, rng), language: other.realise(sentence, rng)}

    return {"id": row_id(split, index), "translation": draw("wmt", seed, split, index, make)}
