"""The target with rounded weights as its own draft, which goes on from what the target has read."""

from copy import copy

import torch

from methods.errors import InputError
from methods.models.base import Stack
from methods.session import ModelSession
from methods.speculative.model import ModelDrafter
from methods.types import Inputs, Session


class ContinuingSession(ModelSession):
    """A session whose prompts and sources another model reads; its own passes go on behind that model's keys and values.

    These are the same whether a session of the reader is lent, or reads the inputs once more for this one.
    """

    def __init__(self, stack: Stack, reader: Stack) -> None:
        """InputError for two models that do not cache alike."""
        ours, readers = (
            (type(one), one.num_layers, one.num_kv_heads, one.head_dim, one.dtype, one.device, bool(one.parts))
            for one in (stack, reader)
        )
        if ours != readers or stack.parts:
            raise InputError("drafter rounded: expected the target's own layers, with rounded weights, on one device")
        super().__init__(stack)
        self.reader = reader
        self._lent: ModelSession | None = None

    def lend(self, session: Session) -> None:
        """Keep a session of the reader, which has just read the inputs of the next ``prefill`` and nothing behind them."""
        self._lent = session if isinstance(session, ModelSession) and session.stack is self.reader else None

    @torch.inference_mode()
    def prefill(self, inputs: Inputs) -> list[int]:
        """Begin behind what the reader makes of the inputs, and return every row's pending token; errors are its own."""
        read, self._lent = self._lent, None
        if read is None:
            read = ModelSession(self.reader)
            read.prefill(inputs)
        if self.stack.compiled is not None:
            self.stack.compiled.follow()
        self._cache, self.lengths, self._prompt_lengths = read._cache.clone(), list(read.lengths), list(read._prompt_lengths)
        self._source = copy(read._source)
        return self.stack.pending(inputs.prompts)


class RoundedDrafter(ModelDrafter):
    """Self-speculation by rounding: the target drafts for itself, with narrower weights, and reads no prompt for that.

    As QuantSpec (Tiwari et al. 2025), whose draft has 4-bit weights and a 4-bit cache. Differs from it: the cache is in full
    precision, and what stands is not copied from the target's; the draft's own keys and values of the output stay.
    """

    session: ContinuingSession

    def __init__(self, session: ContinuingSession) -> None:
        super().__init__(session)

    def read(self, target: Session) -> None:
        """Take what the target has read of the text that is begun next."""
        self.session.lend(target)
