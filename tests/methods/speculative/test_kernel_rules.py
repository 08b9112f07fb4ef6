"""Kernels as rules: the law end to end, the same outputs from every exact one, and what a round records."""

from functools import partial

import pytest
import torch
from torch import Tensor

from harness.exact.fit import FALSE_ALARM, Laws, draw_rows, fits_of
from harness.exact.toy import _TableSession, random_table, toy_session
from kernels.verify.registry import EXACT
from methods.errors import InputError
from methods.parts import RULES
from methods.sampling import Sampling, Uniforms
from methods.speculative.acceptance import alpha_ratio
from methods.speculative.decode import DraftAndVerify
from methods.speculative.model import ModelDrafter
from methods.speculative.schedules import Constant
from methods.types import Generation, Inputs, Proposal, Stop

DRAWN = Sampling(temperature=1.0)
OTHERS = ("block-verification", "point-mass")
LOSSY = ("sigmoid", "sigmoid-released")
NUM_DRAFT = 2
TARGET = random_table(4, seed=1, scale=1.5)
DRAFT = TARGET + random_table(4, seed=2, scale=1.5)


def method(rule: str, num_draft: int = NUM_DRAFT) -> DraftAndVerify:
    return DraftAndVerify(ModelDrafter(toy_session(DRAFT)), RULES[rule](), partial(Constant, num_draft))


def generate(rule: str, sampling: Sampling, seed: int, num_tokens: int = 40) -> Generation:
    uniforms = Uniforms([seed], num_tokens)
    return method(rule, 3).generate(
        toy_session(TARGET), Inputs(((1, 2),)), sampling, uniforms, Stop(max_new_tokens=num_tokens)
    )[0]


def failures(rule: str, num_samples: int = 2000) -> list[str]:
    """Which per-position, per-place and bonus tests fail, at a family-wise false alarm of 1e-6."""
    target = toy_session(TARGET)
    samples = draw_rows(method(rule), target, Inputs(((1, 2, 1),)), DRAWN, range(num_samples), 4)
    fits = fits_of([samples], Laws(target, DRAWN), NUM_DRAFT, 4)
    return [name for name, fit in fits.items() if not fit.passes(FALSE_ALARM / len(fits))]


@pytest.mark.parametrize("rule", [*EXACT, *OTHERS])
def test_exact_rules_fit_the_law_end_to_end(rule: str) -> None:
    assert failures(rule) == []


@pytest.mark.parametrize("rule", LOSSY)
def test_sigmoids_do_not_fit_it(rule: str) -> None:
    assert failures(rule) != []


@pytest.mark.parametrize("sampling", [DRAWN, Sampling(temperature=0.8, top_k=3), Sampling(temperature=1.0, top_p=0.9)], ids=str)
def test_exact_kernels_emit_the_same_tokens(sampling: Sampling) -> None:
    """With the same seed, token by token, as the rule that they are other forms of."""
    for seed in range(6):
        expected = generate("speculative-sampling", sampling, seed).tokens
        assert {rule: generate(rule, sampling, seed).tokens for rule in EXACT} == dict.fromkeys(EXACT, expected)


@pytest.mark.parametrize("rule", [*EXACT, *OTHERS, *LOSSY])
def test_greedy_drafts_are_compared_with_the_argmax(rule: str) -> None:
    assert generate(rule, Sampling(), 0).tokens == generate("speculative-sampling", Sampling(), 0).tokens
    lossless = rule in (*EXACT, *OTHERS)
    assert RULES[rule]().guarantee == ("same_distribution" if lossless else "lossy")


def test_fused_records_the_drafts_that_it_looked_at() -> None:
    """Up to and including the first rejection; what acceptance is derived from is the same."""
    plain, lean = (generate(rule, DRAWN, 3) for rule in ("speculative-sampling", "fused"))
    for whole, step in zip(plain.steps, lean.steps, strict=True):
        count = min(whole.num_accepted + 1, len(whole.drafted))
        assert step.target_probs == pytest.approx(whole.target_probs[:count])
        assert step.draft_probs == pytest.approx(whole.draft_probs[:count])
    assert alpha_ratio(lean.steps) == pytest.approx(alpha_ratio(plain.steps))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_a_model_draft_hands_over_its_log_sum_exp(temperature: float) -> None:
    drafter, sampling = ModelDrafter(toy_session(DRAFT)), Sampling(temperature=temperature)
    drafter.begin(Inputs(((1, 2), (3, 1))), [2, 1], Uniforms([5, 6], 20))
    proposal = drafter.propose([3, 2], [0, 0], sampling)
    assert proposal.logits is not None
    assert proposal.log_sum_exp is not None
    torch.testing.assert_close(proposal.log_sum_exp, (proposal.logits / temperature).logsumexp(-1))
    drafter.begin(Inputs(((1, 2), (3, 1))), [2, 1], Uniforms([5, 6], 20))
    assert drafter.propose([1, 1], [0, 0], Sampling(temperature=1.0, top_k=2)).log_sum_exp is None


class Poisoned(_TableSession):
    """A target whose logits hold NaN."""

    def extend(self, tokens: Tensor) -> Tensor:
        return super().extend(tokens).fill_(float("nan"))


@pytest.mark.parametrize("rule", ["speculative-sampling", *EXACT, *OTHERS, *LOSSY])
def test_nan_logits_are_refused_in_one_line(rule: str) -> None:
    with pytest.raises(InputError, match="row 0, position 0: hold NaN") as raised:
        method(rule).generate(Poisoned(TARGET), Inputs(((1, 2),)), DRAWN, Uniforms([0], 8), Stop(max_new_tokens=8))
    assert len(str(raised.value).splitlines()) == 1


def test_tokens_of_a_larger_vocabulary_are_refused() -> None:
    proposal = Proposal(torch.tensor([[7]]), (1,), None, DRAWN)
    with pytest.raises(InputError, match="draft token 7 of row 0"):
        RULES["fused"]().verify(proposal, torch.zeros(1, 2, 4), DRAWN, torch.full((1, 2), 0.5))
