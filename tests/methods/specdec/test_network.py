"""The block network: what may look at what, what is saved, and that a batch's padding changes nothing."""

from pathlib import Path

import pytest
import torch
from toy_blocks import CONFIGS, EOS, FIRST, START, VOCAB, random_network, seeded
from transformers import BartForConditionalGeneration, MarianMTModel, T5Config

from methods.errors import InputError
from methods.specdec.network import BlockNetwork, block_config, load_network, new_network
from methods.specdec.stack import BlockInputs, block_inputs

BLOCK, LIMIT = 4, 32


@pytest.fixture(params=sorted(CONFIGS))
def network(request: pytest.FixtureRequest) -> BlockNetwork:
    return random_network(request.param, BLOCK)


def masks(network: BlockNetwork, rows: int = 1) -> torch.Tensor:
    return torch.full((rows, network.block_size), network.mask_token_id)


def run(network: BlockNetwork, source: list[int], text: list[int], block: torch.Tensor | None = None) -> torch.Tensor:
    inputs = block_inputs(torch.tensor([text]), torch.tensor([len(text)]), masks(network) if block is None else block, LIMIT)
    return network(torch.tensor([source]), None, inputs)[0]


def test_it_drafts_the_verifiers_vocabulary_and_never_mask(network: BlockNetwork) -> None:
    assert network.vocab_size == VOCAB == network.mask_token_id
    assert network.config.vocab_size == VOCAB + 1
    assert run(network, [5, 6, EOS], [START, 7]).shape == (BLOCK, VOCAB)


def test_padding_of_sources_and_texts_changes_nothing(network: BlockNetwork) -> None:
    """Also the poisoned kind: what lies in the padding is any token."""
    generator = torch.Generator().manual_seed(0)
    source, text = (torch.randint(FIRST, VOCAB, (3, n), generator=generator) for n in (7, 9))
    source_lengths, lengths = torch.tensor([7, 2, 5]), torch.tensor([1, 9, 4])
    source_mask = torch.arange(7) < source_lengths.unsqueeze(1)
    batch = network(source, source_mask, block_inputs(text, lengths, masks(network, 3), LIMIT))
    for row, (size, length) in enumerate(zip(source_lengths.tolist(), lengths.tolist(), strict=True)):
        alone = run(network, source[row, :size].tolist(), text[row, :length].tolist())
        torch.testing.assert_close(batch[row], alone, rtol=0, atol=1e-10)


def test_the_block_comes_first_and_order_is_positions_alone(network: BlockNetwork) -> None:
    """The same columns in the order of the text, start token first, give the same logits."""
    text = [START, 5, 6, 7, 8]
    inputs = block_inputs(torch.tensor([text]), torch.tensor([5]), masks(network), LIMIT)
    assert inputs.positions.tolist() == [[5, 6, 7, 8, 0, 1, 2, 3, 4]]
    assert inputs.tokens[0, BLOCK:].tolist() == text
    source = torch.tensor([[4, 9, EOS]])
    turned = [[*range(BLOCK), *reversed(range(BLOCK, BLOCK + 5))]]
    mixed = BlockInputs(
        *(torch.gather(part, 1, torch.tensor(turned)) for part in (inputs.tokens, inputs.positions, inputs.allowed))
    )
    torch.testing.assert_close(network(source, None, mixed), network(source, None, inputs), rtol=0, atol=1e-12)


def test_every_place_sees_text_block_and_source_in_both_directions(network: BlockNetwork) -> None:
    """No causal mask: the first place of the block feels what stands at the last, and the text the block."""
    source, text = [4, 9, 5, EOS], [START, 5, 6, 7]
    before = run(network, source, text)
    revealed = masks(network)
    revealed[0, -1] = 3
    for changed in (
        run(network, source, text, revealed),
        run(network, source, [START, 5, 3, 7]),
        run(network, [4, 9, 3, EOS], text),
    ):
        assert float((changed - before).abs().amax(-1).min()) > 1e-6


def test_masks_past_the_position_limit_are_not_looked_at(network: BlockNetwork) -> None:
    """Near the limit the block is shorter: what stands there changes nothing."""
    text = [START, *[5] * (LIMIT - 3)]
    lengths, source = torch.tensor([len(text)]), torch.tensor([[4, EOS]])
    inputs = [block_inputs(torch.tensor([text]), lengths, block, LIMIT) for block in (masks(network), masks(network))]
    inputs[1].tokens[0, 2:BLOCK] = 6
    assert inputs[0].allowed[0, :BLOCK].tolist() == [True, True, False, False]
    assert int(inputs[0].positions.max()) == LIMIT - 1
    first, second = (network(source, None, one)[0, :2] for one in inputs)
    assert torch.equal(first, second)


def test_a_saved_network_loads_from_its_folder(network: BlockNetwork, tmp_path: Path) -> None:
    network.float().save_pretrained(tmp_path)
    assert {"config.json", "model.safetensors"} <= {file.name for file in tmp_path.iterdir()}
    loaded = load_network(tmp_path)
    assert type(loaded) is type(network)
    assert (loaded.block_size, loaded.mask_token_id, loaded.training) == (BLOCK, VOCAB, False)
    assert torch.equal(run(loaded, [5, EOS], [START, 7]), run(network, [5, EOS], [START, 7]))


def test_a_plain_checkpoint_is_refused(tmp_path: Path) -> None:
    seeded(lambda: MarianMTModel(CONFIGS["marian"]())).save_pretrained(tmp_path / "verifier")
    with pytest.raises(InputError, match="it holds a 'marian' model without block_size or positions; expected a drafter"):
        load_network(tmp_path / "verifier")
    with pytest.raises(InputError, match=r"no config\.json there"):
        load_network(tmp_path)


@pytest.mark.parametrize("block_size", [0, -1, LIMIT, 1000])
def test_block_sizes_that_do_not_fit_are_refused(block_size: int) -> None:
    with pytest.raises(InputError, match=f"block_size {block_size}: expected an integer from 1 to {LIMIT - 1}"):
        block_config(CONFIGS["marian"](), block_size)


def test_other_architectures_are_refused() -> None:
    with pytest.raises(InputError, match="model type 't5': a block drafter is built as one of marian, bart"):
        block_config(T5Config(), 4)


@pytest.mark.parametrize(("family", "kind"), [("marian", MarianMTModel), ("bart", BartForConditionalGeneration)])
def test_a_network_may_begin_as_its_verifier(family: str, kind: type) -> None:
    """Its weights are the verifier's; the embedding of [MASK] is their mean."""
    verifier = seeded(lambda: kind(CONFIGS[family]()), 3)
    network = seeded(lambda: new_network(block_config(CONFIGS[family](), BLOCK), verifier), 4)
    theirs, ours = verifier.state_dict(), network.state_dict()
    for name in theirs:
        same = ours[name] if ours[name].shape == theirs[name].shape else ours[name][..., :VOCAB, :]
        if "final_logits_bias" in name:
            same = ours[name][:, :VOCAB]
        assert torch.equal(same, theirs[name]), name
    embedding = ours["model.shared.weight"]
    torch.testing.assert_close(embedding[-1], embedding[:-1].mean(0))
