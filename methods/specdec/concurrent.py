"""A block drafter that encodes the source while the verifier does, as Xia et al. propose in their conclusion."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from methods.sampling import Uniforms
from methods.session import Source, check_inputs
from methods.specdec.drafter import BlockDrafter
from methods.specdec.stack import BlockStack
from methods.types import Inputs


class ConcurrentBlockDrafter(BlockDrafter):
    """The two encoders do not depend on each other: this one runs in a thread of its own, on a GPU in a stream of its own.

    Changes no draft. Needs an idle core for each thread, or a GPU that one encoder does not fill; and torch leaves the
    interpreter to the other thread only inside an operation, so small models, which spend their time between operations, lose
    a little. Both encoders of a source of 24 tokens, a thread each on two idle cores: 45 ms one after the other and 24 beside
    each other at the paper's size (6 layers, width 512), 1.03 and 1.16 at 3 layers of width 96. The interpreter's switch
    interval changes neither (5, 0.5 and 0.05 ms); where other processes hold the cores it can take many times as long.
    """

    def __init__(self, stack: BlockStack) -> None:
        super().__init__(stack)
        self._worker = ThreadPoolExecutor(1)
        self._stream = torch.cuda.Stream(stack.device) if stack.device.type == "cuda" else None
        self._started: tuple[Inputs, Future[Source]] | None = None

    def start(self, inputs: Inputs) -> None:
        check_inputs(inputs, self.stack.input_vocab_size, self.stack.source_limit)
        if self._stream is not None:
            # What the last source's memory is still read for comes first.
            self._stream.wait_stream(torch.cuda.current_stream(self.stack.device))
        self._started = inputs, self._worker.submit(self._encode_apart, inputs)

    def begin(self, inputs: Inputs, pending: Sequence[int], uniforms: Uniforms) -> None:
        if self._started is None or self._started[0] is not inputs:  # also what was started for a target that failed
            self.start(inputs)
        super().begin(inputs, pending, uniforms)

    def _encode(self, inputs: Inputs) -> Source:
        assert self._started is not None
        source, self._started = self._started[1].result(), None
        if self._stream is not None:
            torch.cuda.current_stream(self.stack.device).wait_stream(self._stream)
        return source

    @torch.inference_mode()
    def _encode_apart(self, inputs: Inputs) -> Source:
        with torch.cuda.stream(self._stream):
            return Source(self.stack, inputs)
