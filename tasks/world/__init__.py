"""A generated world of people, places, events and objects, realised as rows with the field names of the real datasets.

Every row is a function of (seed, split, index) alone. Train and test are two halves of one space, told apart by a hash
of the content, so that no seed can bring a test row into training. Raise ``TOY_VERSION`` of ``tasks/sources/locate.py`` when
any row changes: it enters the fingerprint that caches are keyed with.
"""

import random
from functools import partial
from typing import Any

from tasks.base import RowMaker, Split
from tasks.world.clauses import draw_sentence
from tasks.world.draw import draw, row_id
from tasks.world.english import ENGLISH
from tasks.world.french import FRENCH
from tasks.world.german import GERMAN
from tasks.world.language import Language
from tasks.world.prose import cnndm_row, squad_row, text_row, xsum_row
from tasks.world.romanian import ROMANIAN
from tasks.world.speech import CONDITIONS, speech_row

LANGUAGES: dict[str, Language] = {"de": GERMAN, "fr": FRENCH, "ro": ROMANIAN}
NUM_WORDS = range(6, 17)


def wmt_row(language: str, more: int, seed: int, split: Split, index: int) -> dict[str, Any]:
    """Make a row as WMT has them, 6 to 16 English words. Canonical English (no synonyms) decides between train and test.

    ``more`` is added to the seed of test rows, so that another test set shares no row with the usual one but by chance.
    """
    other, seed = LANGUAGES[language], seed + more if split == "test" else seed

    def make(rng: random.Random) -> tuple[str, dict[str, str]] | None:
        sentence = draw_sentence(rng)
        key = ENGLISH.realise(sentence, None)
        if len(key.split()) not in NUM_WORDS:
            return None
        return key, {"en": ENGLISH.realise(sentence, rng), language: other.realise(sentence, rng)}

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


TEST_SEEDS = {"wmt": 0, "wmt13": 2013, "multi30k": 2016}
TOY_ROWS: dict[str, RowMaker] = {
    "squad": squad_row,
    "cnndm": cnndm_row,
    "xsum": xsum_row,
    "text": text_row,
    "conversations": dialogue_row,
    **{f"{tests}-{one}": partial(wmt_row, one, more) for tests, more in TEST_SEEDS.items() for one in LANGUAGES},
    **{name: partial(speech_row, name) for name in CONDITIONS},
}
