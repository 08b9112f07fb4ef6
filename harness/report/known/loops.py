"""What transformers' own loops are asked for, and whether each row of a batch is its own text.

Not what they answer: that may change with their version. A pinned comparison has their plain sampling alone.
"""

from collections.abc import Sequence
from functools import partial

import torch

from harness.core.experiment import MethodSpec
from harness.report.known.inputs import loaded
from harness.report.known.rules import SAMPLINGS
from harness.report.known.values import hashed
from harness.report.pinned import drafted_by
from harness.run.peers import peer_method
from methods import transformers_assisted, transformers_generate
from methods.models.base import Stack
from methods.sampling import Uniforms
from methods.session import ModelSession
from methods.transformers_generate import TransformersGenerate
from methods.types import Generation, Inputs, Stop

PROMPTS, SEEDS, NUM_TOKENS = ((5, 6, 7), (8, 9, 10, 11), (12, 13)), (1, 2, 3), 12
PEERS = ("generate", "assistant", "prompt-lookup", "early-exit:3")
SCHEDULES = ("constant", "heuristic")
ASSISTED = (  # behind two tokens of a prompt: the text with its drafts that a round looked at, and what it emitted
    ((1, 2), (5, 6, 7), (5, 6, 7, 8)),
    ((1, 2, 5, 6, 7, 8), (3, 4), (9,)),
    ((1, 2, 5, 6, 7, 8, 9), (), (4,)),
    ((1, 2, 5, 6, 7, 8, 9, 4), (6, 2, 1), (6, 2)),  # cut by the limit, or by an end
)


def _settled() -> dict[str, str]:
    """Return settings as hashes, and whether rows that are decoded together are as each is alone."""
    found = {
        f"transformers at {label}": hashed(sorted(transformers_generate._drawn(one).items()))
        for label, one in SAMPLINGS.items()
    }
    for schedule in SCHEDULES:
        found[f"transformers' assistant, {schedule}"] = hashed(sorted(transformers_assisted._how_many(3, schedule).items()))
    seen = [(len(text), torch.tensor([[*text, *drafts]])) for text, drafts, _ in ASSISTED]
    emitted = [token for _, _, tokens in ASSISTED for token in tokens]
    steps = transformers_assisted.rounds(seen, 2, emitted)
    found["transformers' assisted rounds"] = hashed([(one.drafted, one.num_accepted, one.emitted) for one in steps])
    ours = MethodSpec.of("speculative", drafter=drafted_by("llama-draft"), gamma=2, schedule="heuristic")
    beams = MethodSpec.of("speculative-beam", drafter=drafted_by("llama-draft"), num_beams=3)
    for name in PEERS:
        found[f"the peer {name}"] = hashed((_asked(name, ours), _asked(name, beams)))
    stack, lookup = loaded("llama-target").stack, partial(transformers_assisted.lend_lookup, gamma=3)
    for name, label, assistance in (("plain", "greedy", None), ("prompt lookup", "T 1", lookup)):
        method = TransformersGenerate(assistance=assistance)
        together = _texts(stack, method, label, range(len(PROMPTS)))
        alone = [text for row in range(len(PROMPTS)) for text in _texts(stack, method, label, range(row, row + 1))]
        found[f"transformers' rows are their own, {name} at {label}"] = str(together == alone)
    far = TransformersGenerate(assistance=lookup)
    texts = [_texts(stack, far, "T 1", range(1), [seed]) for seed in (1, 1 + 2**8, 1 + 2**16, 1 + 2**31)]
    found["transformers' numbers of far seeds are others"] = str(all(one != texts[0] for one in texts[1:]))
    return found


def _asked(name: str, ours: MethodSpec) -> tuple[str, dict[str, object], str, int]:
    """Return what a peer of a method is asked for: how many tokens to draft, by which schedule and drafter, and its beams."""
    peer = peer_method(name, ours, ours.drafter)
    return peer.name, dict(sorted(peer.values.items())), "" if peer.drafter is None else peer.drafter.kind, peer.num_beams


def _texts(
    stack: Stack, method: TransformersGenerate, label: str, rows: range, seeds: Sequence[int] = SEEDS
) -> list[list[int]]:
    inputs, uniforms = Inputs(tuple(PROMPTS[row] for row in rows)), Uniforms([seeds[row] for row in rows], NUM_TOKENS)
    with torch.inference_mode():
        made: list[Generation] = method.generate(
            ModelSession(stack), inputs, SAMPLINGS[label], uniforms, Stop(max_new_tokens=NUM_TOKENS)
        )
    return [one.tokens for one in made]


GROUPS = (_settled,)
