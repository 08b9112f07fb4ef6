"""Drafting a block of k tokens with one forward pass of a non-autoregressive network (Xia et al. 3.1); and with it alone."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from kernels.verify.interface import refuse_nan
from methods.errors import InputError
from methods.models.bart import BartStack
from methods.sampling import Sampling, Uniforms
from methods.session import ModelSession, Source
from methods.specdec.stack import BlockStack, block_inputs
from methods.steps import Step, StopReason
from methods.types import Clock, Generation, Guarantee, Inputs, Outcome, Proposal, Session, Stop

CAPACITY = 64  # tokens of text at first; longer texts double it
TEACHER_ROWS = 32  # blocks that are drafted in one pass where a whole text is read: more need more memory, and are no faster


class BlockDrafter:
    """One pass a round; the source is encoded once. A block's tokens are chosen independently of one another.

    Every pass fills in k = ``block_size`` MASKs, as in training, and proposes the first tokens of that block that are asked for
    and that fit into the network's positions: at most k, near the position limit fewer, past it none.
    """

    def __init__(self, stack: BlockStack) -> None:
        self.stack = stack

    @torch.inference_mode()
    def begin(self, inputs: Inputs, pending: Sequence[int], uniforms: Uniforms) -> None:
        stack = self.stack
        inputs.check(stack.input_vocab_size, stack.prompt_limit)
        self.uniforms, self.source = uniforms, self._encode(inputs)
        self.lengths = [1] * inputs.batch
        self.text: Int[Tensor, "B capacity"] = torch.zeros(inputs.batch, CAPACITY, dtype=torch.long, device=stack.device)
        self.text[:, 0] = torch.tensor(pending)

    def _encode(self, inputs: Inputs) -> Source:
        return Source(self.stack, inputs)

    def propose(self, num_draft: Sequence[int], positions: Sequence[int], sampling: Sampling) -> Proposal:
        lengths = self._fitting(num_draft)
        longest = max(lengths)
        if longest == 0:
            self.proposal = Proposal.nothing(len(lengths), sampling, self.stack.device)
            return self.proposal
        logits = block_logits(self.stack, self.source, self.text, self.lengths)[:, :longest]
        if sampling.greedy:
            refuse_nan(logits[:, 0])
        tokens = logits.argmax(-1) if sampling.greedy else sampling.draw(logits, self.uniforms.draft(positions, longest))
        self.proposal = Proposal(tokens, lengths, logits, sampling)
        return self.proposal

    def _fitting(self, num_draft: Sequence[int]) -> tuple[int, ...]:
        block_size, limit = self.stack.block_size, self.stack.position_limit
        assert limit is not None
        return tuple(max(0, min(n, block_size, limit - at)) for n, at in zip(num_draft, self.lengths, strict=True))

    def commit(self, outcome: Outcome) -> None:
        """Put all drafts behind the text on the device; those that were rejected lie past its new length."""
        drafts = self.proposal.tokens
        num_drafted, batch = drafts.shape[1], len(self.lengths)
        self._reserve(max(self.lengths) + num_drafted + 1)
        ends = [length + count for length, count in zip(self.lengths, outcome.num_accepted, strict=True)]
        if batch == 1:
            start = self.lengths[0]
            self.text[0, start : start + num_drafted] = drafts[0]
            self.text[0, ends[0]] = outcome.next_token[0]
        else:
            device = self.text.device
            rows, starts = torch.arange(batch, device=device), torch.tensor(self.lengths, device=device)
            self.text[rows.unsqueeze(1), starts.unsqueeze(1) + torch.arange(num_drafted, device=device)] = drafts
            self.text[rows, torch.tensor(ends, device=device)] = torch.tensor(outcome.next_token, device=device)
        self.lengths = [end + 1 for end in ends]

    def _reserve(self, needed: int) -> None:
        capacity = self.text.shape[1]
        if needed > capacity:
            self.text = F.pad(self.text, (0, max(needed, 2 * capacity) - capacity))

    def select(self, rows: Sequence[int]) -> None:
        self.text, self.lengths = self.text[list(rows)], [self.lengths[row] for row in rows]
        self.source.select(rows)
        self.uniforms = self.uniforms.select(rows)

    @torch.inference_mode()
    def teacher_probs(
        self, inputs: Inputs, pending: Sequence[int], output: Sequence[int], sampling: Sampling
    ) -> Iterator[Float[Tensor, "chunk V"]]:
        """The law of a block's first token before each token of a given output (one row), in chunks."""
        stack, source = self.stack, Source(self.stack, inputs)
        text = torch.tensor([[*pending, *output]], device=stack.device)
        reach = min(len(output), (stack.position_limit or len(output) + 1) - 1)
        for start in range(0, reach, TEACHER_ROWS):
            lengths = range(start + 1, min(start + TEACHER_ROWS, reach) + 1)
            source.select([0] * len(lengths))
            logits = block_logits(stack, source, text.expand(len(lengths), -1), lengths)
            yield sampling.probs(logits[:, 0])

    @torch.inference_mode()
    def teacher_blocks(
        self, inputs: Inputs, pending: Sequence[int], output: Sequence[int], starts: Sequence[int]
    ) -> Float[Tensor, "starts k V"]:
        """Return the logits of the blocks behind the first ``starts`` tokens of a given output (one row).

        Always of several rows a pass, which torch's operations run: what a round's compiled call gives is held against them.
        """
        text, found = torch.tensor([[*pending, *output]], device=self.stack.device), []
        for first in range(0, len(starts), TEACHER_ROWS):
            lengths = [start + 1 for start in starts[first : first + TEACHER_ROWS]]
            source, rows = Source(self.stack, inputs), [*lengths, lengths[-1]]
            source.select([0] * len(rows))
            found.append(block_logits(self.stack, source, text.expand(len(rows), -1), rows)[:-1])
        return torch.cat(found)


@torch.inference_mode()
def block_logits(
    stack: BlockStack, source: Source, text: Int[Tensor, "B capacity"], lengths: Sequence[int]
) -> Float[Tensor, "B k V"]:
    """Run one pass: the logits of the block behind each row's first ``lengths[row]`` tokens, the start token included."""
    longest, limit, block_size, device = max(lengths), stack.position_limit, stack.block_size, stack.device
    assert limit is not None
    text, table, mask = text[:, :longest], stack.position_table, None
    fits = min(lengths) == longest and longest + block_size <= limit
    if fits and len(lengths) == 1 and (logits := stack.compiled_logits(text, source.view)) is not None:
        return logits
    block = torch.full((len(lengths), block_size), stack.mask_token_id, device=device)
    if fits:
        tokens = torch.cat((block, text), 1)
        positions = torch.cat((table[longest : longest + block_size], table[:longest])).unsqueeze(0)
    else:
        inputs = block_inputs(text, torch.tensor(lengths, device=device), block, limit)
        tokens, positions = inputs.tokens, F.embedding(inputs.positions, table)
        mask = torch.zeros(tokens.shape, dtype=stack.dtype, device=device).masked_fill_(~inputs.allowed, float("-inf"))
        mask = mask[:, None, None]
    return stack.block_logits(tokens, positions, mask, source.view.cross, source.view.mask)


def _check_same_encoder(stack: BlockStack, target: BartStack) -> None:
    """Settings and weights. [MASK], the last row of the network's embedding, occurs in no source."""
    names = ("encoder_attention_heads", "activation_function", "scale_embedding")
    differing = [name for name in names if getattr(stack.model.config, name) != getattr(target.model.config, name)]
    ours, theirs = (dict(one.model.model.encoder.named_parameters()) for one in (stack, target))
    for name in ours.keys() | theirs.keys():
        weight, other = ours.get(name), theirs.get(name)
        if weight is None or other is None or not torch.equal(weight[: len(other)], other):
            differing.append(name)
    if differing:
        raise InputError(
            f"encoder shared: the drafter's encoder differs from the verifier's in {min(differing)}; "
            "train the drafter from the verifier with a frozen encoder, or choose encoder own"
        )


class SharedEncoderBlockDrafter(BlockDrafter):
    """Uses the states of the target's encoder, which must have the weights of the network's own.

    So it is where the network began as its verifier and was trained with a frozen encoder. Changes no draft, saves a pass a
    source. Alone, without a target, it encodes by itself.
    """

    target: ModelSession | None = None

    def read(self, target: Session) -> None:
        """Keep the target's session, whose prefill has encoded the source."""
        if not isinstance(target, ModelSession) or not isinstance(target.stack, BartStack):
            raise InputError(
                "encoder shared: the target is no bart or marian model; expected the drafter's verifier, or choose encoder own"
            )
        if self.target is None or self.target.stack is not target.stack:
            _check_same_encoder(self.stack, target.stack)
        self.target = target

    def _encode(self, inputs: Inputs) -> Source:
        return Source(self.stack, inputs, None if self.target is None else self.target.encoded)


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
        inputs.check(self.stack.input_vocab_size, self.stack.prompt_limit)
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


class DrafterAlone:
    """The paper's row "NAT drafter" (Table 1): every token that is drafted stands, and the target never runs.

    Blocks of k tokens follow each other until EOS, the length limit or the end of the network's positions. k is the drafter's
    own where it is None, and never more. A step's drafts all count as accepted, as far as they are emitted, and have no
    target probabilities.
    """

    guarantee: Guarantee = "lossy"

    def __init__(self, drafter: BlockDrafter, block_size: int | None) -> None:
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
