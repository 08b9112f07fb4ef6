"""Replays an output: its text is read by another path, and every decision of it must be what that gives.

The text is read at once by transformers' own forward pass, which shares nothing with our sessions but the weights, and its
logits become laws by transformers' own processors (reading.py). Greedy: every token must be the target's first choice behind
the text before it, and every draft of a model that model's. Sampled: the recorded probabilities of drafts, every acceptance
and every drawn token must be what the laws and the random numbers of the output's seed give (decisions.py, blocks.py), of
lossy rules what they say of both (lossy.py, sigmoids.py). The candidates of a pipeline must be the likeliest tokens of their
early layer (candidates.py), and a beam search is made once more (beams.py). What is farther from its border than rounding can
move it is a fault. So is, of any method, a text that does not end where a stopping token or its limit ends it. No other arm is
needed, so what all arms have wrong alike is found too. Each file imports only from those before it: reading, drafts, decisions,
then beams, blocks, candidates, lossy and sigmoids, outputs.
"""

from harness.run.replay.decisions import draw_off
from harness.run.replay.outputs import is_replayed, replay, replay_record, with_end
from harness.run.replay.reading import Reader, Reading, law_of

__all__ = ["Reader", "Reading", "draw_off", "is_replayed", "law_of", "replay", "replay_record", "with_end"]
