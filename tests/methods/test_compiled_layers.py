"""Layers of Llama's kind in one compiled call: against torch's operations in fp64, and the same bits in any company."""

import pytest
import torch
from transformers import GemmaConfig, GemmaForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from kernels import native
from kernels.layers.gated import SOURCE
from kernels.products.few_rows import COMPILED, TORCH, Choice
from methods.models import stack_for
from methods.ppd.memory import Candidates
from methods.session import ModelSession
from methods.types import Inputs

pytestmark = pytest.mark.skipif(native.library(SOURCE) is None, reason="no C++ compiler here")
# A head of 24 fills no whole number of vectors; 192 x 1,024 numbers are worth a second thread.
SIZES = dict(vocab_size=97, hidden_size=192, intermediate_size=512, num_hidden_layers=3, num_attention_heads=8)
SIZES |= dict(num_key_value_heads=2, head_dim=24, max_position_embeddings=512, initializer_range=0.2)
KINDS = {
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "one key head for each": (LlamaConfig, LlamaForCausalLM, {"num_key_value_heads": 8, "head_dim": 32}),
    "biases": (Qwen2Config, Qwen2ForCausalLM, {}),
    "gemma": (GemmaConfig, GemmaForCausalLM, {}),
}


def model_of(kind: str, dtype: torch.dtype = torch.float64) -> torch.nn.Module:
    config, family, changes = KINDS[kind]
    torch.manual_seed(3)
    model = family(config(**SIZES | changes)).to(dtype).eval()
    for name, parameter in model.named_parameters():
        if name.endswith(("bias", "norm.weight")):
            parameter.data.add_(torch.randn_like(parameter) / 4)
    return model


def session_of(model: torch.nn.Module, choice: Choice = COMPILED, *lengths: int) -> ModelSession:
    session = ModelSession(stack_for(model, choice))
    generator = torch.Generator().manual_seed(5)
    session.prefill(Inputs(tuple(tuple(torch.randint(97, (length,), generator=generator).tolist()) for length in lengths)))
    return session


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("kind", list(KINDS))
def test_they_are_what_torch_computes(kind: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From nothing cached, behind 39 tokens, and in a batch; some layers of all as well."""
    model = model_of(kind)
    for lengths, num_new in (([1], 1), ([1], 7), ([40], 1), ([40], 6), ([30, 30, 30], 5)):
        ours, torchs = session_of(model, COMPILED, *lengths), session_of(model, TORCH, *lengths)
        tokens = torch.randint(97, (len(lengths), num_new))
        with monkeypatch.context() as patch:
            patch.setattr(ours.stack, "mask", lambda frame: pytest.fail("torch's layers ran"))
            found = ours.extend(tokens)
            ours.rewind([num_new] * len(lengths))
            parts = ours.embed(tokens)
            for first, last in ((0, 1), (1, 3)):
                parts = ours.run_layers(parts, first, last)
        torch.testing.assert_close(found, torchs.extend(tokens), rtol=0, atol=1e-10)
        assert torch.equal(parts, ours.hidden)
        again = torch.randint(97, (len(lengths), 2))  # what was stored is what torch stores
        torch.testing.assert_close(ours.extend(again), torchs.extend(again), rtol=0, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["llama", "biases"])
def test_a_token_gets_the_same_bits_alone_and_among_others(kind: str, dtype: torch.dtype, threads: int) -> None:
    session = session_of(model_of(kind, dtype), COMPILED, 45)
    tokens = torch.randint(97, (1, 9))
    together = session.extend(tokens)
    session.rewind([9])
    alone = torch.cat([session.extend(tokens[:, place : place + 1]) for place in range(9)], 1)
    assert torch.equal(together, alone)
    session.rewind([9])
    session.select([0, 0, 0])
    assert torch.equal(session.extend(tokens.expand(3, -1))[2:], together)


def test_the_number_of_threads_changes_no_bit() -> None:
    model, found, before = model_of("llama", torch.float32), [], torch.get_num_threads()
    tokens = torch.randint(97, (1, 6))
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            found.append(session_of(model, COMPILED, 20).extend(tokens))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*found)


def test_a_candidate_in_a_slot_sees_the_text_and_itself() -> None:
    """PPD's sub-processes keep a candidate's keys before the text's."""
    model, slots, length = model_of("llama"), 3, 9
    stacks = [stack_for(model, choice) for choice in (COMPILED, TORCH)]
    torch.manual_seed(1)
    storage = torch.randn(3, 1, 64, 4, 24, dtype=torch.float64)
    found = []
    for stack in stacks:
        own = storage.clone()
        found.append((Candidates(stack, own, slots, range(2, 3)).run([11], length, 2), own))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("choice", "num_new", "by_torch"),
    [(Choice(192 * 1024, 8), 8, False), (Choice(192 * 1024 + 1, 8), 8, True), (Choice(0, 8), 9, True), (TORCH, 1, True)],
)
def test_small_weights_and_many_rows_are_left_to_torch(
    choice: Choice, num_new: int, by_torch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, asked = session_of(model_of("llama"), choice, 1), []
    mask = session.stack.mask
    monkeypatch.setattr(session.stack, "mask", lambda frame: asked.append(frame) or mask(frame))
    session.extend(torch.zeros((1, num_new), dtype=torch.long))
    assert bool(asked) == by_torch
