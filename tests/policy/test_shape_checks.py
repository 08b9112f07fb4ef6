"""Calls that look like one that passed are not checked again; whatever looks new is."""

from dataclasses import dataclass

import pytest
import torch
from beartype import beartype
from jaxtyping import Float, TypeCheckError
from shape_checks import checked_once
from torch import Tensor

from kernels.inputs import SamplingSpec
from kernels.verify.reference import adjusted_logits

calls = []


def product(left: Float[Tensor, "a b"], right: Float[Tensor, "b c"], *, cut: int = 0) -> Float[Tensor, "a c"]:
    calls.append(1)
    return (left @ right)[cut:]


@pytest.fixture(name="checked")
def _checked():
    calls.clear()
    return checked_once(product, typechecker=beartype)


def test_a_call_runs_once_and_returns_what_the_function_does(checked) -> None:
    for columns in (3, 3, 5, 3):
        left, right = torch.rand(2, 4), torch.rand(4, columns)
        assert torch.equal(checked(left, right), left @ right)
    assert len(calls) == 4


@pytest.mark.parametrize("times", [0, 1, 2])
@pytest.mark.parametrize(
    "wrong",
    [
        (torch.rand(2, 4), torch.rand(3, 4)),
        (torch.rand(2, 4), torch.zeros(4, 3, dtype=torch.long)),
        (torch.rand(4), torch.rand(4, 3)),
        ([1.0], 2),
    ],
)
def test_wrong_arguments_are_refused_before_and_after_right_ones(checked, wrong, times: int) -> None:
    for _ in range(times):
        checked(torch.rand(2, 4), torch.rand(4, 3))
    for _ in range(2):
        with pytest.raises(TypeCheckError):
            checked(*wrong)
    assert len(calls) == times


def test_a_wrong_result_is_refused_even_where_the_arguments_look_known(checked) -> None:
    right = torch.rand(2, 4), torch.rand(4, 3)
    checked(*right)
    checked(*right, cut=0)
    for _ in range(2):
        with pytest.raises(TypeCheckError):
            checked(*right, cut=1)
    assert len(calls) == 4
    assert torch.equal(checked(*right), right[0] @ right[1])


def test_long_tuples_are_looked_at_at_their_ends() -> None:
    def total(numbers: tuple[int, ...]) -> int:
        return len(numbers)

    checked = checked_once(total, typechecker=beartype)
    assert [checked((1,) * length) for length in (3, 20, 30)] == [3, 20, 30]
    for length in (3, 20):
        with pytest.raises(TypeCheckError):
            checked(("1",) * length)


def test_methods_and_dataclasses_are_checked_too() -> None:
    @dataclass(frozen=True, slots=True)
    class Pair:
        left: Float[Tensor, "a b"]
        right: Float[Tensor, "b c"]

    checked = checked_once(Pair, typechecker=beartype)
    for _ in range(2):
        checked(torch.rand(2, 4), torch.rand(4, 3))
        with pytest.raises(TypeCheckError):
            checked(torch.rand(2, 4), torch.rand(3, 4))


def test_what_passed_is_known_of_a_function_that_is_made_anew_and_its_annotations_count() -> None:
    """As an inner function of one that runs often; where its annotations are others, nothing of it is known."""

    def made(kind) -> object:
        def inner(values: kind) -> kind:
            return values

        return checked_once(inner, typechecker=beartype)

    for _ in range(2):
        for width in (2, 2, 5):
            assert made(Float[Tensor, "a b"])(torch.rand(3, width)).shape == (3, width)
        assert made(Float[Tensor, "a"])(torch.rand(3)).shape == (3,)
        for wrong in (torch.rand(3), torch.zeros(3, 2, dtype=torch.long), 1.0):
            with pytest.raises(TypeCheckError):
                made(Float[Tensor, "a b"])(wrong)
        with pytest.raises(TypeCheckError):
            made(Float[Tensor, "a"])(torch.rand(3, 2))


def test_the_projects_own_functions_are_checked() -> None:
    for _ in range(2):
        assert adjusted_logits(torch.zeros(2, 3), SamplingSpec()).shape == (2, 3)
        with pytest.raises(TypeCheckError):
            adjusted_logits(torch.zeros(2, 3, dtype=torch.long), SamplingSpec())
