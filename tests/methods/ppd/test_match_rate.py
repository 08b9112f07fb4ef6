"""Ranks of emitted tokens at early layers: against a simulation that goes token by token, and against transformers."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from methods.autoregressive import Autoregressive
from methods.errors import InputError
from methods.models import stack_for
from methods.models.base import Stack
from methods.options import EARLY_HEADS
from methods.ppd.heads import CHUNK, EarlyHead, OwnHead, TrainedHeads, early_ranks, load_heads, rank_of
from methods.sampling import Sampling, Uniforms
from methods.session import ModelSession
from methods.types import Inputs, Stop

FAMILIES = ("llama", "llama-gqa", "gpt2")
CANDIDATES = (1, 3, 5)
PROMPT = (5, 17, 3, 29, 8)
NUM_TOKENS = 2 * CHUNK + 11


def wandering(stack: Stack, family: str) -> Stack:
    """A random model whose head is tied to its embedding repeats its input; a shifted copy for a head makes it wander."""
    if family == "gpt2":
        stack.model.lm_head.weight = torch.nn.Parameter(stack.model.lm_head.weight.detach().roll(7, 0), requires_grad=False)
    return stack_for(stack.model)


def heads_for(stack: Stack, kind: str) -> EarlyHead:
    """The model's own head, or one a layer that differs from it as a trained one does."""
    if kind == "N":
        return OwnHead()
    generator = torch.Generator().manual_seed(7)
    own = stack.head_weight.t()
    noise = [torch.randn(own.shape, dtype=own.dtype, generator=generator) for _ in range(1, stack.num_layers)]
    return TrainedHeads({layer: own + 0.2 * change for layer, change in enumerate(noise, start=1)}, stack)


def greedy(stack: Stack, num_tokens: int = NUM_TOKENS) -> list[int]:
    stop = Stop(max_new_tokens=num_tokens)
    uniforms = Uniforms([0], num_tokens)
    return Autoregressive().generate(ModelSession(stack), Inputs((PROMPT,)), Sampling(), uniforms, stop)[0].tokens


def simulated(stack: Stack, head: EarlyHead, num_tokens: int) -> tuple[list[int], dict[tuple[int, int], list[bool]]]:
    """Decoding as PPD does it, a token and a layer at a time: the tokens, and per (layer, k) whether a candidate was right."""
    session = ModelSession(stack)
    token, tokens = session.prefill(Inputs((PROMPT,)))[0], []
    hits: dict[tuple[int, int], list[bool]] = {(layer, k): [] for layer in range(1, stack.num_layers) for k in CANDIDATES}
    for _ in range(num_tokens):
        hidden, candidates = session.embed(torch.tensor([[token]])), {}
        for layer in range(1, stack.num_layers + 1):
            hidden = session.run_layers(hidden, layer - 1, layer)
            if layer < stack.num_layers:
                candidates[layer] = session.head(hidden, head.weight(layer))[0, 0].topk(max(CANDIDATES)).indices.tolist()
        token = int(session.head(hidden)[0, 0].argmax())
        tokens.append(token)
        for (layer, k), found in hits.items():
            found.append(token in candidates[layer][:k])
    return tokens, hits


@pytest.mark.parametrize("kind", ["N", "Y"])
@pytest.mark.parametrize("family", FAMILIES)
def test_one_forward_pass_equals_the_step_by_step_simulation(deep: Callable[..., Stack], family: str, kind: str) -> None:
    stack = wandering(deep(family), family)
    head = heads_for(stack, kind)
    tokens, hits = simulated(stack, head, NUM_TOKENS)
    assert tokens == greedy(stack)
    layers = list(range(1, stack.num_layers))
    ranks = early_ranks(ModelSession(stack), Inputs((PROMPT,)), tokens, layers, [head])[0]
    assert ranks.shape == (len(layers), NUM_TOKENS)
    for (layer, k), expected in hits.items():
        assert (ranks[layers.index(layer)] < k).tolist() == expected, (layer, k)
    assert len(hits) == 15
    rates = [sum(found) / len(found) for found in hits.values()]
    assert min(rates) < 0.5 < max(rates)  # neither all right nor all wrong, so that an error could show


@pytest.mark.parametrize("kind", ["N", "Y"])
@pytest.mark.parametrize("family", FAMILIES)
def test_ranks_equal_those_of_transformers_hidden_states(tiny, family: str, kind: str) -> None:
    model = tiny.build(family)
    stack = stack_for(model)
    tokens, head = greedy(stack), heads_for(stack, kind)
    layers = [2, 1]
    ranks = early_ranks(ModelSession(stack), Inputs((PROMPT,)), tokens, layers, [head])[0]
    with torch.no_grad():
        states = model(torch.tensor([[*PROMPT, *tokens[:-1]]]), use_cache=False, output_hidden_states=True).hidden_states
        norm = model.transformer.ln_f if family == "gpt2" else model.model.norm
        for row, layer in enumerate(layers):
            weight = model.lm_head.weight if kind == "N" else head.weight(layer).t()
            logits = norm(states[layer])[0, len(PROMPT) - 1 :] @ weight.t()
            order = logits.argsort(dim=-1, descending=True).tolist()
            assert ranks[row].tolist() == [row.index(token) for row, token in zip(order, tokens, strict=True)]


def test_ties_rank_by_the_lowest_id() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randint(0, 4, (40, 13), generator=generator).double()
    tokens = torch.randint(0, 13, (40,), generator=generator)

    def brute(row: Sequence[float], token: int) -> int:
        return sorted(range(len(row)), key=lambda other: (-row[other], other)).index(token)

    expected = [brute(row, token) for row, token in zip(logits.tolist(), tokens.tolist(), strict=True)]
    assert rank_of(logits, tokens).tolist() == expected
    assert rank_of(torch.zeros(1, 5), torch.tensor([3])).tolist() == [3]


def test_lengths_around_a_chunk_and_the_order_of_layers(deep: Callable[..., Stack]) -> None:
    """Every prefix of an output has the prefix of its ranks, and layers come back in the order in which they were asked for."""
    stack = deep("llama")
    tokens, inputs = greedy(stack), Inputs((PROMPT,))
    whole = early_ranks(ModelSession(stack), inputs, tokens, [4, 2, 4], [OwnHead()])[0]
    assert whole[0].tolist() == whole[2].tolist() != whole[1].tolist()
    for length in (0, 1, CHUNK - 1, CHUNK, CHUNK + 1):
        part = early_ranks(ModelSession(stack), inputs, tokens[:length], [2, 4], [OwnHead()])[0]
        assert part.tolist() == whole[[1, 0], :length].tolist()


def test_what_cannot_be_ranked_is_refused(deep: Callable[..., Stack], tmp_path: Path) -> None:
    stack = deep("llama")
    session, tokens = ModelSession(stack), [3, 4]
    with pytest.raises(InputError, match="inputs: 2 rows; expected one"):
        early_ranks(session, Inputs((PROMPT, PROMPT)), tokens, [2], [OwnHead()])
    for layer in (0, stack.num_layers):
        with pytest.raises(InputError, match=f"early layer {layer}: the model has {stack.num_layers} layers; expected 1 to"):
            early_ranks(session, Inputs((PROMPT,)), tokens, [2, layer], [OwnHead()])
    only_two = TrainedHeads({2: torch.zeros(stack.vocab_size, 32, dtype=stack.dtype)}, stack)
    with pytest.raises(InputError, match="none for layer 3; expected one of 2"):
        early_ranks(session, Inputs((PROMPT,)), tokens, [2, 3], [only_two])
    weight = torch.ones(stack.vocab_size, 32)
    save_file({"layer.2": weight.double() * 1e308}, tmp_path / EARLY_HEADS)
    with pytest.raises(InputError, match=r"layer\.2: its logits hold NaN or infinity; train heads for this model"):
        load_heads(tmp_path, stack)
    stack.dtype = torch.float32
    for name, odd, said in (
        ("layer.2", weight / 0, "tensor 'layer.2' holds NaN or infinity"),
        ("layer.2", weight.int(), "int32; expected floating point"),
        ("layer.2", (weight * 0).to(torch.float8_e5m2), "holds nothing but zeros"),
        ("layer.2", weight.double() * 1e60, "in the model's own type, tensor 'layer.2' holds NaN or infinity in float32"),
        ("layer.02", weight, r"tensor 'layer\.02'; expected tensors named layer\.N"),
        ("2", weight, r"tensor '2'; expected tensors named layer\.N"),
    ):
        save_file({name: odd}, tmp_path / EARLY_HEADS)
        with pytest.raises(InputError, match=said):
            load_heads(tmp_path, stack)
