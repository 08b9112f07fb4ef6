"""The kernels' vectorised paths against the fp64 reference, transformers' own function, and the laws that they are to keep."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import jaxtyping
import pytest
import torch
from torch import Tensor
from transformers.generation.utils import _speculative_sampling

from harness.exact.law import largest_deviation
from kernels.inputs import InputError
from kernels.verify import check as checking
from kernels.verify import fused, reference, sizes
from kernels.verify.bounds import _Law
from kernels.verify.check import DTYPES, Case, check, expected_decisions, random_cases
from kernels.verify.interface import Proposal, Verdict
from kernels.verify.reference import Sampling, adjusted_probs
from kernels.verify.registry import EXACT, KERNELS
from kernels.verify.sigmoid import LEAST_WEIGHT, Scaling
from methods.parts import RULES
from methods.speculative.rules import KernelRule

DRAWN = Sampling(temperature=1.0)


def rows(seed: int, batch: int, num_draft: int, vocab_size: int, noise: float = 1.0) -> tuple[Proposal, Tensor, Tensor]:
    """A proposal, target logits and uniforms; the draft's log-sum-exp is handed over."""
    generator = torch.Generator().manual_seed(seed)
    target = 2 * torch.randn(batch, num_draft + 1, vocab_size, generator=generator)
    draft = target[:, :-1] + noise * torch.randn(batch, num_draft, vocab_size, generator=generator)
    numbers = torch.rand(batch, num_draft, generator=generator, dtype=torch.float64)
    tokens = reference.inverse_cdf(draft.softmax(-1), numbers)
    uniforms = torch.rand(batch, num_draft + 1, generator=generator, dtype=torch.float64)
    return Proposal(tokens, (num_draft,) * batch, draft, DRAWN, draft.logsumexp(-1)), target, uniforms


@pytest.mark.parametrize("kernel", KERNELS)
def test_no_rows_are_no_decisions(kernel: str) -> None:
    """A batch whose rows have all ended: the fused kernel had no answer."""
    nothing = Proposal(torch.zeros(0, 3, dtype=torch.long), (), torch.zeros(0, 3, 7), DRAWN)
    decisions = KERNELS[kernel](nothing, torch.zeros(0, 4, 7), DRAWN, torch.zeros(0, 4))
    shapes = [decisions.num_accepted, decisions.next_token, decisions.target_probs, decisions.draft_probs]
    assert [tuple(one.shape) for one in shapes] == [(0,), (0,), (0, 3), (0, 3)]
    assert decisions.target_probs.dtype == torch.float32


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_random_rounds(kernel: str, dtype: str) -> None:
    report = check(kernel, random_cases(300, DTYPES[dtype], seed=1, filtered_every=10), DTYPES[dtype], "torch")
    assert report.num_rows == 300
    assert report.passed, report.as_text()


def test_the_check_turns_red(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a lenience of 1.02, for drawing from the target after a rejection, and for a row too far."""

    def lenient(proposal: object, target: Tensor, sampling: Sampling, uniforms: Tensor, **_: object) -> Verdict:
        shrunk = torch.cat((uniforms[:, :-1] / 1.02, uniforms[:, -1:]), 1)
        return KERNELS["baseline"](proposal, target, sampling, shrunk)

    def from_target(proposal: object, target: Tensor, sampling: Sampling, uniforms: Tensor, **_: object) -> Verdict:
        decisions = KERNELS["baseline"](proposal, target, sampling, uniforms)
        row = adjusted_probs(target, sampling)[torch.arange(len(target)), decisions.num_accepted]
        return replace(decisions, next_token=reference.inverse_cdf(row, uniforms[:, -1]))

    def one_more(*arguments: object, **_: object) -> Verdict:
        decisions = KERNELS["baseline"](*arguments)
        return replace(decisions, num_accepted=decisions.num_accepted + 1)

    for wrong in (lenient, from_target, one_more):
        monkeypatch.setitem(KERNELS, "fused", wrong)
        report = check("fused", random_cases(500, torch.float32, seed=3), torch.float32)
        assert report.num_wrong > 0
        assert "RED" in report.as_text()


def test_few_rows_are_inside_the_bound() -> None:
    """Or agreement outside of it would mean little; 1 % is the promise."""
    inside = [expected_decisions("fused", case)[2] for case in random_cases(1000, torch.float32, seed=5, filtered_every=10)]
    assert torch.cat(inside).float().mean() < 0.005


def test_the_bound_holds_for_every_probability() -> None:
    """fp32 probabilities are within the relative error that the bound gives them, over rows that span 70 nats."""
    generator = torch.Generator().manual_seed(0)
    for vocab_size, spread, temperature in ((5, 1, 1.0), (1000, 4, 1.0), (1000, 15, 0.7), (50_000, 3, 1.0)):
        logits, sampling = spread * torch.randn(1, 4, vocab_size, generator=generator), Sampling(temperature=temperature)
        law = _Law(logits, sampling, 2.0**-24)
        error = ((adjusted_probs(logits, sampling).double() - law.probs) / law.probs).abs()
        seen = law.probs > 1e-30
        assert bool((error <= law.each + law.common.unsqueeze(-1))[seen].all())
        assert float(error[seen].max()) > 2.0**-25  # the bound is of something


LAWS = {"plain": DRAWN, "top-p": Sampling(temperature=0.7, top_p=0.8), "top-k": Sampling(temperature=1.0, top_k=3)}


@pytest.mark.parametrize("sampling", LAWS.values(), ids=LAWS)
@pytest.mark.parametrize("name", EXACT)
def test_exact_kernels_keep_the_law(name: str, sampling: Sampling) -> None:
    generator = torch.Generator().manual_seed(2)
    target, draft = (2 * torch.randn(n, 5, generator=generator, dtype=torch.float64) for n in (3, 2))
    rule = KernelRule(name, **({} if name == "baseline" else {"backend": "torch"}))
    assert largest_deviation(rule, target, draft, sampling) < 1e-6
    if sampling == DRAWN:
        assert largest_deviation(rule, target, [1, 4], sampling) < 1e-6


@pytest.mark.parametrize("name", ["sigmoid", "sigmoid-released"])
def test_sigmoids_do_not_keep_the_law(name: str) -> None:
    generator = torch.Generator().manual_seed(2)
    target, draft = (2 * torch.randn(n, 6, generator=generator, dtype=torch.float64) for n in (3, 2))
    assert largest_deviation(RULES[name](), target, draft, DRAWN) > 0.05
    assert RULES[name]().guarantee == "lossy"


def test_baseline_has_the_distribution_of_transformers_own_function() -> None:
    """Accepted counts and last tokens of 4,000 rounds each, by chi-square; another seed alarms one time in a million."""
    proposal, target, _ = rows(4, 1, 2, 4)
    num = 4000
    torch.manual_seed(0)
    ours = RULES["baseline"]().verify(
        replace(
            proposal,
            tokens=proposal.tokens.expand(num, -1),
            lengths=proposal.lengths * num,
            logits=proposal.logits.expand(num, -1, -1),
            log_sum_exp=None,
        ),
        target.expand(num, -1, -1),
        DRAWN,
        torch.rand(num, 3, dtype=torch.float64),
    )
    counts = torch.zeros(2, 3, 4)
    for accepted, token in zip(ours.num_accepted.tolist(), ours.next_token.tolist(), strict=True):
        counts[0, accepted, token] += 1
    for _ in range(num):
        valid, accepted = _speculative_sampling(proposal.tokens, proposal.logits, 2, target)
        counts[1, int(accepted), int(valid[0, -1])] += 1
    first, second = counts.flatten(1)
    seen = first + second > 0
    statistic = ((first - second)[seen] ** 2 / (first + second)[seen]).sum()
    assert int(seen.sum()) >= 6
    assert statistic < 48.6  # 1e-6 with 11 degrees of freedom, as many as there can be


@pytest.mark.parametrize("vocab_size", [1, 2, 31, 32, 33, 63, 64, 65, 992, 993, 1025, 4097, 33_000])
def test_parts_of_every_size_hold_the_token_that_the_cumulative_sum_says(vocab_size: int) -> None:
    """Weights are whole numbers, so that every sum is exact: each step of the law from both sides, and no token of weight 0."""
    generator = torch.Generator().manual_seed(vocab_size)
    weights = torch.randint(0, 4, (vocab_size,), generator=generator).float()
    weights[-1], weights[vocab_size // 2] = 0.0, 1.0
    steps = (weights.double().cumsum(0) / weights.double().sum())[torch.randint(vocab_size, (60,), generator=generator)]
    uniforms = torch.cat((steps - 1e-9, steps + 1e-9, torch.tensor([0.0, 1.0], dtype=torch.float64))).clamp(0, 1 - 2.0**-53)
    expected = reference.inverse_cdf(weights.expand(len(uniforms), -1), uniforms).tolist()
    assert [fused.drawn_from(weights, uniform) for uniform in uniforms.tolist()] == expected
    assert float(weights[expected].min()) > 0
    assert fused.drawn_from(torch.zeros(vocab_size), 0.5) is None
    weights[0] = float("nan")
    assert fused.drawn_from(weights, 0.5) is None


def test_a_goal_that_rounding_puts_behind_a_part_is_its_last_token_that_weighs() -> None:
    """In fp32 the part's sum is 1 + 2**-23, more than its tokens' 1 + 1.5 * 2**-24; tokens of weight 0 stand behind them."""
    weights = torch.zeros(96)
    weights[0], weights[1] = 1.0, 1.5 * 2.0**-24
    assert fused.drawn_from(weights, 1 - 2.0**-53) == 1


@pytest.mark.parametrize("vocab_size", [1025, 33_000])
def test_vocabularies_of_many_parts(vocab_size: int) -> None:
    proposal, target, uniforms = rows(1, 40, 2, vocab_size)
    given = Proposal(proposal.tokens, proposal.lengths, proposal.logits, DRAWN, proposal.log_sum_exp)
    report = check("fused", [(given, target, DRAWN, uniforms)], torch.float32, "torch")
    assert report.num_wrong == 0
    assert report.num_inside <= 8  # of 40: the bound grows with the vocabulary


def test_rows_behind_the_first_rejection_are_not_read() -> None:
    """They are NaN here; the draft's rows are looked at for the residual alone, since its log-sum-exp is handed over."""
    proposal, target, uniforms = rows(0, 40, 4, 50)
    expected = KERNELS["fused"](proposal, target, DRAWN, uniforms, backend="torch")
    draft = proposal.logits.clone()
    threads = torch.get_num_threads()
    for entry, accepted in enumerate(expected.num_accepted.tolist()):
        target[entry, accepted + threads :] = float("nan")
        keep = draft[entry].gather(-1, proposal.tokens[entry].unsqueeze(-1))
        rest = [position for position in range(4) if position != accepted]
        draft[entry, rest] = float("nan")
        draft[entry].scatter_(-1, proposal.tokens[entry].unsqueeze(-1), keep)
    found = KERNELS["fused"](replace(proposal, logits=draft), target, DRAWN, uniforms, backend="torch")
    for name in ("num_accepted", "next_token", "target_probs", "draft_probs"):
        mine, other = getattr(found, name), getattr(expected, name)
        assert torch.equal(mine.nan_to_num(7), other.nan_to_num(7))
    assert set(expected.num_accepted.tolist()) >= {0, 1, 2, 3}
    looked_at = torch.arange(4) <= expected.num_accepted.unsqueeze(-1)
    assert torch.equal(~expected.target_probs.isnan(), looked_at)


def test_sigmoid_by_the_papers_formulas_one_number_at_a_time() -> None:
    """Eq. 5 and Algorithm 1 in Python floats, both modes, alpha and beta narrow enough to reject."""
    proposal, target, uniforms = rows(6, 60, 2, 9)
    seen = set()
    for released in (False, True):
        scaling = Scaling(-2.0, 2.0, released)
        found = KERNELS["sigmoid"](proposal, target, DRAWN, uniforms, scaling=scaling)
        for entry in range(60):
            expected = by_hand(target[entry], proposal.logits[entry], proposal.tokens[entry], uniforms[entry], scaling)
            assert (int(found.num_accepted[entry]), int(found.next_token[entry])) == expected
            seen.add((released, expected[0]))
    assert len(seen) >= 5


def by_hand(target: Tensor, draft: Tensor, tokens: Tensor, uniforms: Tensor, scaling: Scaling) -> tuple[int, int]:
    import math

    def activate(logit: float) -> float:
        if scaling.as_released and not scaling.alpha <= logit <= scaling.beta:
            return 0.0 if logit < scaling.alpha else 1.0
        return 1 / (1 + math.exp(-(logit - scaling.alpha) / (scaling.beta - scaling.alpha)))

    accepted, weights = len(tokens), [float(logit) if scaling.as_released else activate(float(logit)) for logit in target[-1]]
    for position, token in enumerate(tokens.tolist()):
        mine, other = ([activate(float(logit)) for logit in model[position]] for model in (target, draft))
        stands = (mine[token] / other[token] if other[token] else math.inf if mine[token] else math.nan) >= float(
            uniforms[position]
        )
        if not stands:
            accepted, weights = position, [max(0.0, a - b) for a, b in zip(mine, other, strict=True)]
            if scaling.as_released:
                weights = [weight / (sum(weights) + 1e-6) for weight in weights]
            elif not any(weights):
                weights = mine
            break
    if scaling.as_released:
        weights = [max(weight, LEAST_WEIGHT) for weight in weights]
    return accepted, int(reference.inverse_cdf(torch.tensor(weights, dtype=torch.float64), uniforms[-1]))


def test_sigmoid_accepts_whatever_the_models_say() -> None:
    """At +-1e3 nearly every draft of an unrelated model stands; in fp16 a scale of 1e5 overflows and none does."""
    proposal, _, uniforms = rows(8, 200, 3, 100)
    unrelated = 2 * torch.randn(200, 4, 100, generator=torch.Generator().manual_seed(9))
    exact = KERNELS["fused"](proposal, unrelated, DRAWN, uniforms).num_accepted.float().mean()
    wide = KERNELS["sigmoid"](proposal, unrelated, DRAWN, uniforms).num_accepted.float().mean()
    assert float(exact) < 0.5
    assert float(wide) > 2.9
    half = replace(proposal, logits=proposal.logits.half(), log_sum_exp=None)
    for released in (False, True):
        overflowed = KERNELS["sigmoid"](half, unrelated.half(), DRAWN, uniforms, scaling=Scaling(-1e5, 1e5, released))
        assert int(overflowed.num_accepted.sum()) == 0
        assert torch.equal(overflowed.next_token, (uniforms[:, -1] * 100).long())  # every token as likely


@pytest.fixture
def unchecked_annotations() -> Iterator[None]:
    """As the product runs: shapes in annotations are not enforced."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_drafted_token_outside_the_vocabulary_is_found_in_many_rows(kernel: str) -> None:
    proposal, target, uniforms = rows(0, 40, 2, 9)
    tokens = proposal.tokens.clone()
    for token in (-1, 9):
        tokens[30, 1] = token
        with pytest.raises(InputError, match=rf"draft token {token} of row 30, position 1: expected 0 to 8"):
            KERNELS[kernel](replace(proposal, tokens=tokens), target, DRAWN, uniforms)


@pytest.mark.usefixtures("unchecked_annotations")
@pytest.mark.parametrize("kernel", KERNELS)
def test_bad_input_is_named(kernel: str) -> None:
    proposal, target, uniforms = rows(0, 2, 2, 9)
    verify = partial(KERNELS[kernel], sampling=DRAWN, uniforms=uniforms)
    poisoned = target.clone()
    poisoned[1, 0, 3] = float("nan")
    with pytest.raises(InputError, match=r"row 1, position 0: hold NaN"):
        KERNELS[kernel](replace(proposal, lengths=(2, 0)), poisoned, DRAWN, uniforms)
    with pytest.raises(InputError, match=r"draft token 9 of row 0, position 1: expected 0 to 8"):
        verify(replace(proposal, tokens=torch.tensor([[0, 9], [1, 1]])), target)
    with pytest.raises(InputError, match=r"target logits \[2, 2, 9\]: expected \[2, 3, 9\]"):
        verify(proposal, target[:, :2])
    with pytest.raises(InputError, match=r"draft logits \[2, 2, 8\]: expected \[2, 2, 9\]"):
        verify(replace(proposal, logits=proposal.logits[..., :8]), target)
    with pytest.raises(InputError, match=r"lengths \(2, 3\): expected 2 numbers from 0 to 2"):
        verify(replace(proposal, lengths=(2, 3)), target)
    with pytest.raises(InputError, match="temperature 0"):
        KERNELS[kernel](proposal, target, Sampling(), uniforms)


def test_scales_must_be_ordered() -> None:
    with pytest.raises(InputError, match=r"alpha 1.0, beta 1.0: expected alpha < beta"):
        Scaling(1.0, 1.0)


def test_random_rounds_see_what_they_should() -> None:
    cases: list[Case] = list(random_cases(900, torch.float32, seed=0, filtered_every=4))
    assert sum(len(uniforms) for _, _, _, uniforms in cases) == 900
    assert {target.shape[-1] for _, target, _, _ in cases} >= {2, 63, 777, 1024}
    assert any(proposal.logits is None for proposal, *_ in cases)
    assert any(proposal.log_sum_exp is not None for proposal, *_ in cases)
    assert any(target.isinf().any() for _, target, _, _ in cases)
    assert any(sampling.top_k and sampling.top_p for _, _, sampling, _ in cases)
    assert any(min(proposal.lengths) < proposal.tokens.shape[1] for proposal, *_ in cases)
    accepted = torch.cat([expected_decisions("fused", case)[0] for case in cases])
    assert set(accepted.tolist()) >= {0, 1, 2, 3, 5}


def test_random_rounds_have_vocabularies_of_several_tiles_with_and_without_filters() -> None:
    cases = list(random_cases(2000, torch.float32, 0, checking.FILTERED_EVERY))
    wide = [(target.shape[-1], sampling.top_k, sampling.top_p) for _, target, sampling, _ in cases if target.shape[-1] > 1024]
    filters = {(None, None), (3, None), (20, 0.9)}
    assert set(wide) == {(size, *one) for size in (3000, 9001) for one in filters}
    assert len(wide) == len(cases) / 25
    assert min(checking.WIDE) > sizes.TILE
    assert max(checking.WIDE) > 2 * max(sizes.FUSED_TILES)


def test_how_many_rows_may_be_inside_depends_on_the_vocabulary() -> None:
    """One row in a hundred of a tile; more of wide rows, and of filtered ones, of which the check then says something still."""

    def share(vocab_size: int, **filters: float) -> float:
        proposal = Proposal(torch.zeros(1, 0, dtype=torch.long), (0,), None, Sampling())
        given = (proposal, torch.zeros(1, 1, vocab_size), Sampling(**filters), torch.zeros(1, 1, dtype=torch.float64))
        return checking.most_inside(given)

    assert share(2) == share(1024) == 0.01
    assert share(9001) == pytest.approx(0.01 * 9001 / 1024)
    assert share(9001, top_k=20, top_p=0.9) == pytest.approx(0.03 * 9001 / 1024)
    report = checking.Report("fused", "float32", 1000, 11, 0, 10.0)
    assert not report.passed
    assert replace(report, num_inside=10).passed


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", ["exact", "fused"])
def test_wide_filtered_rounds(kernel: str, dtype: str) -> None:
    """Their share inside the bound is within what it may be, in every dtype."""
    generator = torch.Generator().manual_seed(4)
    cases = [checking.random_case(generator, DTYPES[dtype], 10, True, index) for index in range(49, 400, 50)]
    report = check(kernel, cases, DTYPES[dtype], "torch")
    assert report.num_rows == 80
    assert report.passed, report.as_text()
