"""Engines' rules: what they accept and emit, by hand and in closed form, and how far the lossy ones are from the target."""

import pytest
import torch
from torch import Tensor

from harness.exact.law import emitted_law, largest_deviation
from kernels.verify import reference
from methods.errors import InputError
from methods.sampling import Sampling
from methods.speculative.engine_rules import PointMass, TargetGreedy, Typical
from methods.speculative.rules import SpeculativeSampling
from methods.types import Proposal, VerifyRule

DRAWN = Sampling(temperature=1.0)


def random_logits(seed: int, num_draft: int = 2, vocab_size: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    target = 2 * torch.randn(num_draft + 1, vocab_size, generator=generator, dtype=torch.float64)
    return target, target[:-1] + torch.randn(num_draft, vocab_size, generator=generator, dtype=torch.float64)


def accepted(rule: VerifyRule, target: Tensor, draft: Tensor, num_rounds: int = 20_000) -> float:
    """How often the first draft stands, its token drawn from the draft's law."""
    generator = torch.Generator().manual_seed(0)
    numbers = torch.rand(3, num_rounds, generator=generator, dtype=torch.float64)
    tokens = DRAWN.draw(draft.expand(num_rounds, -1), numbers[0]).unsqueeze(-1)
    proposal = Proposal(tokens, (1,) * num_rounds, draft.expand(num_rounds, 1, -1), DRAWN)
    verdict = rule.verify(proposal, target[:2].expand(num_rounds, -1, -1), DRAWN, numbers[1:].T)
    return float(verdict.num_accepted.double().mean())


def test_point_masses_keep_the_law_and_accept_less() -> None:
    """A draft stands with sum p q, which may be far below sum min(p, q); five standard errors are allowed."""
    for seed in range(2):
        target, draft = random_logits(seed)
        assert largest_deviation(PointMass(), target, draft, DRAWN) < 1e-6
        p, q = target[0].softmax(-1), draft[0].softmax(-1)
        assert accepted(PointMass(), target, draft[0]) == pytest.approx(float((p * q).sum()), abs=5 * 0.5 / 20_000**0.5)
        assert accepted(SpeculativeSampling(), target, draft[0]) > accepted(PointMass(), target, draft[0]) + 0.05


def test_target_greedy_emits_the_first_choice_where_a_draft_is_verified() -> None:
    """Its law is a point mass at each drafted place, and the target's behind a block that stands."""
    target, draft = random_logits(1)
    rule, law = TargetGreedy(), target.softmax(-1)
    for place in range(2):
        emitted = emitted_law(rule, target, draft, DRAWN, place)
        assert emitted[int(target[place].argmax())] == pytest.approx(1)
        assert float((emitted - law[place]).abs().sum()) / 2 == pytest.approx(1 - float(law[place].max()))
    torch.testing.assert_close(emitted_law(rule, target, draft, DRAWN, 2), law[2], rtol=0, atol=1e-9)


def test_typical_acceptance_by_hand() -> None:
    """Four equal tokens: min(0.09, 0.3 exp(-ln 4) = 0.075), so 0.25 stands. At (0.9, 0.05, 0.05) it is 0.09: 0.05 does not."""
    laws = torch.tensor([[0.25, 0.25, 0.25, 0.25], [0.9, 0.05, 0.05, 0.0]], dtype=torch.float64)
    assert Typical().accepts(laws).tolist() == [[True] * 4, [True, False, False, False]]
    assert Typical(epsilon=0.04).accepts(laws).tolist()[1] == [True, True, True, False]
    with pytest.raises(InputError, match=r"epsilon nan: expected a number from 0 to 1"):
        Typical(epsilon=float("nan"))


def test_typical_acceptance_emits_drafts_and_first_choices() -> None:
    target, draft = random_logits(2)
    p, q = target[0].softmax(-1), draft[0].softmax(-1)
    stands = Typical().accepts(p)
    expected = q * stands
    expected[int(p.argmax())] += float((q * ~stands).sum())
    torch.testing.assert_close(emitted_law(Typical(), target, draft, DRAWN, 0), expected, rtol=0, atol=1e-9)
    assert float((expected - p).abs().sum()) / 2 > 0.05


@pytest.mark.parametrize("rule", [PointMass(), TargetGreedy(), Typical()], ids=lambda rule: type(rule).__name__)
def test_at_temperature_0_all_are_strict(rule: VerifyRule) -> None:
    target, _ = random_logits(3, vocab_size=3)
    for block in ((0, 0), (0, 1), (1, 2), (2, 1), (int(target[0].argmax()), int(target[1].argmax()))):
        proposal = Proposal(torch.tensor([block]), (2,), None, Sampling())
        ours, strict = (
            one.verify(proposal, target[None], Sampling(), torch.zeros(1, 3)) for one in (rule, SpeculativeSampling())
        )
        assert torch.equal(ours.num_accepted, strict.num_accepted)
        assert torch.equal(ours.next_token, strict.next_token)


def test_ragged_rows_draw_the_bonus_behind_their_own_drafts() -> None:
    target, _ = random_logits(4)
    best = target.argmax(-1)
    tokens = torch.stack((best[:2], torch.tensor([int(best[0]), 0])))
    proposal = Proposal(tokens, (2, 1), None, DRAWN)
    uniforms = torch.full((2, 3), 0.7, dtype=torch.float64)
    verdict = TargetGreedy().verify(proposal, target.expand(2, -1, -1), DRAWN, uniforms)
    assert verdict.num_accepted.tolist() == [2, 1]
    drawn = [int(reference.inverse_cdf(target[place].softmax(-1), torch.tensor(0.7))) for place in (2, 1)]
    assert verdict.next_token.tolist() == drawn
