"""A generated world of people, places, events and objects, realised as rows with the field names of the real datasets.

Every row is a function of (seed, split, index) alone. Train and test are two halves of one space, told apart by a hash
of the content, so that no seed can bring a test row into training. Raise ``GENERATOR_VERSION`` when any row changes:
it enters the fingerprint that caches are keyed with.
"""

from tasks.world.draw import GENERATOR_VERSION
from tasks.world.news import cnndm_row, xsum_row
from tasks.world.passages import squad_row
from tasks.world.speech import speech_row
from tasks.world.stories import text_row
from tasks.world.translation import wmt_row

__all__ = ["GENERATOR_VERSION", "cnndm_row", "speech_row", "squad_row", "text_row", "wmt_row", "xsum_row"]
