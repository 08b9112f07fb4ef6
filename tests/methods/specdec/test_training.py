"""The training step against slow loops, and a drafter that learns a toy task in seconds."""

import math

import pytest
import torch
from toy_blocks import EOS, START, VOCAB, Pair, batch_of, random_network

from methods.errors import InputError
from methods.specdec.stack import block_inputs
from methods.specdec.training import (
    Blocks,
    average_states,
    cut_blocks,
    drafter_loss,
    glancing_ratio,
    leading_correct,
    random_prefix_lengths,
    reveal,
    token_loss,
)

BLOCK = 5


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def some_blocks(num_rows: int = 6, seed: int = 0) -> tuple[Blocks, object]:
    batch = batch_of(num_rows, generator(seed))
    return cut_blocks(batch.outputs, batch.lengths, random_prefix_lengths(batch.lengths, generator(seed)), BLOCK, START), batch


def test_prefixes_are_uniform_below_the_length() -> None:
    """0 <= p < m. Chance of a false alarm below 1e-6: 5.5 standard deviations, 12 counts."""
    for length in (1, 3, 8):
        drawn = random_prefix_lengths(torch.full((20000,), length), generator(length))
        counts = drawn.bincount(minlength=length)
        assert len(counts) == length
        spread = math.sqrt(20000 / length * (1 - 1 / length))
        assert float((counts - 20000 / length).abs().max()) <= 5.5 * spread


def test_blocks_are_the_next_tokens_inside_the_sentence() -> None:
    blocks, batch = some_blocks(20)
    ends = 0
    for row in range(20):
        sentence = batch.outputs[row, : batch.lengths[row]].tolist()
        prefix = int(blocks.lengths[row]) - 1
        assert blocks.prefix[row, : prefix + 1].tolist() == [START, *sentence[:prefix]]
        expected = sentence[prefix : prefix + BLOCK]
        assert blocks.targets[row][blocks.counted[row]].tolist() == expected
        assert blocks.counted[row].tolist() == [place < len(expected) for place in range(BLOCK)]
        ends += expected[-1] == EOS
    assert 5 < ends < 20


@pytest.mark.parametrize(("label_smoothing", "decay"), [(0.0, 1.0), (0.1, 1.0), (0.1, 0.7)])
def test_the_loss_is_a_loop_over_sentences_and_places(label_smoothing: float, decay: float) -> None:
    network, (blocks, batch) = random_network("marian", BLOCK), some_blocks()
    settings = {"label_smoothing": label_smoothing, "place_decay": decay}
    ours = drafter_loss(network, batch.source, batch.source_mask, blocks, generator(), **settings)
    total, count = 0.0, 0.0
    for row in range(6):
        sentence = batch.outputs[row, : batch.lengths[row]].tolist()
        prefix = int(blocks.lengths[row]) - 1
        text = torch.tensor([[START, *sentence[:prefix]]])
        block = torch.full((1, BLOCK), network.mask_token_id)
        inputs = block_inputs(text, torch.tensor([prefix + 1]), block, 32)
        law = network(batch.source[row : row + 1, batch.source_mask[row]], None, inputs)[0].log_softmax(-1)
        for place, token in enumerate(sentence[prefix : prefix + BLOCK]):
            spread = sum(float(law[place, other]) for other in range(VOCAB)) / VOCAB
            total -= decay**place * ((1 - label_smoothing) * float(law[place, token]) + label_smoothing * spread)
            count += decay**place
    assert ours.item() == pytest.approx(total / count, abs=1e-10)


def test_glancing_reveals_the_right_number_uniformly() -> None:
    """floor(ratio * wrong) of each row's targets, never one behind EOS. False alarm below 1e-6 (6 standard deviations)."""
    counted = torch.arange(8) < torch.tensor([8, 8, 5, 1, 8]).unsqueeze(1)
    targets = torch.arange(40).view(5, 8)
    wrong = torch.tensor([[1] * 8, [1, 1, 1, 0, 0, 0, 0, 0], [1] * 8, [1] * 8, [0] * 8])
    blocks = Blocks(targets, torch.ones(5, dtype=torch.long), targets, counted)
    draws, trials, hits = generator(), 4000, torch.zeros(5, 8)
    for _ in range(trials):
        shown = reveal(targets + wrong, blocks, 0.5, draws)
        assert shown.sum(-1).tolist() == [4, 1, 2, 0, 0]
        assert not bool((shown & ~counted).any())
        hits += shown
    for row, expected in ((0, 4 / 8), (1, 1 / 8), (2, 2 / 5)):
        spread = math.sqrt(expected * (1 - expected) / trials)
        assert float((hits[row][counted[row]] / trials - expected).abs().max()) < 6 * spread
    everything = reveal(targets + 1, blocks, 1.0, draws)
    assert torch.equal(everything, counted)
    assert (
        reveal(
            targets[:1].expand(1, 8) + 1, Blocks(targets[:1], blocks.lengths[:1], targets[:1], counted[:1]), 0.29, draws
        ).sum()
        == 2
    )


def test_what_is_revealed_is_shown_and_not_counted() -> None:
    """The loss with glancing is that of the second pass over the hidden targets, recomputed by hand."""
    network, (blocks, batch) = random_network("marian", BLOCK), some_blocks(8, seed=1)
    ours = drafter_loss(network, batch.source, batch.source_mask, blocks, generator(5), glancing=0.7)
    states = network.encode(batch.source, batch.source_mask)
    hidden = torch.full((8, BLOCK), network.mask_token_id)
    first = network.block_logits(states, batch.source_mask, block_inputs(blocks.prefix, blocks.lengths, hidden, 32))
    shown = reveal(first.argmax(-1), blocks, 0.7, generator(5))
    assert int(shown.sum()) > 5
    inputs = block_inputs(blocks.prefix, blocks.lengths, torch.where(shown, blocks.targets, hidden), 32)
    second = network.block_logits(states, batch.source_mask, inputs).log_softmax(-1)
    kept = [
        float(second[row, place, blocks.targets[row, place]])
        for row in range(8)
        for place in range(BLOCK)
        if blocks.counted[row, place] and not shown[row, place]
    ]
    assert ours.item() == pytest.approx(-sum(kept) / len(kept), abs=1e-10)


def test_the_ratio_is_annealed_and_bounded() -> None:
    assert [glancing_ratio(x) for x in (-1.0, 0.0, 0.5, 1.0, 2.0)] == pytest.approx([0.5, 0.5, 0.4, 0.3, 0.3])
    blocks, _ = some_blocks()
    with pytest.raises(InputError, match=r"glancing 1\.5: expected a share from 0 to 1"):
        reveal(blocks.targets, blocks, 1.5, generator())


def test_a_loss_without_targets_is_zero() -> None:
    assert token_loss(torch.randn(2, 3, 7), torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, 3, dtype=torch.bool)) == 0


@pytest.mark.parametrize("family", ["marian", "bart"])
def test_gradients_reach_every_parameter(family: str) -> None:
    """But those of tokens that occur nowhere and of positions that none has; sinusoidal positions are not learned."""
    network, (blocks, batch) = random_network(family, BLOCK), some_blocks(24)
    learned = [
        (name, weight) for name, weight in network.named_parameters() if "embed_positions" not in name or family == "bart"
    ]
    for _, weight in learned:
        weight.requires_grad_(True)
    drafter_loss(network, batch.source, batch.source_mask, blocks, generator(), glancing=0.5, label_smoothing=0.1).backward()
    assert len(learned) > 50
    for name, weight in learned:
        assert weight.grad is not None, name
        assert float(weight.grad.abs().max()) > 0 or name.endswith("k_proj.bias"), name


def test_the_toy_drafter_learns_whole_blocks(trained: Pair) -> None:
    """Held-out sentences: most drafts agree, where a random network's hardly ever do."""
    batch = batch_of(100, generator(77))
    blocks = cut_blocks(batch.outputs, batch.lengths, torch.zeros(100, dtype=torch.long), trained.drafter.block_size, START)
    learned = leading_correct(trained.drafter, batch.source, batch.source_mask, blocks)
    untrained = leading_correct(random_network("marian", trained.drafter.block_size), batch.source, batch.source_mask, blocks)
    possible = blocks.counted.sum(-1).double().mean()
    assert trained.drafter_losses[-1] < 0.3 * trained.drafter_losses[0]
    assert learned.double().mean() > 0.7 * possible
    assert untrained.double().mean() < 0.1 * possible
    assert bool((learned == blocks.counted.sum(-1)).any())


def test_leading_correct_counts_up_to_the_first_mistake(trained: Pair) -> None:
    batch = batch_of(40, generator(78))
    blocks = cut_blocks(batch.outputs, batch.lengths, random_prefix_lengths(batch.lengths, generator()), 7, START)
    block = torch.full((40, 7), trained.drafter.mask_token_id)
    inputs = block_inputs(blocks.prefix, blocks.lengths, block, 32)
    guesses = trained.drafter(batch.source, batch.source_mask, inputs).argmax(-1).tolist()
    for row, count in enumerate(leading_correct(trained.drafter, batch.source, batch.source_mask, blocks).tolist()):
        targets = blocks.targets[row][blocks.counted[row]].tolist()
        agreeing = [guess == target for guess, target in zip(guesses[row], targets, strict=False)]
        assert count == (agreeing.index(False) if False in agreeing else len(targets))


def test_averaged_checkpoints_are_the_mean_in_their_own_dtype() -> None:
    states = [{"a": torch.full((2, 3), float(i)), "b": torch.tensor([i], dtype=torch.bfloat16)} for i in range(10)]
    mean = average_states(states)
    assert torch.equal(mean["a"], torch.full((2, 3), 4.5))
    assert mean["b"].dtype == torch.bfloat16
    with pytest.raises(InputError, match="at least one checkpoint"):
        average_states([])
    with pytest.raises(InputError, match="expected checkpoints of one network"):
        average_states([states[0], {"a": torch.zeros(2, 3)}])
