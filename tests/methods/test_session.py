"""The session against transformers' own forward pass, in fp64, for every family."""

import random

import pytest
import torch

from kernels import native
from kernels.products.matrix import COMPILED, SOURCE, TORCH, Choice
from methods.errors import InputError
from methods.models import stack_for
from methods.session import MIN_CAPACITY, ModelSession
from methods.types import Inputs

TOLERANCE = {"rtol": 0.0, "atol": 1e-9}
NO_COMPILER = pytest.mark.skipif(native.library(SOURCE) is None, reason="no C++ compiler here")


@pytest.fixture(params=["torch", pytest.param("compiled", marks=NO_COMPILER)])
def choice(request: pytest.FixtureRequest) -> Choice:
    """Who makes the products of few rows."""
    return COMPILED if request.param == "compiled" else TORCH


def history(session: ModelSession, inputs: Inputs) -> list[list[int]]:
    """What a prefilled session has cached of each row."""
    if session.stack.is_encoder_decoder:
        return [[] for _ in inputs.prompts]
    return [list(prompt[:-1]) for prompt in inputs.prompts]


def check_extend(tiny, session: ModelSession, sources: list, cached: list[list[int]], tokens: list[list[int]]) -> None:
    """One extend of ragged rows equals, row by row, a fresh uncached pass of transformers over the whole text."""
    logits = session.extend(torch.tensor(tokens))
    for row, new in enumerate(tokens):
        cached[row] += new
        expected = tiny.reference_logits(session.stack.model, cached[row], sources[row])[-len(new) :]
        torch.testing.assert_close(logits[row], expected, **TOLERANCE)


def test_prefill_one_token_and_five_equal_transformers(tiny, family: str, choice: Choice) -> None:
    session = ModelSession(stack_for(tiny.build(family), choice))
    inputs = tiny.source_for(session.stack, [7])
    pending = session.prefill(inputs)
    cached = history(session, inputs)
    check_extend(tiny, session, inputs.prompts, cached, [pending])
    check_extend(tiny, session, inputs.prompts, cached, [[5, 9, 3, 30, 8]])
    check_extend(tiny, session, inputs.prompts, cached, [[11]])


def test_random_batches_equal_transformers_through_extend_rewind_and_select(tiny, family: str, choice: Choice) -> None:
    """Ragged prompts, one of a single token, padded columns that are rewound, rows dropped, repeated and permuted, growth."""
    session = ModelSession(stack_for(tiny.build(family), choice))
    inputs = tiny.source_for(session.stack, [1, 9, 4])
    generator = random.Random(family)
    pending = session.prefill(inputs)
    cached, sources = history(session, inputs), list(inputs.prompts)
    check_extend(tiny, session, sources, cached, [[token] for token in pending])
    for rows in ([2, 0, 1], None, [0, 2, 2, 1], [3, 0], None, [1]):
        num_new = generator.choice([1, 2, 5])
        tokens = [[generator.randrange(3, 40) for _ in range(num_new)] for _ in cached]
        check_extend(tiny, session, sources, cached, tokens)
        counts = [generator.randrange(num_new + 1) for _ in cached]
        session.rewind(counts)
        cached = [row[: len(row) - count] for row, count in zip(cached, counts, strict=True)]
        if rows is not None:
            session.select(rows)
            cached, sources = [list(cached[row]) for row in rows], [sources[row] for row in rows]
        assert session.lengths == [tuple(map(len, cached))] * session.num_layers
    check_extend(tiny, session, sources, cached, [[5, 6]])


def test_alike_rows_are_computed_once_and_then_go_their_own_ways(tiny, family: str) -> None:
    """The cost is one row's: what stands before the rows part is seen by the layers once."""
    stack, seen = stack_for(tiny.build(family)), []
    session, run, encode = ModelSession(stack), stack.run, stack.encode
    stack.run = lambda hidden, *rest: seen.append(hidden.shape[0]) or run(hidden, *rest)
    stack.encode = lambda tokens, mask: seen.append(tokens.shape[0]) or encode(tokens, mask)
    inputs = Inputs(tiny.source_for(stack, [6]).prompts * 3)
    pending = session.prefill(inputs)
    assert seen == [1]
    cached, sources = history(session, inputs), list(inputs.prompts)
    check_extend(tiny, session, sources, cached, [[token] for token in pending])
    check_extend(tiny, session, sources, cached, [[5, 9], [9, 5], [30, 8]])
    session.select([2, 0])
    check_extend(tiny, session, sources[:2], [cached[2], cached[0]], [[7], [7]])


@pytest.mark.parametrize("family", ["llama-gqa", "gpt2", "t5", "marian"])
def test_growth_keeps_what_is_cached(tiny, family: str) -> None:
    session = ModelSession(stack_for(tiny.build(family)))
    inputs = tiny.source_for(session.stack, [4, 6])
    pending = session.prefill(inputs)
    cached = history(session, inputs)
    check_extend(tiny, session, list(inputs.prompts), cached, [[token] for token in pending])
    while max(map(len, cached)) <= MIN_CAPACITY:
        check_extend(
            tiny, session, list(inputs.prompts), cached, [[3 + (i * 7 + row) % 30 for i in range(64)] for row in range(2)]
        )


def test_layers_run_apart_equal_layers_run_together(tiny, family: str) -> None:
    stack = stack_for(tiny.build(family))
    whole, split = ModelSession(stack), ModelSession(stack)
    inputs = tiny.source_for(stack, [6, 3])
    pending = whole.prefill(inputs)
    split.prefill(inputs)
    for tokens in ([[token] for token in pending], [[4, 5, 6], [7, 8, 9]]):
        before = list(split.lengths)
        hidden = split.run_layers(split.embed(torch.tensor(tokens)), 0, 1)
        assert split.lengths[0] == tuple(length + len(tokens[0]) for length in before[0])
        assert split.lengths[1:] == before[1:]
        logits = split.head(split.run_layers(hidden, 1, split.num_layers))
        torch.testing.assert_close(logits, whole.extend(torch.tensor(tokens)), rtol=0, atol=1e-12)
    assert split.lengths == whole.lengths


def test_layers_of_different_lengths_are_not_run_in_one_call(tiny) -> None:
    session = ModelSession(stack_for(tiny.build("llama")))
    session.prefill(Inputs(((3, 4, 5),)))
    hidden = session.embed(torch.tensor([[6]]))
    session.run_layers(hidden, 0, 1)
    with pytest.raises(InputError, match="layers 0 to 1: their cached lengths differ"):
        session.run_layers(hidden, 0, 2)


def test_padding_columns_of_one_row_leave_the_others_alone(tiny, family: str) -> None:
    stack = stack_for(tiny.build(family))
    first, second = ModelSession(stack), ModelSession(stack)
    inputs = tiny.source_for(stack, [5, 8])
    first.prefill(inputs)
    second.prefill(inputs)
    one = first.extend(torch.tensor([[3, 4, 5], [6, 0, 0]]))
    two = second.extend(torch.tensor([[3, 4, 5], [6, 30, 31]]))
    assert torch.equal(one[0], two[0])
    assert torch.equal(one[1, 0], two[1, 0])


def test_prefill_starts_anew_with_another_batch(tiny) -> None:
    session = ModelSession(stack_for(tiny.build("t5")))
    for lengths in ([5, 2], [3], [4, 4, 4]):
        inputs = tiny.source_for(session.stack, lengths)
        pending = session.prefill(inputs)
        cached = history(session, inputs)
        check_extend(tiny, session, list(inputs.prompts), cached, [[token] for token in pending])


def test_a_row_may_fill_the_position_limit_and_not_pass_it(tiny) -> None:
    session = ModelSession(stack_for(tiny.build("gpt2", limit=16)))
    session.prefill(Inputs((tuple(range(3, 15)),)))
    session.extend(torch.tensor([[3, 4, 5, 6, 7]]))
    with pytest.raises(InputError, match="position limit 16: 16 tokens are cached and 1 more do not fit"):
        session.extend(torch.tensor([[3]]))


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_padding_past_the_position_limit_is_harmless(tiny, family: str) -> None:
    session = ModelSession(stack_for(tiny.build(family, limit=16)))
    inputs = Inputs((tuple(range(3, 19)), (3, 4)))
    session.prefill(inputs)
    logits = session.extend(torch.tensor([[18, 0, 0, 0], [4, 5, 6, 7]]))
    for row, text in enumerate(([*range(3, 19)], [3, 4, 5, 6, 7])):
        expected = tiny.reference_logits(session.stack.model, text, ())[-1]
        torch.testing.assert_close(logits[row, 0 if row == 0 else 3], expected, **TOLERANCE)


@pytest.mark.parametrize(
    ("family", "prompts", "message"),
    [
        ("llama", (), "expected at least one row"),
        ("llama", ((3,), ()), "prompt of row 1: it has 0 tokens"),
        ("llama", ((3, 48),), "prompt of row 0: token 48 is outside the vocabulary of 48"),
        ("llama", ((3,), (-1, 3)), "prompt of row 1: token -1 is outside"),
        ("gpt2", ((3,) * 513,), "prompt of row 0: it has 513 tokens, the model's position limit is 512"),
        ("bart", ((3,), (3,) * 513), "prompt of row 1: it has 513 tokens, the model's position limit is 512"),
    ],
)
def test_prompts_that_cannot_work_are_refused(tiny, family: str, prompts: tuple, message: str) -> None:
    session = ModelSession(stack_for(tiny.build(family)))
    with pytest.raises(InputError, match=message):
        session.prefill(Inputs(prompts))


def test_rewinding_more_than_is_cached_is_refused(tiny) -> None:
    session = ModelSession(stack_for(tiny.build("llama")))
    session.prefill(Inputs(((3, 4), (3, 4, 5))))
    with pytest.raises(InputError, match=r"rewind \[2, 0\]: expected counts between 0 and the cached lengths \[1, 2\]"):
        session.rewind([2, 0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", ["llama-gqa", "gemma", "gpt2", "t5", "t5-gated", "bart"])
def test_lower_precisions_are_near_transformers(tiny, family: str, dtype: torch.dtype) -> None:
    """The tolerance is a few roundings of logits of size about one."""
    session = ModelSession(stack_for(tiny.build(family, dtype=dtype)))
    inputs = tiny.source_for(session.stack, [6])
    pending = session.prefill(inputs)
    logits = session.extend(torch.tensor([pending]))[0, -1]
    cached = [*history(session, inputs)[0], *pending]
    expected = tiny.reference_logits(session.stack.model, cached, inputs.prompts[0])[-1]
    atol = 20 * torch.finfo(dtype).eps * float(expected.abs().max())
    torch.testing.assert_close(logits.double(), expected.double(), rtol=0, atol=atol)


def test_a_real_checkpoint_equals_transformers(tiny, shared) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(shared / "models" / "stories260K", dtype=torch.float64)
    session = ModelSession(stack_for(tiny.exact_norms(model)))
    inputs = Inputs(((1, 403, 407), (1, 403, 407, 261, 378)))
    pending = session.prefill(inputs)
    cached = history(session, inputs)
    check_extend(tiny, session, [(), ()], cached, [[token] for token in pending])
    session.rewind([0, 1])
    cached[1].pop()
    check_extend(tiny, session, [(), ()], cached, [[432, 383, 286], [289, 268, 388]])
