"""Layers that compiled calls compute in a family's place: what is told to be one, and that it gives what the family gives."""

import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from kernels import native
from kernels.layers.decoder import SOURCE, DecoderLayers, compiled_layers
from kernels.products.matrix import COMPILED, TORCH, Choice
from methods.models.general import GeneralEncoderDecoderStack, GeneralStack
from methods.models.layers import PassCache
from methods.models.parts import describe
from methods.session import ModelSession
from methods.types import Inputs
from tests.methods.test_general_models import FAMILIES, PAIRED, POSITIONS, SIZES, build, logits_of, paired_model, text

pytestmark = pytest.mark.skipif(native.library(SOURCE) is None, reason="no C++ compiler here")
# With norms behind, norms of queries and keys, windows, a share of what is added; positions that turn in part or not at all.
# And feed-forward beside attention, by one norm or two; heads whose queries, keys and values lie side by side.
TOLD = (
    "GPTBigCode", "GPTNeoX", "Gemma3Text", "Granite", "Llama", "OPT", "Olmo2", "Phi", "Phi3", "Qwen3", "SmolLM3", "StableLm",
    "Starcoder2",
)  # fmt: skip
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "GPTNeoX in turns": ("GPTNeoX", {"use_parallel_residual": False}),
    "Granite with a share": ("Granite", {"residual_multiplier": 0.3, "attention_multiplier": 0.2}),
    "StableLm side by side": ("StableLm", {"use_parallel_residual": True}),
    "Phi3 turned in part": ("Phi3", {"partial_rotary_factor": 0.5}),
    "OPT with norms behind": ("OPT", {"do_layer_norm_before": False}),
    "Qwen3 with biases": ("Qwen3", {"attention_bias": True}),
    "Gemma3Text without windows": ("Gemma3Text", {"sliding_window": 64}),
}
TOLD_PAIRED = ("Bart", "Blenderbot", "M2M100", "MBart", "Pegasus")
# Queries that turn by neighbours, scores that are bounded, experts, latent keys, slopes, other parts.
OWN = sorted({*FAMILIES} - {*TOLD})


def single(name: str) -> Any:
    family, settings = VARIANTS.get(name, (name, {}))
    return perturbed(build(family, **settings).to(torch.float32))


def perturbed(model: Any) -> Any:
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # norms and biases
                parameter.add_(torch.linspace(-0.3, 0.3, len(parameter)))
    return model


@pytest.fixture(scope="module", params=[*TOLD, *VARIANTS])
def told(request: pytest.FixtureRequest) -> tuple[Any, GeneralStack]:
    model = single(request.param)
    stack = GeneralStack(model, COMPILED)
    assert stack.num_compiled == 3
    return model, stack


@pytest.mark.parametrize("lengths", [(1,), (30,), (5, 17, 30), (12, 12)])
def test_they_give_what_the_family_gives(
    told: tuple[Any, GeneralStack], lengths: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind rewound texts, of different lengths too, and behind what windows of eight tokens hide."""
    model, stack = told
    prompts = [text(row, length) for row, length in enumerate(lengths)]
    session, calls = ModelSession(stack), []
    run = DecoderLayers.run
    monkeypatch.setattr(DecoderLayers, "run", lambda *given: calls.append(given) or run(*given))
    last = session.prefill(Inputs(tuple(map(tuple, prompts))))
    session.extend(torch.tensor([[first, *text(90 + row, 4)] for row, first in enumerate(last)]))
    session.rewind([4 - row % 2 for row in range(len(lengths))])
    more = [text(50 + row, 6) for row in range(len(lengths))]
    assert calls
    calls.clear()
    given = session.extend(torch.tensor(more))
    assert len(calls) == 3 * (1 if len(set(lengths)) == len(lengths) == 1 else len(lengths))  # no layer ran by itself
    for row, (prompt, own) in enumerate(zip(prompts, more, strict=True)):
        wanted = logits_of(model, [*prompt, *text(90 + row, 4)[: row % 2], *own])[-6:]
        torch.testing.assert_close(given[row], wanted, rtol=0, atol=2e-5 * float(wanted.abs().max()))


@pytest.fixture(scope="module", params=TOLD_PAIRED)
def told_paired(request: pytest.FixtureRequest) -> tuple[Any, GeneralEncoderDecoderStack]:
    model = perturbed(paired_model(request.param).to(torch.float32))
    stack = GeneralEncoderDecoderStack(model, COMPILED)
    assert stack.num_compiled == 3
    return model, stack


@pytest.mark.parametrize("lengths", [(7,), (4, 11), (6, 6)])
def test_decoders_of_a_source_give_what_the_family_gives(
    told_paired: tuple[Any, GeneralEncoderDecoderStack], lengths: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of sources with padding too, with norms before and behind, as rows exchange their places."""
    model, stack = told_paired
    sources = [text(row, length) for row, length in enumerate(lengths)]
    session = ModelSession(stack)
    first = session.prefill(Inputs(tuple(map(tuple, sources))))
    calls = []
    run = DecoderLayers.run
    monkeypatch.setattr(DecoderLayers, "run", lambda *given: calls.append(given) or run(*given))
    session.extend(torch.tensor([[start, *text(90 + row, 4)] for row, start in enumerate(first)]))
    session.rewind([4 - row for row in range(len(lengths))])
    order = list(reversed(range(len(lengths))))
    session.select(order)
    more = [text(50 + row, 5) for row in range(len(lengths))]
    calls.clear()
    given = session.extend(torch.tensor([more[row] for row in order]))
    assert len(calls) == 3 * len(lengths)  # no layer ran by itself
    for place, row in enumerate(order):
        decoded = torch.tensor([[first[row], *text(90 + row, 4)[:row], *more[row]]])
        with torch.no_grad():
            wanted = model(input_ids=torch.tensor([sources[row]]), decoder_input_ids=decoded).logits[0, -5:]
        torch.testing.assert_close(given[place], wanted, rtol=0, atol=2e-5 * float(wanted.abs().max()))


@pytest.mark.parametrize("family", sorted({*PAIRED} - {*TOLD_PAIRED}))
def test_other_decoders_of_a_source_stay_the_familys(family: str) -> None:
    """With distances in place of positions, with experts, or (LED) layers that return more than hidden states."""
    assert GeneralEncoderDecoderStack(paired_model(family).to(torch.float32), COMPILED).num_compiled == 0


def test_a_token_gets_the_same_bits_alone_and_among_others(told: tuple[Any, GeneralStack]) -> None:
    session = ModelSession(told[1])
    session.prefill(Inputs((tuple(text(0, 20)),)))
    hidden = session.embed(torch.tensor([text(1, 9)]))
    together = session.run_layers(hidden, 0, 3)
    session.rewind([9])
    alone = torch.cat([session.run_layers(one, 0, 3) for one in hidden.split(1, 1)], 1)
    assert torch.equal(together, alone)
    session.rewind([9])
    first = session.run_layers(hidden, 0, 1)
    assert torch.equal(session.run_layers(first, 1, 3), together)


def test_some_layers_of_a_source_are_those_of_all(told_paired: tuple[Any, GeneralEncoderDecoderStack]) -> None:
    session = ModelSession(told_paired[1])
    session.prefill(Inputs((tuple(text(0, 7)), tuple(text(1, 4)))))
    hidden = session.embed(torch.tensor([text(1, 5), text(2, 5)]))
    together = session.run_layers(hidden, 0, 3)
    session.rewind([5, 5])
    first = session.run_layers(hidden, 0, 1)
    assert torch.equal(session.run_layers(first, 1, 3), together)


def test_many_rows_and_other_masks_are_the_familys(monkeypatch: pytest.MonkeyPatch) -> None:
    model = single("Qwen3")
    session, calls = ModelSession(GeneralStack(model, Choice(0, 5))), []
    run = DecoderLayers.run
    monkeypatch.setattr(DecoderLayers, "run", lambda *given: calls.append(given) or run(*given))
    session.prefill(Inputs((tuple(text(0, 9)),)))
    session.extend(torch.tensor([text(1, 6)]))
    assert not calls
    session.extend(torch.tensor([text(2, 2)]))
    assert len(calls) == 3
    monkeypatch.setattr(PassCache, "window", lambda *_: None)
    given = session.extend(torch.tensor([text(3, 2)]))[0]
    assert len(calls) == 3
    wanted = logits_of(model, [*text(0, 9)[:-1], *text(1, 6), *text(2, 2), *text(3, 2)])[-2:]
    torch.testing.assert_close(given, wanted, rtol=0, atol=2e-5 * float(wanted.abs().max()))


def test_a_masks_window_is_told() -> None:
    """One that lets each see all before it, some of these, or others: a hole, a token ahead, chunks."""
    cache = PassCache([], torch.zeros(1, 1, 9, 2, 4), torch.zeros(1, 1, 3, 2, 4), 0)
    all_before = torch.ones(3, 9, dtype=torch.bool).tril(6)
    some = all_before.triu(6 - 3)
    assert cache.window(None) == 9
    assert cache.window(all_before) == cache.window(all_before[None, None].expand(2, 1, 3, 9)) == 9
    assert cache.window(torch.where(some, 0.0, float("-inf"))[None, None]) == cache.window(some) == 4
    biases = torch.where(some, torch.where(torch.arange(9) % 2 == 0, 0.0, -0.5), float("-inf"))
    hole, ahead, chunk = all_before.clone(), all_before.clone(), all_before.clone()
    hole[1, 2], ahead[0, 7], chunk[:, :6] = False, True, False
    different = torch.stack((all_before, some))[:, None]
    others = biases, torch.where(some, 0.0, -0.5), torch.zeros_like(all_before), {"full_attention": all_before}
    for mask in (hole, ahead, chunk, different, all_before[:, 1:], *others):
        assert cache.window(mask) is None


@pytest.mark.parametrize("family", OWN)
def test_what_computes_something_else_stays_the_familys(family: str) -> None:
    assert GeneralStack(single(family), COMPILED).num_compiled == 0


def test_other_numbers_and_choices_leave_layers_alone() -> None:
    assert GeneralStack(build("Qwen3"), COMPILED).num_compiled == 0  # whose norms are of fp32, so that ours would differ
    for choice in (TORCH, Choice(0, 32, "bf16")):
        assert GeneralStack(single("Qwen3"), choice).num_compiled == 0


def changed(change: Callable[[Any, Tensor], Any]) -> Callable[[Any], None]:
    """A fault that changes what a layer's attention gives."""

    def put(layer: Any) -> None:
        attention, forward = layer.self_attn, layer.self_attn.forward
        attention.forward = lambda *given, **named: change(named, forward(*given, **named))

    return put


def scaled_far_away(named: Any, made: Any) -> Any:
    """As Ministral 3 scales queries: behind the length that it was trained on."""
    far = named["position_ids"][..., None] >= 60
    return torch.where(far, 1.01 * made[0], made[0]), made[1]


class QuickGelu(nn.Module):
    def forward(self, numbers: Tensor) -> Tensor:
        return numbers * torch.sigmoid(1.702 * numbers)


class ClippedSilu(nn.Module):
    def forward(self, numbers: Tensor) -> Tensor:
        return nn.functional.silu(numbers).clamp(max=10)


class OfTwo(nn.Module):
    """Cannot be tried alone, as one that takes two arguments."""

    def forward(self, numbers: Tensor) -> Tensor:
        if numbers.numel() > 1000:
            raise TypeError("missing 1 required positional argument")
        return nn.functional.silu(numbers)


class DoubleSilu(nn.Module):
    """Another dtype than what goes in, as of an activation that has weights in fp64."""

    def forward(self, numbers: Tensor) -> Tensor:
        return nn.functional.silu(numbers.double()) if numbers.numel() > 1000 else nn.functional.silu(numbers)


class Narrow(nn.Linear):
    """Reads the first half of what enters, by a weight of its own."""

    def __init__(self, whole: nn.Linear) -> None:
        super().__init__(whole.in_features // 2, whole.out_features, bias=False)
        self.weight.data = whole.weight.data[:, : whole.in_features // 2].clone()

    def forward(self, numbers: Tensor) -> Tensor:
        return super().forward(numbers[..., : self.in_features])


def without_mask(layer: Any) -> None:
    forward = layer.forward
    layer.forward = lambda hidden, **named: forward(hidden, **{**named, "attention_mask": None})


FAULTS: dict[str, Callable[[Any], Any]] = {
    "attention times 1.001": changed(lambda _, made: (1.001 * made[0], made[1])),
    "attention behind a position": changed(scaled_far_away),
    "attention that is clipped": changed(lambda _, made: (made[0].clamp(-1.5, 1.5), made[1])),
    "an activation that is nearly ours": lambda layer: setattr(layer.mlp, "act_fn", QuickGelu()),
    "an activation that is clipped": lambda layer: setattr(layer.mlp, "act_fn", ClippedSilu()),
    "an activation of two": lambda layer: setattr(layer.mlp, "act_fn", OfTwo()),
    "an activation of another dtype": lambda layer: setattr(layer.mlp, "act_fn", DoubleSilu()),
    "a hook": lambda layer: layer.mlp.register_forward_hook(lambda *_: None),
    "keys of other inputs": lambda layer: setattr(layer.self_attn, "k_proj", Narrow(layer.self_attn.k_proj)),
    "another part": lambda layer: setattr(layer.mlp, "router", nn.Linear(32, 2)),
    "a share that its outcome does not have": lambda layer: setattr(layer, "residual_multiplier", 0.9),
    "no mask": without_mask,
}


NOT_SEEN = {("Olmo2", "attention times 1.001"), ("Olmo2", "attention behind a position")}  # whose norm behind takes scales away


@pytest.mark.parametrize("family", ["Qwen3", "Olmo2"])
@pytest.mark.parametrize("name", FAULTS)
def test_the_trial_catches(name: str, family: str) -> None:
    """Faults of one layer, which then stays the family's; the others do not mind."""
    model = single(family)
    FAULTS[name](model.model.layers[1])
    stack = GeneralStack(model, COMPILED)
    assert stack.num_compiled == (3 if (family, name) in NOT_SEEN else 2)
    session = ModelSession(stack)
    last = session.prefill(Inputs(((5,),)))
    given = session.extend(torch.tensor([[last[0]]]))[0]
    torch.testing.assert_close(given, logits_of(model, [5]), rtol=0, atol=1e-4)


def test_the_trial_catches_another_attention_to_the_source() -> None:
    model = perturbed(paired_model("MBart").to(torch.float32))
    model.get_decoder().layers[1].encoder_attn.scaling = 0.5
    assert GeneralEncoderDecoderStack(model, COMPILED).num_compiled == 2


def test_what_the_loop_does_not_combine_has_no_calls() -> None:
    shares = describe(single("Granite with a share").model.layers[0], 2, 8, COMPILED)
    assert shares is not None
    assert compiled_layers([shares[0]], shares[1]) is not None
    interleaved = describe(single("GPTNeoX").gpt_neox.layers[0], 4, 8, COMPILED)
    assert interleaved is not None
    norms = describe(single("Qwen3").model.layers[0], 2, 8, COMPILED)
    assert norms is not None
    for layer, shape in (
        (replace(shares[0], parallel=True), replace(shares[1], norms_behind=True)),
        (shares[0], replace(shares[1], norms_behind=True)),
        (replace(interleaved[0], head_norms=norms[0].head_norms), interleaved[1]),
        (interleaved[0], replace(interleaved[1], key_heads=2)),
        (replace(shares[0], source=(shares[0].out, shares[0].out)), shares[1]),
    ):
        assert compiled_layers([layer], shape) is None


def test_what_only_shows_far_into_a_text_is_tried_there() -> None:
    """Attention that looks everywhere alike in random numbers, and to one token in the model's own."""
    model = single("Qwen3")

    def sharpen(named: Any, made: Any) -> Any:
        far = named["position_ids"][..., None] >= POSITIONS - 8
        large = named["hidden_states"].abs().amax(-1, keepdim=True) > 6
        return torch.where(far & large, 1.1 * made[0], made[0]), made[1]

    with torch.no_grad():
        model.model.embed_tokens.weight[:, -1] = 30
    changed(sharpen)(model.model.layers[0])
    assert GeneralStack(model, COMPILED).num_compiled == 2
    settings = {**SIZES, "head_dim": 8, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
    settings["rope_parameters"] |= {"llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 16}
    ministral = transformers.Ministral3ForCausalLM(transformers.Ministral3Config(**settings)).eval()
    assert GeneralStack(ministral, COMPILED).num_compiled == 0


@pytest.mark.parametrize("name", ["scaling", "variance_epsilon"])
def test_what_is_described_may_be_anything(name: str) -> None:
    model = single("Qwen3")
    layer = model.model.layers[1]
    setattr(layer.self_attn if name == "scaling" else layer.input_layernorm, name, 0.5)
    assert GeneralStack(model, COMPILED).num_compiled == 3


def test_weights_that_move_are_followed_and_no_copy_is_made() -> None:
    model = single("Qwen3")
    before = sum(one.untyped_storage().nbytes() for one in {one.data_ptr(): one for one in model.parameters()}.values())
    stack = GeneralStack(model, COMPILED)
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in model.parameters()}
    assert sum(storages.values()) == before
    session, tokens = ModelSession(stack), torch.tensor([text(1, 4)])
    session.prefill(Inputs((tuple(text(0, 9)),)))
    found = session.extend(tokens)
    model.share_memory()
    with torch.no_grad():
        for parameter in model.model.layers.parameters():
            parameter.mul_(1.1)
    session = ModelSession(stack)
    session.prefill(Inputs((tuple(text(0, 9)),)))
    moved = session.extend(tokens)
    wanted = logits_of(model, [*text(0, 9)[:-1], *text(1, 4)])[-4:]
    torch.testing.assert_close(moved[0], wanted, rtol=0, atol=2e-5 * float(wanted.abs().max()))
    assert not torch.allclose(found, moved)
    assert pickle.loads(pickle.dumps(stack)).num_compiled == 3
