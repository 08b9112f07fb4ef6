"""Blockwise decoding: heads on the verifier's own hidden states."""

from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save
from toy_blocks import EOS, START, VOCAB, Batch, Pair, batch_of, inputs_of

from methods.autoregressive import Autoregressive
from methods.errors import InputError
from methods.models import stack_for
from methods.sampling import Sampling, Uniforms
from methods.session import ModelSession
from methods.specdec.blockwise import FILE, BlockwiseDrafter, BlockwiseHeads, blockwise_loss, load_blockwise
from methods.specdec.rules import TopOne
from methods.speculative.decode import DraftAndVerify
from methods.speculative.rules import SpeculativeSampling
from methods.speculative.schedules import Constant
from methods.types import Inputs, Stop

GREEDY, DRAWN = Sampling(), Sampling(temperature=1.0)
STOP = Stop(max_new_tokens=20, token_ids=frozenset({EOS}))


def states_of(pair: Pair, batch: Batch) -> torch.Tensor:
    """The verifier's last hidden states before each output, by transformers."""
    shifted = torch.cat((torch.full((len(batch.outputs), 1), START), batch.outputs[:, :-1]), 1)
    mask = batch.source_mask.long()
    return pair.verifier.model(
        input_ids=batch.source, attention_mask=mask, decoder_input_ids=shifted, use_cache=False
    ).last_hidden_state


def project(pair: Pair, hidden: torch.Tensor) -> torch.Tensor:
    return pair.verifier.lm_head(hidden) + pair.verifier.final_logits_bias


def random_heads(num_heads: int, hidden_size: int = 16) -> BlockwiseHeads:
    generator = torch.Generator().manual_seed(num_heads)
    heads = BlockwiseHeads(32, num_heads, hidden_size).double()
    with torch.no_grad():
        for parameter in heads.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 4)
    return heads.requires_grad_(False)


@pytest.fixture(scope="module")
def trained_heads(trained: Pair) -> BlockwiseHeads:
    heads, generator = random_heads(3, 64).train().requires_grad_(True), torch.Generator().manual_seed(3)
    optimizer = torch.optim.Adam(heads.parameters(), lr=3e-3)
    for _ in range(150):
        batch = batch_of(32, generator)
        loss = blockwise_loss(heads, partial(project, trained), states_of(trained, batch), batch.outputs, batch.lengths)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return heads.eval().requires_grad_(False)


def test_untrained_heads_say_what_the_verifier_says() -> None:
    """The last layer begins at zero, so a head begins at the verifier's own state."""
    hidden = torch.randn(2, 5, 32)
    assert torch.equal(BlockwiseHeads(32, 3, 8)(hidden), hidden.unsqueeze(-2).expand(-1, -1, 3, -1))


@pytest.mark.parametrize("head", [None, 1])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_the_loss_is_a_loop_over_heads_and_tokens(trained: Pair, head: int | None, label_smoothing: float) -> None:
    heads, batch = random_heads(3), batch_of(6, torch.Generator().manual_seed(1))
    hidden = states_of(trained, batch)
    ours = blockwise_loss(heads, partial(project, trained), hidden, batch.outputs, batch.lengths, head, label_smoothing)
    total, count = 0.0, 0
    for row in range(6):
        for place in range(int(batch.lengths[row])):
            for index in range(3) if head is None else [head]:
                ahead = place + index + 1
                if ahead < int(batch.lengths[row]):
                    law = project(trained, heads(hidden[row, place])[index]).log_softmax(-1)[0]
                    token = int(batch.outputs[row, ahead])
                    total -= (1 - label_smoothing) * float(law[token]) + label_smoothing * float(law.mean())
                    count += 1
    assert ours.item() == pytest.approx(total / count, abs=1e-10)


@pytest.mark.parametrize("head", [None, 5])
def test_heads_that_reach_past_every_sentence_cost_nothing_and_can_be_trained(trained: Pair, head: int | None) -> None:
    heads, outputs, lengths = random_heads(8).requires_grad_(True), torch.tensor([[3, EOS]]), torch.tensor([2])
    hidden = torch.ones(1, 2, 32, dtype=torch.float64)
    loss = blockwise_loss(heads, partial(project, trained), hidden, outputs, lengths, head)
    loss.backward()
    first = -project(trained, heads(hidden[0, 0])[0]).log_softmax(-1)[0, EOS]
    assert loss.item() == pytest.approx(0.0 if head else first.item())


@pytest.mark.parametrize("batch", [1, 3, 5])
@pytest.mark.parametrize("num_heads", [1, 3, 6])
def test_it_is_greedy_decoding(trained: Pair, num_heads: int, batch: int) -> None:
    target = stack_for(trained.verifier)
    drafter = BlockwiseDrafter(random_heads(num_heads), target)
    assert hasattr(drafter, "read")
    inputs = inputs_of(batch_of(15, torch.Generator().manual_seed(5)))
    method = DraftAndVerify(drafter, TopOne(), partial(Constant, num_heads))
    for start in range(0, 15, batch):
        rows = Inputs(inputs.prompts[start : start + batch])
        for stop in (STOP, Stop(max_new_tokens=5)):
            uniforms = Uniforms(range(rows.batch), 20)
            expected = Autoregressive().generate(ModelSession(target), rows, GREEDY, uniforms, stop)
            made = method.generate(ModelSession(target), rows, GREEDY, uniforms, stop)
            assert [row.tokens for row in made] == [row.tokens for row in expected]
            assert all(row.steps[0].drafted == [] for row in made)


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_each_draft_is_made_from_the_state_behind_what_stood(trained: Pair, sampling: Sampling) -> None:
    """The drafts of every round, recomputed from transformers' hidden states of the text before it; in a batch too."""
    target, heads = stack_for(trained.verifier), random_heads(3)
    inputs, compared = inputs_of(batch_of(4, torch.Generator().manual_seed(8))), 0
    method = DraftAndVerify(BlockwiseDrafter(heads, target), SpeculativeSampling(), partial(Constant, 3))
    uniforms = Uniforms(range(4), 20)
    for row, (made, prompt) in enumerate(
        zip(method.generate(ModelSession(target), inputs, sampling, uniforms, STOP), inputs.prompts, strict=True)
    ):
        length = made.steps[0].emitted
        for step in made.steps[1:]:
            text = torch.tensor([[START, *made.tokens[: length - 1]]])
            hidden = trained.verifier.model(input_ids=torch.tensor([prompt]), decoder_input_ids=text, use_cache=False)
            logits = project(trained, heads(hidden.last_hidden_state[0, -1]))[: len(step.drafted)]
            expected = sampling.draw(logits, uniforms.select([row]).draft([length], len(step.drafted))[0])
            assert step.drafted == expected.tolist()
            length += step.emitted
            compared += 1
    assert compared > 8


def test_trained_heads_save_rounds(trained: Pair, trained_heads: BlockwiseHeads) -> None:
    target, inputs = stack_for(trained.verifier), inputs_of(batch_of(30, torch.Generator().manual_seed(9)))

    def accepted(heads: BlockwiseHeads) -> float:
        method = DraftAndVerify(BlockwiseDrafter(heads, target), TopOne(), partial(Constant, 3))
        rows = method.generate(ModelSession(target), inputs, GREEDY, Uniforms(range(30), 20), STOP)
        steps = [step for row in rows for step in row.steps]
        return sum(step.num_accepted for step in steps) / len(steps)

    assert accepted(trained_heads) > max(0.4, 2 * accepted(random_heads(3)))


def test_teacher_probs_are_the_first_heads_laws(trained: Pair) -> None:
    """No mass before the first token: blockwise decoding does not draft it."""
    target, heads = stack_for(trained.verifier), random_heads(2)
    output = [3 + i % 9 for i in range(12)]
    laws = torch.cat(list(BlockwiseDrafter(heads, target).teacher_probs(Inputs(((4, 5),)), [START], output, DRAWN)))
    assert laws.shape == (12, VOCAB)
    assert float(laws[0].sum()) == 0
    text = torch.tensor([[START, *output[:-1]]])
    hidden = trained.verifier.model(input_ids=torch.tensor([[4, 5]]), decoder_input_ids=text, use_cache=False)
    expected = project(trained, heads(hidden.last_hidden_state[0])[:, 0]).softmax(-1)
    torch.testing.assert_close(laws[1:], expected[:-1], rtol=0, atol=1e-10)


def test_heads_are_saved_and_loaded(trained: Pair, tmp_path: Path) -> None:
    target, heads = stack_for(trained.verifier), random_heads(3, 7)
    heads.save(tmp_path / "heads")
    loaded, hidden = load_blockwise(tmp_path / "heads", target), torch.randn(2, 32, dtype=torch.float64)
    assert (loaded.num_heads, loaded.up.out_features) == (3, 21)
    assert torch.equal(loaded(hidden), heads(hidden))
    with pytest.raises(InputError, match=r"no blockwise\.safetensors there"):
        load_blockwise(tmp_path, target)
    BlockwiseHeads(16, 2, 4).save(tmp_path / "other")
    with pytest.raises(InputError, match="they are 16 wide and the verifier 32; expected heads that were trained on this"):
        load_blockwise(tmp_path / "other", target)
    with pytest.raises(InputError, match="num_heads 0: expected an integer >= 1"):
        BlockwiseHeads(32, 0, 4)


def test_damaged_heads_are_refused_in_one_line(trained: Pair, tmp_path: Path) -> None:
    target, file = stack_for(trained.verifier), tmp_path / FILE
    random_heads(3, 7).save(tmp_path)
    whole, state = file.read_bytes(), load_file(file)
    broken = [{}, {"up.weight": state["up.weight"]}, state | {"up.bias": torch.zeros(1)}, state | {"up.weight": torch.zeros(2)}]
    broken.append({name: weight.to(torch.int16) for name, weight in state.items()})
    broken.append(state | {"down.bias": torch.full_like(state["down.bias"], float("nan"))})
    for content in (b"", whole[: len(whole) // 2], *(save(one) for one in broken)):
        file.write_bytes(content)
        with pytest.raises(InputError, match=rf"blockwise heads .*: {FILE} cannot be used \(.*\); expected") as caught:
            load_blockwise(tmp_path, target)
        assert "\n" not in str(caught.value)
