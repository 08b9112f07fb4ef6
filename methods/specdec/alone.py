"""The block drafter without a verifier: the paper's row "NAT drafter" (Table 1), whose every token stands."""

from collections.abc import Sequence

import torch

from methods.errors import InputError
from methods.sampling import Sampling, Uniforms
from methods.specdec.drafter import BlockDrafter
from methods.steps import Step, StopReason
from methods.types import Clock, Generation, Guarantee, Inputs, Outcome, Session, Stop


class DrafterAlone:
    """Draft blocks of k tokens until EOS, the length limit or the end of the network's positions; never run the target.

    k is the drafter's own where none is given, and never more.

    A step's drafts all count as accepted, as far as they are emitted, and have no target probabilities.
    """

    guarantee: Guarantee = "lossy"

    def __init__(self, drafter: BlockDrafter, block_size: int | None = None) -> None:
        self.drafter, longest = drafter, drafter.stack.block_size
        if block_size is not None and block_size < 1:
            raise InputError(f"block_size {block_size!r}: expected an integer >= 1 (the drafter's own is {longest})")
        self.block_size = longest if block_size is None else min(block_size, longest)

    @torch.inference_mode()
    def generate(
        self, target: Session, inputs: Inputs, sampling: Sampling, uniforms: Uniforms, stop: Stop, clock: Clock | None = None
    ) -> list[Generation]:
        stack = self.drafter.stack
        assert stack.start_token is not None
        assert stack.position_limit is not None
        before = clock() if clock else float("nan")
        self.drafter.begin(inputs, [stack.start_token] * inputs.batch, uniforms)
        draft_encode_s = (clock() if clock else float("nan")) - before
        budget = min(stop.max_new_tokens, stack.position_limit - 1)
        rows = [Generation([], [], "length", draft_encode_s=draft_encode_s) for _ in inputs.prompts]
        active = rows if budget > 0 else []
        while active:
            ended = self._round(active, sampling, budget, stop, clock)
            kept = [index for index, reason in enumerate(ended) if reason is None]
            if kept and len(kept) < len(active):
                self.drafter.select(kept)
            active = [active[index] for index in kept]
        return rows

    def _round(
        self, active: Sequence[Generation], sampling: Sampling, budget: int, stop: Stop, clock: Clock | None
    ) -> list[StopReason | None]:
        """Draft one block for every row; return why each row ends, None where it goes on."""
        before = clock() if clock else 0.0
        positions = [len(row.tokens) for row in active]
        counts = [min(self.block_size, budget - position) for position in positions]
        proposal = self.drafter.propose(counts, positions, sampling)
        drafted = [tokens[:count] for tokens, count in zip(proposal.tokens.tolist(), proposal.lengths, strict=True)]
        self.drafter.commit(Outcome(tuple(len(row) - 1 for row in drafted), tuple(row[-1] for row in drafted)))
        round_s = clock() - before if clock else float("nan")
        ended: list[StopReason | None] = []
        for row, tokens in zip(active, drafted, strict=True):
            emitted, reason = stop.cut(tokens, budget - len(row.tokens))
            row.add(emitted, Step(tokens, len(emitted), len(emitted), stop_reason=reason, draft_s=round_s, round_s=round_s))
            ended.append(reason)
        return ended
