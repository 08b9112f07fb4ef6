"""SpecDec end to end in fp64: greedy identity, batches, EOS inside a block, position limits, and the lean pass."""

from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from threading import current_thread
from types import SimpleNamespace

import pytest
import torch
from toy_blocks import BLOCK, CONFIGS, EOS, FIRST, START, VOCAB, Pair, batch_of, inputs_of, random_network
from transformers import PreTrainedModel

from kernels.products.matrix import COMPILED, TORCH, Choice
from methods.autoregressive import Autoregressive
from methods.errors import InputError
from methods.models import stack_for
from methods.models.bart import BartStack
from methods.sampling import Sampling, Uniforms
from methods.session import ModelSession, Source
from methods.specdec.drafter import (
    BlockDrafter,
    ConcurrentBlockDrafter,
    DrafterAlone,
    SharedEncoderBlockDrafter,
    block_logits,
)
from methods.specdec.network import BlockNetwork, block_config, new_network
from methods.specdec.rules import TopBeta, TopOne
from methods.specdec.stack import BlockStack, block_inputs
from methods.speculative.decode import DraftAndVerify
from methods.speculative.overlap import overlap
from methods.speculative.rules import SpeculativeSampling
from methods.speculative.schedules import Constant
from methods.types import Drafter, Generation, Inputs, Proposal, Stop, VerifyRule

GREEDY, DRAWN = Sampling(), Sampling(temperature=1.0)
STOP = Stop(max_new_tokens=20, token_ids=frozenset({EOS}))


@cache
def stacks(pair: Pair) -> tuple[object, BlockStack]:
    return stack_for(pair.verifier), BlockStack(pair.drafter)


@cache
def sources(num_rows: int, seed: int = 5) -> Inputs:
    return inputs_of(batch_of(num_rows, torch.Generator().manual_seed(seed)))


def generate(
    target: object,
    drafter: Drafter,
    inputs: Inputs,
    rule: VerifyRule,
    block_size: int = BLOCK,
    stop: Stop = STOP,
    sampling: Sampling = GREEDY,
    first_seed: int = 0,
) -> list[Generation]:
    uniforms = Uniforms(range(first_seed, first_seed + inputs.batch), stop.max_new_tokens)
    method = DraftAndVerify(drafter, rule, partial(Constant, block_size))
    return method.generate(ModelSession(target), inputs, sampling, uniforms, stop)


def plain(target: object, inputs: Inputs, stop: Stop = STOP) -> list[list[int]]:
    """Each row alone: nothing of the batch can leak into the truth."""
    rows = []
    for prompt in inputs.prompts:
        one = Autoregressive().generate(ModelSession(target), Inputs((prompt,)), GREEDY, Uniforms([0], 64), stop)
        rows.append(one[0].tokens)
    return rows


@pytest.mark.parametrize("cap", ["released", "printed"])
@pytest.mark.parametrize("batch", [1, 3, 5])
@pytest.mark.parametrize("block_size", range(1, 8))
def test_strict_is_greedy_decoding(trained: Pair, block_size: int, batch: int, cap: str) -> None:
    """Every block size and batch size, rows of different lengths that end inside their blocks or at the length limit."""
    target, stack = stacks(trained)
    drafter, inputs = BlockDrafter(stack), sources(15)
    for start in range(0, 15, batch):
        rows = Inputs(inputs.prompts[start : start + batch])
        for stop in (STOP, Stop(max_new_tokens=6, token_ids=frozenset({EOS}))):
            made = generate(target, drafter, rows, TopOne(cap), block_size, stop)
            assert [row.tokens for row in made] == plain(target, rows, stop)
            assert all(sum(step.emitted for step in row.steps) == len(row.tokens) for row in made)


@pytest.mark.parametrize("block_size", range(1, 8))
@pytest.mark.parametrize("family", sorted(CONFIGS))
def test_strict_is_greedy_decoding_whatever_is_drafted(trained: Pair, family: str, block_size: int) -> None:
    """Networks of each block size that have learned nothing."""
    target, inputs = stacks(trained)[0], sources(5)
    drafter = BlockDrafter(BlockStack(random_network(family, block_size)))
    made = generate(target, drafter, inputs, TopOne(), block_size)
    assert [row.tokens for row in made] == plain(target, inputs)


def test_the_toy_pair_exercises_what_it_should(trained: Pair) -> None:
    """Blocks that stand whole, in part and not at all; EOS in the middle of a block; far fewer rounds than tokens."""
    target, stack = stacks(trained)
    rows = generate(target, BlockDrafter(stack), sources(60), TopOne(), 4)
    steps = [step for row in rows for step in row.steps]
    accepted = {step.num_accepted for step in steps if len(step.drafted) == 4}
    assert accepted == {0, 1, 2, 3, 4}
    assert any(EOS in step.drafted[:-1] and step.stop_reason == "eos" for step in steps)
    assert len({len(row.tokens) for row in rows}) > 5
    learned = sum(step.num_accepted for step in steps) / len(steps)
    random = generate(target, BlockDrafter(BlockStack(random_network("marian", 4))), sources(60), TopOne(), 4)
    untrained = [step for row in random for step in row.steps]
    assert learned > 2
    assert sum(step.num_accepted for step in untrained) / len(untrained) < 0.5


def test_the_printed_cap_needs_more_rounds_for_the_same_text(trained: Pair) -> None:
    target, stack = stacks(trained)
    released, printed = (generate(target, BlockDrafter(stack), sources(20), TopOne(cap), 3) for cap in ("released", "printed"))
    assert [row.tokens for row in released] == [row.tokens for row in printed]
    assert max(step.emitted for row in printed for step in row.steps) == 3
    assert max(step.emitted for row in released for step in row.steps) == 4
    assert sum(len(row.steps) for row in printed) > sum(len(row.steps) for row in released)


@pytest.mark.parametrize(
    "rule",
    [TopBeta(3, 1.0), TopBeta(5, 3.0, cap="printed"), TopBeta(3, 1.0, "as_described")],
    ids=["3-1", "5-3-printed", "3-1-as-described"],
)
def test_relaxed_rows_do_not_depend_on_their_batch(trained: Pair, rule: TopBeta) -> None:
    target, stack = stacks(trained)
    inputs, drafter = sources(32), BlockDrafter(stack)
    batch = generate(target, drafter, inputs, rule)
    for index, prompt in enumerate(inputs.prompts[:9]):
        alone = generate(target, drafter, Inputs((prompt,)), rule)[0]
        assert alone.tokens == batch[index].tokens
        assert rounds(alone) == rounds(batch[index])


@cache
def greedy_outputs(pair: Pair, num_rows: int) -> list[list[int]]:
    return plain(stacks(pair)[0], sources(num_rows))


@pytest.mark.parametrize("block_size", range(1, 8))
def test_32_rows_together_are_greedy_decoding(trained: Pair, block_size: int) -> None:
    """Rows accept different lengths and end inside their blocks at different rounds, each as in a batch of 5."""
    target, stack = stacks(trained)
    inputs, drafter = sources(32), BlockDrafter(stack)
    together = generate(target, drafter, inputs, TopOne(), block_size)
    assert [row.tokens for row in together] == greedy_outputs(trained, 32)
    few = [
        row
        for start in range(0, 32, 5)
        for row in generate(target, drafter, Inputs(inputs.prompts[start : start + 5]), TopOne(), block_size)
    ]
    assert [rounds(row) for row in few] == [rounds(row) for row in together]
    assert len({len(row.steps) for row in together}) > 2
    lasts = [row.steps[-1] for row in together]
    assert block_size == 1 or any(step.stop_reason == "eos" and EOS in step.drafted[:-1] for step in lasts)


def rounds(row: Generation) -> list[tuple[list[int], int, int]]:
    return [(step.drafted, step.num_accepted, step.emitted) for step in row.steps]


def test_relaxed_verification_accepts_more(trained: Pair) -> None:
    target, stack = stacks(trained)
    rounds = [
        sum(len(row.steps) for row in generate(target, BlockDrafter(stack), sources(60), rule, 4))
        for rule in (TopOne(), TopBeta(3, 1.0), TopBeta(VOCAB, 50.0))
    ]
    assert rounds[0] > rounds[1] > rounds[2]


class Watched(BlockDrafter):
    """Keeps each round's texts and the logits that were computed for them."""

    def begin(self, inputs: Inputs, pending: Sequence[int], uniforms: Uniforms) -> None:
        super().begin(inputs, pending, uniforms)
        self.sources, self.seen = list(inputs.prompts), []

    def propose(self, num_draft: Sequence[int], positions: Sequence[int], sampling: Sampling) -> Proposal:
        texts = [self.text[row, :length].tolist() for row, length in enumerate(self.lengths)]
        proposal = super().propose(num_draft, positions, sampling)
        if proposal.logits is not None:
            rows = zip(self.sources, texts, proposal.lengths, proposal.logits, strict=True)
            self.seen += [(source, text, logits[:length]) for source, text, length, logits in rows]
        return proposal

    def select(self, rows: Sequence[int]) -> None:
        super().select(rows)
        self.sources = [self.sources[row] for row in rows]


def fresh(network: BlockNetwork, source: Sequence[int], text: Sequence[int], limit: int = 32) -> torch.Tensor:
    """The modules' own forward pass, one row, nothing cached."""
    block = torch.full((1, network.block_size), network.mask_token_id)
    inputs = block_inputs(torch.tensor([list(text)]), torch.tensor([len(text)]), block, limit)
    return network(torch.tensor([list(source)]), None, inputs)[0]


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("batch", [1, 5])
def test_every_round_drafts_what_the_modules_would(trained: Pair, batch: int, sampling: Sampling) -> None:
    """The texts are the start token and what was emitted so far; the lean pass equals the modules in fp64."""
    target, stack = stacks(trained)
    drafter, compared = Watched(stack), 0
    for start in range(0, 10, batch):
        inputs = Inputs(sources(10).prompts[start : start + batch])
        made = generate(target, drafter, inputs, SpeculativeSampling(), 2, sampling=sampling)
        for source, text, logits in drafter.seen:
            row = made[inputs.prompts.index(source)]
            assert text == [START, *row.tokens][: len(text)]
            torch.testing.assert_close(logits, fresh(trained.drafter, source, text)[: len(logits)], rtol=0, atol=1e-10)
            compared += 1
    assert compared > 20


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 1e-5), (torch.float64, 1e-10)], ids=["fp32", "fp64"])
@pytest.mark.parametrize("family", sorted(CONFIGS))
@pytest.mark.parametrize("choice", [TORCH, COMPILED], ids=["torch", "compiled"])
def test_the_lean_pass_is_the_modules(
    zoo_cache: Path, monkeypatch: pytest.MonkeyPatch, choice: Choice, family: str, dtype: torch.dtype, atol: float
) -> None:
    """One row, equal rows and ragged ones, up to the position limit. Of single rows that fit compiled calls make both."""
    network, untouched = random_network(family, 6, dtype), random_network(family, 6, dtype)
    stack, generator = BlockStack(network, choice), torch.Generator().manual_seed(0)
    if choice is COMPILED and stack.compiled is None:
        pytest.skip("no C++ compiler")
    made, compiled_logits = [], stack.compiled_logits
    monkeypatch.setattr(stack, "compiled_logits", lambda *given: made.append(compiled_logits(*given)) or made[-1])
    compared = 0
    for lengths in ([1], [9], [4, 4], [1, 12, 5], [27, 3]):
        text = torch.randint(FIRST, VOCAB, (len(lengths), 40), generator=generator)
        prompts = tuple(
            tuple(torch.randint(FIRST, VOCAB, (2 + 3 * row,), generator=generator).tolist()) for row in range(len(lengths))
        )
        ours = block_logits(stack, Source(stack, Inputs(prompts)), text, lengths)
        for row, length in enumerate(lengths):
            reach = min(6, 32 - length)
            theirs = fresh(untouched, prompts[row], text[row, :length].tolist())
            torch.testing.assert_close(ours[row, :reach], theirs[:reach], rtol=0, atol=atol)
            compared += 1
    assert compared == 9
    assert [one is not None for one in made] == [choice is COMPILED] * 2


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("limit", [8, 9, 12])
def test_near_its_position_limit_it_drafts_less_and_then_nothing(trained: Pair, limit: int, batch: int) -> None:
    """The verifier's limit is 32. A text of L tokens leaves limit - L places; the output stays greedy decoding's."""
    config = block_config(trained.verifier.config, 5)
    config.max_position_embeddings = limit
    network = new_network(config).double().eval().requires_grad_(False)
    target, drafter = stacks(trained)[0], BlockDrafter(BlockStack(network))
    short = tuple(prompt for prompt in sources(60).prompts if len(prompt) <= limit)
    stop = Stop(max_new_tokens=20)
    for start in range(0, 8, batch):
        inputs = Inputs(short[start : start + batch])
        made = generate(target, drafter, inputs, TopOne(), 5, stop)
        assert [row.tokens for row in made] == plain(target, inputs, stop)
        for row in made:
            length = 1
            for step in row.steps:
                assert len(step.drafted) == max(0, min(5, limit - length, 20 - length))
                length += step.emitted
            assert row.steps[-1].drafted == []


def test_a_schedule_above_the_block_size_drafts_a_block(trained: Pair) -> None:
    target, stack = stacks(trained)
    row = generate(target, BlockDrafter(stack), sources(1), TopOne(), 50, Stop(max_new_tokens=20))[0]
    assert max(len(step.drafted) for step in row.steps) == BLOCK


def test_drawn_drafts_do_not_depend_on_their_batch(trained: Pair) -> None:
    target, stack = stacks(trained)
    inputs, drafter = sources(5), BlockDrafter(stack)
    batch = generate(target, drafter, inputs, SpeculativeSampling(), 4, sampling=DRAWN)
    for index, prompt in enumerate(inputs.prompts):
        alone = generate(target, drafter, Inputs((prompt,)), SpeculativeSampling(), 4, sampling=DRAWN, first_seed=index)[0]
        assert alone.tokens == batch[index].tokens
    assert any(0 < step.num_accepted < len(step.drafted) for row in batch for step in row.steps)


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_teacher_probs_are_the_laws_of_first_drafts(trained: Pair, sampling: Sampling) -> None:
    """More tokens than one chunk holds rows; those past the drafter's positions are left out."""
    network, output = random_network("marian", 3), [FIRST + i % 9 for i in range(40)]
    stack = BlockStack(network)
    laws = torch.cat(list(BlockDrafter(stack).teacher_probs(Inputs(((4, 5, EOS),)), [START], output, sampling)))
    assert laws.shape == (31, VOCAB)
    for place in (0, 7, 30):
        expected = fresh(network, (4, 5, EOS), [START, *output[:place]])[0]
        torch.testing.assert_close(laws[place], sampling.probs(expected), rtol=0, atol=1e-10)
    target, (_, learned) = stacks(trained)[0], stacks(trained)
    inputs = Inputs(sources(1).prompts)
    tokens = plain(target, inputs)[0]
    agreeing = overlap(ModelSession(target), [BlockDrafter(learned)], inputs, tokens, GREEDY)[0][1.0]
    assert agreeing.shape == (len(tokens),)
    assert agreeing.mean() > 0.5


def test_what_it_cannot_hold_is_refused() -> None:
    drafter, uniforms = BlockDrafter(BlockStack(random_network("marian", 3))), Uniforms([0], 8)
    with pytest.raises(InputError, match="token 14 is outside the vocabulary of 14"):
        drafter.begin(Inputs(((4, VOCAB),)), [START], uniforms)
    with pytest.raises(InputError, match="it has 33 tokens, the model's position limit is 32"):
        drafter.begin(Inputs(((4,) * 33,)), [START], uniforms)


def with_encoder_of(verifier: PreTrainedModel) -> BlockStack:
    """The verifier's encoder and embeddings, and a decoder that has learned nothing."""
    network = new_network(block_config(verifier.config, 3), verifier)
    generator = torch.Generator().manual_seed(0)
    for parameter in network.model.decoder.layers.parameters():
        parameter.data.add_(torch.randn(parameter.shape, generator=generator), alpha=0.3)
    return BlockStack(network.to(verifier.dtype).eval().requires_grad_(False))


def test_a_shared_encoder_runs_once_and_changes_no_draft(trained: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    target, stack = stacks(trained)[0], with_encoder_of(trained.verifier)
    encoded: list[object] = []
    encode = BartStack.encode
    monkeypatch.setattr(BartStack, "encode", lambda self, *inputs: encoded.append(self) or encode(self, *inputs))
    both = [generate(target, kind(stack), sources(5), TopOne(), 3) for kind in (SharedEncoderBlockDrafter, BlockDrafter)]
    assert [row.tokens for row in both[0]] == [row.tokens for row in both[1]] == plain(target, sources(5))
    drafted = [[[step.drafted for step in row.steps] for row in rows] for rows in both]
    assert drafted[0] == drafted[1]
    assert encoded[:3] == [target, target, stack]


def test_a_drafter_that_shares_an_encoder_encodes_by_itself_where_it_is_alone(trained: Pair) -> None:
    stack = with_encoder_of(trained.verifier)
    uniforms, stop = Uniforms(range(5), 20), Stop(max_new_tokens=20)
    shared, own = (
        DrafterAlone(kind(stack), None).generate(ModelSession(stacks(trained)[0]), sources(5), GREEDY, uniforms, stop)
        for kind in (SharedEncoderBlockDrafter, BlockDrafter)
    )
    assert [row.tokens for row in shared] == [row.tokens for row in own]


def test_a_shared_encoding_of_alike_rows_serves_every_row(trained: Pair) -> None:
    target, drafter = stacks(trained)[0], SharedEncoderBlockDrafter(with_encoder_of(trained.verifier))
    alike = Inputs(sources(1).prompts * 3)
    assert [row.tokens for row in generate(target, drafter, alike, TopOne(), 3)] == plain(target, sources(1)) * 3


def test_a_shared_encoder_must_be_the_verifiers(trained: Pair, tiny: SimpleNamespace) -> None:
    target, stack = stacks(trained)[0], with_encoder_of(trained.verifier)
    drafter = SharedEncoderBlockDrafter(stack)
    stack.model.model.encoder.layers[0].fc1.weight[0, 0] += 1
    with pytest.raises(InputError, match=r"differs from the verifier's in layers\.0\.fc1\.weight; train the drafter"):
        generate(target, drafter, sources(2), TopOne(), 3)
    with pytest.raises(InputError, match="encoder shared: the target is no bart or marian model"):
        drafter.read(ModelSession(stack_for(tiny.build("t5"))))


@pytest.mark.parametrize("batch", [1, 5])
def test_encoders_beside_each_other_change_nothing(trained: Pair, batch: int) -> None:
    """The drafter's encoder runs in another thread, once a batch."""
    target, stack = stacks(trained)
    threads: list[str] = []

    class Seen(BlockStack):
        def encode(self, *inputs: torch.Tensor) -> torch.Tensor:
            threads.append(current_thread().name)
            return super().encode(*inputs)

    beside, own = ConcurrentBlockDrafter(Seen(trained.drafter)), BlockDrafter(stack)
    for start in range(0, 15, batch):
        inputs = Inputs(sources(15).prompts[start : start + batch])
        rows = [generate(target, drafter, inputs, TopOne(), 4) for drafter in (beside, own)]
        assert [row.tokens for row in rows[0]] == [row.tokens for row in rows[1]] == plain(target, inputs)
        drafted = [[[step.drafted for step in row.steps] for row in arm] for arm in rows]
        assert drafted[0] == drafted[1]
    assert len(threads) == 15 // batch
    assert current_thread().name not in threads


def test_what_was_started_for_other_inputs_is_not_used(trained: Pair) -> None:
    """As after a target whose prefill failed."""
    stack, inputs = stacks(trained)[1], sources(3)
    beside, own = ConcurrentBlockDrafter(stack), BlockDrafter(stack)
    beside.start(sources(3, seed=6))
    proposals = []
    for drafter in (beside, own):
        drafter.begin(inputs, [START] * 3, Uniforms(range(3), 20))
        proposals.append(drafter.propose([BLOCK] * 3, [0] * 3, GREEDY))
    assert proposals[0].logits is not None
    assert torch.equal(proposals[0].logits, proposals[1].logits)


def test_what_a_concurrent_drafter_cannot_hold_is_refused(trained: Pair) -> None:
    target, drafter = stacks(trained)[0], ConcurrentBlockDrafter(BlockStack(random_network("marian", 3)))
    with pytest.raises(InputError, match="it has 33 tokens, the model's position limit is 32"):
        generate(target, drafter, Inputs(((4,) * 33,)), TopOne(), 3)
    assert generate(target, drafter, sources(2), TopOne(), 3)[1].tokens == plain(target, sources(2))[1]


@pytest.mark.parametrize("block_size", [0, -1])
def test_the_drafter_alone_needs_a_token_a_block(trained: Pair, block_size: int) -> None:
    with pytest.raises(InputError, match=rf"block_size {block_size}: expected an integer >= 1"):
        DrafterAlone(BlockDrafter(BlockStack(trained.drafter)), block_size)


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("block_size", [1, 3, BLOCK])
def test_the_drafter_alone_writes_its_own_blocks(trained: Pair, block_size: int, batch: int) -> None:
    """Against fresh passes of the modules, block by block; up to EOS, a length limit, and the network's own positions."""
    stack, ends = stacks(trained)[1], set()
    method = DrafterAlone(BlockDrafter(stack), block_size)
    for start in range(0, 8, batch):
        inputs = Inputs(sources(8).prompts[start : start + batch])
        for stop in (STOP, Stop(max_new_tokens=5, token_ids=frozenset({EOS})), Stop(max_new_tokens=90)):
            made = method.generate(ModelSession(stacks(trained)[0]), inputs, GREEDY, Uniforms(range(batch), 90), stop)
            for row, source in zip(made, inputs.prompts, strict=True):
                expected: list[int] = []
                while len(expected) < min(31, stop.max_new_tokens) and not set(expected) & stop.token_ids:
                    place = len(expected)
                    block = fresh(trained.drafter, source, [START, *expected]).argmax(-1).tolist()
                    expected += block[: min(block_size, 31 - place, stop.max_new_tokens - place)]
                if set(expected) & stop.token_ids:
                    expected = expected[: expected.index(EOS) + 1]
                assert row.tokens == expected
                assert [step.emitted for step in row.steps] == [step.num_accepted for step in row.steps]
                assert sum(step.emitted for step in row.steps) == len(expected)
                assert row.stop_reason == row.steps[-1].stop_reason
                ends.add((row.stop_reason, len(row.tokens) == 31))
    assert ends >= {("eos", False), ("length", False), ("length", True)}
