"""A model in parts says what the whole one says, whatever is cached; every tensor that a part reads is on its device."""

from types import SimpleNamespace

import pytest
import torch

from methods.errors import InputError
from methods.models import stack_for
from methods.models.base import Stack
from methods.session import ModelSession
from methods.spread import SpreadSession, spread_stack
from methods.types import Inputs

CPU, ELSEWHERE = torch.device("cpu"), torch.device("meta")  # a device without numbers: it only refuses what is not on it
DECODERS = ("llama", "llama-gqa", "llama-tied", "qwen2", "gemma", "gpt2")


def in_parts(stack: Stack, *ends: int) -> SpreadSession:
    starts = (0, *ends[:-1])
    stack.parts = tuple((first, last, stack.part(first, last, CPU)) for first, last in zip(starts, ends, strict=True))
    return SpreadSession(stack)


@pytest.mark.parametrize("name", DECODERS)
def test_parts_say_what_the_whole_says(name: str, tiny: SimpleNamespace) -> None:
    model = tiny.build(name)
    whole, spread = ModelSession(stack_for(model)), in_parts(stack_for(model), 1, 3)
    inputs = Inputs(((1, 5, 9, 4), (1, 7), (1, 8, 3)))
    for session in (whole, spread):
        session.prefill(inputs)
    for tokens, counts, rows in (([[3, 4], [5, 6], [7, 8]], [1, 0, 2], [2, 0, 0]), ([[9], [2], [1]], [0, 0, 0], [0, 1, 2])):
        logits = [session.extend(torch.tensor(tokens)) for session in (whole, spread)]
        assert torch.equal(*logits)
        assert torch.equal(whole.hidden, spread.hidden)
        for session in (whole, spread):
            session.rewind(counts)
            session.select(rows)
        assert whole.lengths == spread.lengths
    hidden = whole.embed(torch.tensor([[4], [4], [4]]))
    early = [session.run_layers(session.run_layers(hidden, 0, 2), 2, 3) for session in (whole, spread)]
    assert torch.equal(*early)


@pytest.mark.parametrize("name", DECODERS)
def test_a_part_reads_nothing_from_another_device(name: str, tiny: SimpleNamespace) -> None:
    model = tiny.build(name)
    layers = model.base_model.layers if hasattr(model.base_model, "layers") else model.base_model.h
    layers[1:].to(ELSEWHERE)
    stack = stack_for(model)
    part = ModelSession(stack.part(1, 3, ELSEWHERE))
    part.lengths = [(0, 0)] * 2
    part._cache = part._empty_cache(2)
    hidden = torch.zeros(2, 5, stack.head_weight.shape[0], device=ELSEWHERE)
    for _ in range(2):  # on an empty cache and behind it
        assert part.run_layers(hidden, 0, 2).device == ELSEWHERE


def test_what_cannot_be_spread_is_refused(tiny: SimpleNamespace) -> None:
    with pytest.raises(InputError, match="only decoder-only models"):
        spread_stack(tiny.build("t5"), CPU)
    model = tiny.build("llama")
    model.base_model.layers[2].to(ELSEWHERE)
    with pytest.raises(InputError, match="laid on cpu, meta; expected cpu alone"):
        spread_stack(model, CPU)


def test_one_device_needs_no_parts(tiny: SimpleNamespace) -> None:
    assert spread_stack(tiny.build("llama"), CPU).parts == ()
