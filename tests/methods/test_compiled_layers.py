"""Decoder layers in one compiled call: against torch's operations in fp64, and the same bits in any company."""

import pytest
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GemmaConfig,
    GemmaForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MarianConfig,
    MarianMTModel,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

from kernels import native
from kernels.inputs import InputError
from kernels.layers.decoder import SOURCE
from kernels.products.matrix import COMPILED, TORCH, Choice
from methods.models import stack_for
from methods.ppd.memory import Candidates
from methods.session import ModelSession
from methods.types import Inputs

pytestmark = pytest.mark.skipif(native.library(SOURCE) is None, reason="no C++ compiler here")
# A head of 24 fills no whole number of vectors; 192 x 1,024 numbers are worth a second thread.
LLAMA = dict(vocab_size=97, hidden_size=192, intermediate_size=512, num_hidden_layers=3, num_attention_heads=8)
LLAMA |= dict(num_key_value_heads=2, head_dim=24, max_position_embeddings=512, initializer_range=0.2)
GPT2 = dict(vocab_size=97, n_embd=192, n_inner=1024, n_layer=3, n_head=8, n_positions=512, initializer_range=0.2)
T5 = dict(vocab_size=97, d_model=192, d_kv=24, d_ff=1024, num_layers=1, num_decoder_layers=3, num_heads=8)
T5 |= dict(relative_attention_max_distance=20, decoder_start_token_id=0, initializer_factor=0.3)
BART = dict(vocab_size=97, d_model=192, encoder_layers=1, decoder_layers=3, encoder_attention_heads=8)
BART |= dict(decoder_attention_heads=8, encoder_ffn_dim=64, decoder_ffn_dim=1024, max_position_embeddings=512)
BART |= dict(decoder_start_token_id=0, pad_token_id=1, eos_token_id=2, init_std=0.2)
WHISPER = BART | dict(num_mel_bins=8, max_source_positions=25, max_target_positions=512, begin_suppress_tokens=None)
KINDS = {
    "llama": (LlamaConfig, LlamaForCausalLM, LLAMA),
    "one key head for each": (LlamaConfig, LlamaForCausalLM, LLAMA | {"num_key_value_heads": 8, "head_dim": 32}),
    "heads of no whole vectors": (LlamaConfig, LlamaForCausalLM, LLAMA | {"head_dim": 22}),
    "heads of two numbers": (LlamaConfig, LlamaForCausalLM, LLAMA | {"head_dim": 2}),
    "a window that slides": (MistralConfig, MistralForCausalLM, LLAMA | {"sliding_window": 17}),
    "biases": (Qwen2Config, Qwen2ForCausalLM, LLAMA),
    "gemma": (GemmaConfig, GemmaForCausalLM, LLAMA),
    "gpt2": (GPT2Config, GPT2LMHeadModel, GPT2),
    "gpt2, scaled by layer": (GPT2Config, GPT2LMHeadModel, GPT2 | {"scale_attn_by_inverse_layer_idx": True}),
    "t5": (T5Config, T5ForConditionalGeneration, T5),
    "t5 with gates": (T5Config, T5ForConditionalGeneration, T5 | {"feed_forward_proj": "gated-gelu"}),
    "t5, heads of no whole vectors": (T5Config, T5ForConditionalGeneration, T5 | {"d_kv": 13}),
    "bart": (BartConfig, BartForConditionalGeneration, BART),
    "marian": (MarianConfig, MarianMTModel, BART | {"activation_function": "swish"}),
    "whisper": (WhisperConfig, WhisperForConditionalGeneration, WHISPER),
}


def model_of(kind: str, dtype: torch.dtype = torch.float64) -> torch.nn.Module:
    config, family, settings = KINDS[kind]
    torch.manual_seed(3)
    model = family(config(**settings)).to(dtype).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "norm" in name or ".ln_" in name:
            parameter.data.add_(torch.randn_like(parameter) / 4)
    return model


def session_of(model: torch.nn.Module, choice: Choice = COMPILED, *lengths: int) -> ModelSession:
    """A session behind prompts of these lengths; where prompts are an encoder's sources, behind as many decoded tokens."""
    session = ModelSession(stack_for(model, choice))
    generator = torch.Generator().manual_seed(5)
    prompts = tuple(tuple(torch.randint(3, 97, (length,), generator=generator).tolist()) for length in lengths)
    features = None
    if session.stack.feature_shape is not None:
        features = torch.randn(len(lengths), *session.stack.feature_shape, generator=generator, dtype=torch.float64)
    session.prefill(Inputs(prompts, features))
    if session.stack.encodes_prompts:
        for tokens in torch.randint(3, 97, (len(lengths), max(lengths)), generator=generator).split(9, 1):
            session.extend(tokens)
        session.rewind([max(lengths) - length for length in lengths])
    return session


@pytest.mark.parametrize("kind", list(KINDS))
def test_they_are_what_torch_computes(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From nothing cached, behind 39 tokens, in batches of equal and of different lengths; some layers of all as well."""
    model = model_of(kind)
    few = (([1], 1), ([1], 7), ([40], 1), ([40], 6), ([30, 30, 30], 5), ([40, 3, 22], 4))
    for lengths, num_new in (*few, ([4], 90), ([130], 5), ([61, 7, 130], 44)):
        ours, torchs = session_of(model, COMPILED, *lengths), session_of(model, TORCH, *lengths)
        tokens = torch.randint(97, (len(lengths), num_new))
        with monkeypatch.context() as patch:
            patch.setattr(ours.stack, "run_by_torch", lambda *_: pytest.fail("torch's layers ran"))
            found = ours.extend(tokens)
            ours.rewind([num_new] * len(lengths))
            parts = ours.embed(tokens)
            for first, last in ((0, 1), (1, 3)):
                parts = ours.run_layers(parts, first, last)
        torch.testing.assert_close(found, torchs.extend(tokens), rtol=0, atol=1e-10)
        assert torch.equal(parts, ours.hidden)
        again = torch.randint(97, (len(lengths), 2))  # what was stored is what torch stores
        torch.testing.assert_close(ours.extend(again), torchs.extend(again), rtol=0, atol=1e-10)


@pytest.mark.parametrize("length", [5, 131])
@pytest.mark.parametrize("kind", ["t5", "t5 with gates", "t5, heads of no whole vectors", "bart", "marian", "whisper"])
def test_encoders_are_what_torch_computes(kind: str, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one source, of several with padding, and of sound."""
    model = model_of(kind)
    ours, torchs = (stack_for(model, choice) for choice in (COMPILED, TORCH))
    monkeypatch.setattr(ours, "run_encoder_by_torch", lambda *_: pytest.fail("torch's layers ran"))
    if ours.feature_shape is not None:
        features = torch.randn(3, *ours.feature_shape, dtype=torch.float64)
        torch.testing.assert_close(ours.hear(features), torchs.hear(features), rtol=0, atol=1e-10)
        return
    tokens, mask = torch.randint(3, 97, (3, length)), torch.arange(length) < torch.tensor([[length], [2], [length // 2]])
    torch.testing.assert_close(ours.encode(tokens[:1], None), torchs.encode(tokens[:1], None), rtol=0, atol=1e-10)
    found, right = (stack.encode(tokens, mask.long()) for stack in (ours, torchs))
    torch.testing.assert_close(found[mask], right[mask], rtol=0, atol=1e-10)
    alone = ours.encode(tokens[1:2, :2], None)
    torch.testing.assert_close(found[1, :2], alone[0], rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", list(KINDS))
def test_single_precision_is_as_near_as_torch_is(kind: str) -> None:
    """The distance from fp64 is that of torch's fp32, but for a factor that rounding may have."""
    tokens = torch.randint(97, (1, 6), generator=torch.Generator().manual_seed(1))
    right = session_of(model_of(kind), TORCH, 40).extend(tokens)
    ours, torchs = (session_of(model_of(kind, torch.float32), one, 40).extend(tokens) for one in (COMPILED, TORCH))
    assert (ours - right).abs().max() < 3 * (torchs - right).abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["llama", "biases", "gpt2", "t5", "bart"])
def test_a_token_gets_the_same_bits_alone_and_among_others(kind: str, dtype: torch.dtype) -> None:
    model = model_of(kind, dtype)
    session = session_of(model, COMPILED, 45)
    tokens = torch.randint(97, (1, 9))
    together = session.extend(tokens)
    session.rewind([9])
    alone = torch.cat([session.extend(tokens[:, place : place + 1]) for place in range(9)], 1)
    assert torch.equal(together, alone)
    session.rewind([9])
    session.select([0, 0, 0])
    assert torch.equal(session.extend(tokens.expand(3, -1))[2:], together)
    session.rewind([9, 2, 5])  # rows of different lengths
    session.extend(tokens[:, 4:6].expand(3, -1))
    session.rewind([2, 2, 4])
    session.select([2])
    assert torch.equal(session.extend(tokens[:, 2:]), together[:, 2:])
    session.rewind([9])
    many = torch.cat((tokens, torch.randint(97, (1, 91))), 1)
    assert torch.equal(session.extend(many)[:, :9], together)


@pytest.mark.parametrize("choice", [COMPILED, TORCH], ids=["compiled", "torch"])
@pytest.mark.parametrize("kind", ["llama", "biases", "a window that slides", "gpt2"])
def test_a_prompt_is_cached_as_any_pass_caches_it(kind: str, choice: Choice, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing more of the last layer is computed: what its attention gives is for nobody."""
    model = model_of(kind)
    stack = stack_for(model, choice)
    session, prompt = ModelSession(stack), tuple(torch.randint(97, (60,)).tolist())
    asked = []
    run = type(stack).run
    monkeypatch.setattr(type(stack), "run", lambda *given: asked.append(run(*given)) or asked[-1])
    session.prefill(Inputs((prompt,)))
    read = session._cache[:, :, :59].clone()
    session.rewind([59])
    session.run_layers(session.embed(torch.tensor([prompt[:-1]])), 0, session.num_layers)
    assert torch.equal(session._cache[:, :, :59], read)
    before_last, whole = asked
    session.rewind([59])
    hidden = session.run_layers(session.embed(torch.tensor([prompt[:-1]])), 0, session.num_layers - 1)
    assert torch.equal(before_last, hidden)
    assert not torch.equal(whole, hidden)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_window_gives_the_same_bits_wherever_it_begins(dtype: torch.dtype) -> None:
    """Places before it are left out 256 at a time: with nine tokens at once later than with the last of them alone."""
    session = session_of(model_of("a window that slides", dtype), COMPILED, 265)
    tokens = torch.randint(97, (1, 20))
    together = session.extend(tokens)
    torch_session = session_of(model_of("a window that slides", dtype), TORCH, 265)
    bound = 1e-10 if dtype == torch.float64 else 1e-2
    torch.testing.assert_close(together, torch_session.extend(tokens), rtol=0, atol=bound)
    session.rewind([20])
    assert torch.equal(torch.cat([session.extend(one) for one in tokens.split(1, 1)], 1), together)
    session.rewind([20])
    assert torch.equal(torch.cat([session.extend(some) for some in tokens.split(9, 1)], 1), together)


@pytest.mark.parametrize("count", [6, 100])  # of one block of queries and of three
@pytest.mark.parametrize("kind", ["llama", "gpt2", "t5 with gates", "bart"])
def test_the_number_of_threads_changes_no_bit(kind: str, count: int) -> None:
    session, found, before = session_of(model_of(kind, torch.float32), COMPILED, 20), [], torch.get_num_threads()
    tokens = torch.randint(97, (1, count))
    try:
        for threads in (1, 2, 3, 4):
            torch.set_num_threads(threads)
            session.extend(tokens)
            session.rewind([count])
            found.append(session.hidden)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, found[0]) for one in found)


def test_weights_that_move_are_followed() -> None:
    """torch moves a model to shared memory where another process gets it: what lay at the old place may be anything."""
    model = model_of("llama")
    session, tokens = session_of(model, COMPILED, 1), torch.arange(6)[None]
    before = session.extend(tokens)
    model.share_memory()
    with torch.inference_mode():
        for name, parameter in model.named_parameters():
            if "proj" in name:
                parameter.mul_(1.1)
    session.rewind([6])
    found = session.extend(tokens)
    torch.testing.assert_close(found, session_of(model, TORCH, 1).extend(tokens), rtol=0, atol=1e-10)
    assert not torch.allclose(found, before)


@pytest.mark.parametrize("slots", [range(2, 3), range(1, 2), range(3)])
def test_candidates_in_slots_see_the_text_and_themselves(slots: range, monkeypatch: pytest.MonkeyPatch) -> None:
    """PPD's sub-processes keep candidates' keys before the text's: one candidate or several, slots of others behind them."""
    model, num_slots, length = model_of("llama"), 3, 9
    compiled, by_torch = (stack_for(model, choice) for choice in (COMPILED, TORCH))
    monkeypatch.setattr(compiled, "run_by_torch", lambda *given: pytest.fail("candidates ran by torch"))
    torch.manual_seed(1)
    storage = torch.randn(3, 1, 64, 4, 24, dtype=torch.float64)
    found = []
    for stack in (compiled, by_torch):
        own = storage.clone()
        found.append((Candidates(stack, own, num_slots, slots).run([11, 12, 11][: len(slots)], length, 2), own))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-10)
    assert not torch.equal(found[0][1], storage)


def test_a_mask_of_several_new_tokens_is_refused() -> None:
    """It has one row a text, so that all of a text's new tokens would see the same."""
    session, tokens = session_of(model_of("llama"), COMPILED, 1), torch.zeros((1, 2), dtype=torch.long)
    frame = session._frame(tokens, 0, 3)
    frame.allowed = torch.zeros(1, frame.text.shape[2], dtype=torch.float64)
    with pytest.raises(InputError, match=r"a mask \[1, \d+\] of 2 new tokens a row: expected \[1, \d+\], and one token"):
        session.stack.run(session.stack.embed(tokens, frame), 0, 3, frame)


@pytest.mark.parametrize(
    ("choice", "num_new", "by_torch"),
    [(Choice(192 * 1024, 8), 8, False), (Choice(1 << 60, 8), 8, False), (Choice(0, 8), 9, True), (TORCH, 1, True)],
)
def test_many_rows_are_left_to_torch_and_small_weights_are_not(
    choice: Choice, num_new: int, by_torch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, asked = session_of(model_of("llama"), choice, 1), []
    torchs = session.stack.run_by_torch
    monkeypatch.setattr(session.stack, "run_by_torch", lambda *given: asked.append(given) or torchs(*given))
    session.extend(torch.zeros((1, num_new), dtype=torch.long))
    assert bool(asked) == by_torch


@pytest.mark.parametrize("choice", [COMPILED, TORCH])
def test_an_encoder_of_no_layers_is_one(choice: Choice) -> None:
    model = BartForConditionalGeneration(BartConfig(**BART | {"encoder_layers": 0})).double().eval()
    tokens = torch.randint(3, 97, (1, 9))
    right = model.get_encoder()(input_ids=tokens).last_hidden_state
    torch.testing.assert_close(stack_for(model, choice).encode(tokens, None), right, rtol=0, atol=1e-10)
