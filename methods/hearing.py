"""The session of a Whisper: as any other, but some tokens may not begin an output."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from methods.models.whisper import WhisperStack
from methods.session import ModelSession
from methods.types import Inputs


class WhisperSession(ModelSession):
    """``prefill`` encodes the features once and caches the forced tokens but the last.

    The logits behind a row's whole prompt, which draw its first token, are minus infinity for what the checkpoint says never
    begins an output (a blank or the end of text), as in transformers.
    """

    def __init__(self, stack: WhisperStack) -> None:
        super().__init__(stack)
        self._never_first = torch.tensor(stack.begin_suppressed, dtype=torch.long, device=stack.device)
        self._last: list[int] = []

    def prefill(self, inputs: Inputs) -> list[int]:
        self._last = [len(prompt) - 1 for prompt in inputs.prompts]
        return super().prefill(inputs)

    @torch.inference_mode()
    def extend(self, tokens: Int[Tensor, "B n"]) -> Float[Tensor, "B n V"]:
        starts = self.lengths[0]
        logits = super().extend(tokens)
        if min(starts) <= max(self._last) and len(self._never_first):
            for row, (start, last) in enumerate(zip(starts, self._last, strict=True)):
                if start <= last < start + tokens.shape[1]:
                    logits[row, last - start].index_fill_(0, self._never_first, float("-inf"))
        return logits

    def select(self, rows: Sequence[int]) -> None:
        super().select(rows)
        self._last = [self._last[row] for row in rows]
