"""The reference against a loop that follows Algorithm 1 line by line, and against the paper's A.1 and A.5 by enumeration."""

import pytest
import torch
from torch import Tensor

from kernels.verify.reference import inverse_cdf, verify


def one_row(target: Tensor, draft: Tensor | None, tokens: list[int], uniforms: Tensor, lenience: float) -> tuple[int, int]:
    """Algorithm 1, lines 3 to 5, as printed."""
    for i, token in enumerate(tokens):
        drafted = 1.0 if draft is None else float(draft[i, token])
        if float(uniforms[i]) > float(target[i, token]) / (lenience * drafted):
            own = torch.nn.functional.one_hot(torch.tensor(token), len(target[i])) if draft is None else draft[i]
            residual = (target[i] - own).clamp(min=0)
            return i, draw(residual / residual.sum(), float(uniforms[-1]))
    return len(tokens), draw(target[len(tokens)], float(uniforms[-1]))


def draw(probs: Tensor, uniform: float) -> int:
    total = 0.0
    for token, prob in enumerate(probs.tolist()):
        total += prob
        if uniform < total:
            return token
    return int(probs.nonzero()[-1])


@pytest.mark.parametrize("vocab_size", [2, 5, 63])
@pytest.mark.parametrize("lenience", [1.0, 0.4, 1.02])
@pytest.mark.parametrize("point_mass", [False, True])
def test_equals_algorithm_1(vocab_size: int, lenience: float, point_mass: bool) -> None:
    generator = torch.Generator().manual_seed(vocab_size)
    batch, num_draft, seen = 200, 4, set()
    target = (2 * torch.randn(batch, num_draft + 1, vocab_size, generator=generator, dtype=torch.float64)).softmax(-1)
    draft = (target[:, :-1].log() + torch.randn(batch, num_draft, vocab_size, generator=generator)).softmax(-1)
    uniforms = torch.rand(batch, num_draft + 1, generator=generator, dtype=torch.float64)
    tokens = inverse_cdf(draft, torch.rand(batch, num_draft, generator=generator, dtype=torch.float64))
    lengths = torch.randint(num_draft + 1, (batch,), generator=generator)
    given = None if point_mass else draft
    num_accepted, next_token = verify(target, given, tokens, lengths, uniforms, lenience)
    for row in range(batch):
        length = int(lengths[row])
        own = None if point_mass else draft[row]
        expected = one_row(target[row], own, tokens[row, :length].tolist(), uniforms[row], lenience)
        assert (int(num_accepted[row]), int(next_token[row])) == expected
        seen.add(expected[0])
    assert seen >= {0, 1, 2}


def test_padding_and_poison_do_not_matter() -> None:
    """Columns past a row's length may hold anything."""
    target = torch.rand(2, 3, 4, dtype=torch.float64).softmax(-1)
    draft = target[:, :-1].clone()
    draft[0] = float("nan")
    tokens, lengths = torch.tensor([[3, 3], [1, 2]]), torch.tensor([0, 2])
    num_accepted, _ = verify(target, draft, tokens, lengths, torch.full((2, 3), 0.5))
    assert num_accepted.tolist() == [0, 2]
    alone = verify(target[:1, :1], None, tokens[:1, :0], lengths[:1], torch.full((1, 1), 0.7))
    assert int(alone[1]) == int(inverse_cdf(target[:1, 0], torch.tensor([0.7])))


def test_edges_of_the_uniform() -> None:
    """At uniform 0 a token that the target never emits is refused, and none of weight 0 is drawn."""
    target = torch.tensor([[[0.0, 0.5, 0.5, 0.0], [0.0, 0.0, 1.0, 0.0]]])
    draft = torch.tensor([[[1.0, 0.0, 0.0, 0.0]]])
    for uniform, expected in ((0.0, 1), (0.999999, 2)):
        decided = verify(target, draft, torch.tensor([[0]]), torch.tensor([1]), torch.tensor([[0.0, uniform]]))
        assert [int(part) for part in decided] == [0, expected]
    assert int(inverse_cdf(torch.tensor([0.0, 0.1, 0.7, 0.0]), torch.tensor(1 - 1e-17, dtype=torch.float64))) == 2


def test_a_draft_that_equals_the_target_falls_back_to_the_target() -> None:
    """No residual is left; only a lenience above 1, as rounding would, refuses anything here."""
    target = torch.tensor([[[0.25, 0.75], [0.5, 0.5]]])
    for uniform, expected in ((0.1, 0), (0.5, 1)):
        decided = verify(target, target[:, :1], torch.tensor([[1]]), torch.tensor([1]), torch.tensor([[1.0, uniform]]), 1.5)
        assert [int(part) for part in decided] == [0, expected]
