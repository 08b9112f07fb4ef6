"""A generated world of people, places, events and objects, realised as rows with the field names of the real datasets.

Every row is a function of (seed, split, index) alone. Train and test are two halves of one space, told apart by a hash
of the content, so that no seed can bring a test row into training. Raise ``TOY_VERSION`` of ``tasks/sources/locate.py`` when
any row changes: it enters the fingerprint that caches are keyed with.
"""

from functools import partial

from tasks.base import RowMaker
from tasks.world.pairs import LANGUAGES, dialogue_row, wmt_row
from tasks.world.passages import squad_row
from tasks.world.prose import cnndm_row, text_row, xsum_row
from tasks.world.speech import CONDITIONS, speech_row

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
