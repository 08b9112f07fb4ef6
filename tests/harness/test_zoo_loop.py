"""The training loop on two weights and a linear loss, where every update is known by hand."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from harness.core.errors import UsageError
from harness.zoo.loop import Course, Objective, run_steps
from harness.zoo.state import Optimizers

RATES = (1.0, 0.5, 0.25)


class _Pair(nn.Module):
    """Two weights, and whether the network is shallow now."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(()))
        self.is_shallow = False


def trained(
    folder: Path, *, clip_norm: float | None = None, learning_rate: float = 0.1, steps: int = 3, **more: Any
) -> tuple[_Pair, list[bool]]:
    """Three steps of gradient descent on 3 a + 4 b, b three times as fast; and which steps were shallow."""
    pair, seen = _Pair(), list[bool]()
    groups = [{"params": [pair.first], "rate_scale": 1.0}, {"params": [pair.second], "rate_scale": 3.0}]
    optimizer = Optimizers([torch.optim.SGD(groups, lr=1.0)], list(pair.parameters()))

    def loss(network: _Pair, batch: int, step: int, generator: torch.Generator) -> torch.Tensor:
        assert (batch, network.training) == (10 * step, True)
        seen.append(network.is_shallow)
        return 3 * network.first + 4 * network.second

    def evaluate(network: _Pair) -> dict[str, float]:
        assert not network.training
        return {"first": network.first.item()}

    course = Course(
        name="pair", identity="pair", steps=steps, learning_rate=learning_rate, rate=lambda step: RATES[step],
        clip_norm=clip_norm, **more,
    )  # fmt: skip
    run_steps(
        course, pair, optimizer, Objective(batch=lambda step: 10 * step, loss=loss, evaluate=evaluate), folder,
        depth=lambda is_shallow: setattr(pair, "is_shallow", is_shallow),
    )  # fmt: skip
    return pair, seen


@pytest.mark.parametrize(("clip_norm", "length"), [(None, 5.0), (1.0, 1.0), (10.0, 5.0)])
def test_updates_are_the_clipped_gradient_at_each_groups_rate(tmp_path: Path, clip_norm: float | None, length: float) -> None:
    """The gradient is (3, 4), of length 5; the steps go down it by 0.1 times the sum of the rates."""
    pair, _ = trained(tmp_path, clip_norm=clip_norm)
    assert pair.first.item() == pytest.approx(-0.1 * sum(RATES) * 3 * length / 5, rel=1e-5)
    assert pair.second.item() == pytest.approx(-0.1 * sum(RATES) * 3 * 4 * length / 5, rel=1e-5)


@pytest.mark.parametrize(
    ("steps", "said"), [(3, "the loss of step 2 of 3 is -inf"), (1, "tensor 'second' holds NaN or infinity in float32")]
)
def test_a_training_that_leaves_the_numbers_fails(tmp_path: Path, steps: int, said: str) -> None:
    """The first loss is 0, so after one step it is the weights that say it."""
    with pytest.raises(UsageError, match=rf"training pair: {said}; lower its learning rate .* delete {tmp_path}"):
        trained(tmp_path, learning_rate=1.1e38, steps=steps)


@pytest.mark.parametrize("shallow_steps", [0.0, 1.5, 3.0])
def test_the_first_steps_are_shallow_and_nothing_else_is(tmp_path: Path, shallow_steps: float) -> None:
    pair, seen = trained(tmp_path, shallow_steps=shallow_steps, evaluated_after=frozenset({1}))
    assert seen == [step < math.ceil(shallow_steps) for step in range(3)]
    assert not pair.is_shallow
