"""Tier (a) and tier (b): lossless rules pass, deliberately wrong samplers fail, and the statistics hold what they promise."""

import math
from functools import cache, partial

import pytest
import torch
from torch import Tensor

from harness.core.experiment import RuleSpec
from harness.exact.bisection import HALVINGS, turning_points
from harness.exact.checks import check_law
from harness.exact.controls import CONTROLS, _LenientBy, _Unsampled
from harness.exact.fit import FALSE_ALARM, Laws, draw_rows, fits_of, goodness_of_fit, stream_fits
from harness.exact.law import Window, emitted_law, largest_deviation, windows_of
from harness.exact.toy import greedy_output, random_block, random_table, same_tokens, toy_session
from harness.run.build import build_rule
from methods.parts import DRAFTERS
from methods.sampling import Sampling, Uniforms
from methods.speculative.decode import DraftAndVerify
from methods.speculative.drafters import DraftParts
from methods.speculative.model import ModelDrafter
from methods.speculative.ngram import NGramTable
from methods.speculative.rules import Lenience, SpeculativeSampling
from methods.speculative.schedules import Constant
from methods.types import Drafter, Inputs, Proposal, Verdict, VerifyRule

TOLERANCE = 1e-6
DRAWN = Sampling(temperature=1.0)
NUM_SAMPLES = {"model": 3000, "hierarchical": 3000, "block": 3000}  # drafters that run row by row are slower and get 800
NUM_DRAFT = 2
VOCAB = 4
TARGET = random_table(VOCAB, seed=1, scale=1.5)
DRAFT = TARGET + random_table(VOCAB, seed=2, scale=1.5)
INNER = DRAFT + random_table(VOCAB, seed=3, scale=1.5)


def random_logits(seed: int, num_draft: int, vocab_size: int, noise: float) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    target = 2 * torch.randn(num_draft + 1, vocab_size, generator=generator, dtype=torch.float64)
    return target, target[:-1] + noise * torch.randn(num_draft, vocab_size, generator=generator, dtype=torch.float64)


def zipf_logits(vocab_size: int) -> tuple[Tensor, Tensor]:
    """Real-like: power-law target, a draft that has learned most of it and swaps a few tokens."""
    target = -1.1 * torch.arange(1, vocab_size + 1, dtype=torch.float64).log()
    draft = 0.8 * target.clone()
    draft[[0, 1, 5, 9]] = draft[[1, 0, 9, 5]]
    return target.expand(3, -1).clone(), draft.expand(2, -1).clone()


@pytest.mark.parametrize(
    "offsets", [(0.0, 0.0, 0.0, 0.0), (0.0, 1e-12, 0.0, -1e-12), (0.0, 1e-9, 0.0, 0.0), (0.3, 0.3, 0.3, 0.3), None]
)
def test_decisions_turn_where_they_do_whatever_was_guessed(offsets: tuple[float, ...] | None) -> None:
    points, looks = torch.tensor([0.0, 1 / 3, 1.0, 1e-3], dtype=torch.float64), []

    def holds(numbers: Tensor) -> Tensor:
        looks.append(numbers)
        assert bool((numbers < 1).all() and (numbers >= 0).all())
        return numbers < points

    guesses = None if offsets is None else (points + torch.tensor(offsets, dtype=torch.float64)).clamp(0, 1)
    assert turning_points(holds, 4, guesses).sub(points).abs().max() <= 2.0**-34
    near = offsets is not None and max(map(abs, offsets)) < 1e-11
    assert len(looks) <= (8 if near else HALVINGS + 2)


SAMPLINGS = [
    DRAWN,
    Sampling(temperature=0.6),
    Sampling(temperature=1.0, top_k=5),
    Sampling(temperature=1.0, top_p=0.8),
    Sampling(),
]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("logits", [random_logits(0, 2, 7, 1.0), random_logits(1, 1, 24, 3.0), zipf_logits(24)])
def test_speculative_sampling_keeps_the_law(logits: tuple[Tensor, Tensor], sampling: Sampling) -> None:
    assert largest_deviation(SpeculativeSampling(), *logits, sampling) < TOLERANCE
    if not sampling.greedy:
        assert largest_deviation(_LenientBy(1.0), *logits, sampling) < TOLERANCE


def test_draft_sampling_may_differ_and_point_masses_keep_the_law() -> None:
    target, draft = random_logits(3, 2, 9, 1.5)
    rule = SpeculativeSampling()
    assert largest_deviation(rule, target, draft, DRAWN, Sampling(temperature=0.5, top_k=3)) < TOLERANCE
    assert largest_deviation(rule, target, draft, Sampling(temperature=0.8, top_k=4), DRAWN) < TOLERANCE
    assert largest_deviation(rule, target, [4, 0], DRAWN) < TOLERANCE


@pytest.mark.parametrize(
    "rule", [CONTROLS["no residual"].rule(), _LenientBy(1.02), Lenience(0.98)], ids=["no residual", "1.02", "0.98"]
)
def test_biased_rules_fail_on_every_law(rule: VerifyRule) -> None:
    for logits in (random_logits(0, 2, 7, 1.0), zipf_logits(24)):
        assert largest_deviation(rule, *logits, DRAWN) > 100 * TOLERANCE


def test_the_law_of_a_lenient_rule_is_the_closed_form() -> None:
    """A.5: a token is emitted with min(target / l, draft) plus its share of what is refused, at most target / l."""
    target_logits, draft_logits = random_logits(5, 1, 12, 1.5)
    target, draft, lenience = target_logits[0].softmax(-1), draft_logits[0].softmax(-1), 0.3
    accepted = torch.minimum(target / lenience, draft)
    residual = (target - draft).clamp(min=0)
    expected = accepted + (1 - accepted.sum()) * residual / residual.sum()
    law = emitted_law(Lenience(lenience), target_logits, draft_logits, DRAWN, 0)
    torch.testing.assert_close(law, expected, rtol=0, atol=1e-8)
    assert bool((law <= target / lenience + 1e-9).all())


def test_chernoff_bound_holds_by_enumeration() -> None:
    """Every binomial of up to 40 trials: the bound is at least the exact tail, at every value of the statistic."""
    compared = 0
    for size in (1, 2, 5, 13, 40):
        for prob in (0.02, 0.3, 0.5):
            law = [prob, 1 - prob]
            fits = [goodness_of_fit([[count, size - count]], [law]) for count in range(size + 1)]
            chances = [math.comb(size, count) * prob**count * (1 - prob) ** (size - count) for count in range(size + 1)]
            for fit in fits:
                tail = sum(chance for chance, other in zip(chances, fits, strict=True) if other.divergence >= fit.divergence)
                assert fit.p_value >= tail - 1e-12
                compared += 1
    assert compared == 3 * (2 + 3 + 6 + 14 + 41)


def test_goodness_of_fit_states_what_it_detects() -> None:
    law = [0.5, 0.3, 0.2]
    fit = goodness_of_fit([[5000, 3000, 2000]], [law])
    assert fit.p_value == 1
    shift = int(fit.detectable_tv * 10000) + 1
    assert not goodness_of_fit([[5000 + shift, 3000 - shift, 2000]], [law]).passes(FALSE_ALARM)
    assert goodness_of_fit([[1, 0]], [[0.0, 1.0]]).p_value == 0


@cache
def table() -> NGramTable:
    return NGramTable.count([greedy_output(toy_session(TARGET), [first, 1], 20, frozenset()) for first in range(VOCAB)], VOCAB)


def build(name: str) -> Drafter:
    inner = ModelDrafter(toy_session(INNER))
    session, block = toy_session(DRAFT), random_block(VOCAB)
    options = {"inner_gamma": 1} if name == "hierarchical" else {}
    parts = DraftParts(
        vocab_size=VOCAB, session=session, new_session=lambda: toy_session(DRAFT), translation=same_tokens(VOCAB),
        table=table(), inner=inner, block=block,
    )  # fmt: skip
    return DRAFTERS[name](parts, **options)


def failures(drafter: Drafter, rule: VerifyRule, sampling: Sampling = DRAWN, num_samples: int = 3000) -> list[str]:
    """Which of the per-position, per-place and bonus tests fail, at a family-wise false alarm of 1e-6."""
    method = DraftAndVerify(drafter, rule, partial(Constant, NUM_DRAFT))
    target = toy_session(TARGET)
    samples = draw_rows(method, target, Inputs(((1, 2, 1),)), sampling, range(num_samples), 4)
    fits = fits_of([samples], Laws(target, sampling), NUM_DRAFT, 4)
    assert {"position 0", "position 3", "draft 0", "bonus"} <= set(fits)
    assert max(fits["position 0"].detectable_tv, fits["draft 0"].detectable_tv) < 4 / num_samples**0.5
    return [name for name, fit in fits.items() if not fit.passes(FALSE_ALARM / len(fits))]


@pytest.mark.parametrize("name", sorted(set(DRAFTERS) - {"blockwise", "first-layers", "rounded"}))  # their target is a model
def test_every_drafter_keeps_the_law_end_to_end(name: str) -> None:
    """The false-alarm chance of each drafter is below 1e-6, and the seeds are fixed."""
    assert failures(build(name), SpeculativeSampling(), num_samples=NUM_SAMPLES.get(name, 800)) == []


def test_filtered_sampling_keeps_the_law_end_to_end() -> None:
    assert failures(build("model"), SpeculativeSampling(), Sampling(temperature=0.8, top_p=0.9)) == []


def test_the_drafts_unsampled_law_fails_end_to_end() -> None:
    assert "draft 0" in failures(_Unsampled(toy_session(DRAFT), 0.7), SpeculativeSampling())


class OneUniform(SpeculativeSampling):
    """Uses the first acceptance number for all drafts of a round."""

    def verify(self, proposal: Proposal, target_logits: Tensor, sampling: Sampling, uniforms: Tensor) -> Verdict:
        same = torch.cat((uniforms[:, :1].expand(-1, uniforms.shape[1] - 1), uniforms[:, -1:]), 1)
        return super().verify(proposal, target_logits, sampling, same)


def test_one_uniform_reused_fails_end_to_end() -> None:
    """The first place is unharmed: its draft alone decides. What follows an accepted draft is accepted too readily."""
    failed = failures(build("model"), OneUniform())
    assert "draft 0" not in failed
    assert "draft 1" in failed


def test_no_residual_fails_end_to_end() -> None:
    assert failures(build("model"), CONTROLS["no residual"].rule())


class _LaggedAcceptance(Uniforms):
    """Decides on a draft with the number that drew the token before it."""

    def __init__(self, seeds: range, length: int, device: str = "cpu", level: int = 0) -> None:
        super().__init__(seeds, length, device, level)
        self.table[:, self.ACCEPT, 1:] = self.table[:, self.SAMPLE, :-1]


class _OneSeed(Uniforms):
    """Gives neighbouring rows the same numbers."""

    def __init__(self, seeds: range, length: int, device: str = "cpu", level: int = 0) -> None:
        super().__init__([seed // 2 for seed in seeds], length, device, level)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (Uniforms, set()),
        (_LaggedAcceptance, {"numbers of last token at t, acceptance at t + 1"}),
        (_OneSeed, {f"numbers of {name} in rows r, r + 1" for name in ("draft", "acceptance", "last token")}),
    ],
)
def test_streams_are_tested_for_independence(kind: type[Uniforms], wrong: set[str]) -> None:
    """Each of 18 tests would find a total variation of 0.1; a false alarm has a chance of at most 2e-8."""
    fits = stream_fits(kind(range(100), 60), 1e-9)
    assert len(fits) == 18
    assert max(fit.likely_tv for fit in fits.values()) < 0.1
    assert {name for name, fit in fits.items() if not fit.passes(1e-9)} == wrong


def test_all_bits_of_a_seed_count() -> None:
    """A Mersenne Twister of torch's takes the low 32 bits."""
    seeds = [12345, 12345 + 2**32, 12345 + 7 * 2**40, 2**63 - 1, 12344]
    table = Uniforms(seeds, 20).table
    nested = Uniforms(seeds, 20).nested().table
    assert len(torch.cat((table, nested)).flatten().unique()) == 2 * len(seeds) * 3 * 20


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rule", ["speculative-sampling", "baseline", "exact", "fused"])
def test_a_law_is_integrated_in_the_dtype_that_ran(rule: str, dtype: torch.dtype) -> None:
    """Rules compute in fp32 on half logits, which they take as they are: a few roundings, and a real bias is found."""
    window = Window(*(logits.to(dtype) for logits in random_logits(3, 2, 12, 1.0)))
    assert check_law(build_rule(RuleSpec(rule)), [("a", window)], DRAWN).verdict == "same distribution"
    assert check_law(_LenientBy(1.02), [("a", window)], DRAWN).verdict == "biased"


class _OnHost(Tensor):
    """Numbers of a drafter that computes on the host: they are brought to the target's device before they meet its numbers."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.cat and len({type(part) for part in args[0]}) > 1:
            raise RuntimeError("Expected all tensors to be on the same device")
        made = super().__torch_function__(func, types, args, kwargs or {})
        return made.as_subclass(Tensor) if func is Tensor.to else made


class _HostDrafter:
    def teacher_probs(self, inputs: Inputs, pending: list[int], output: list[int], sampling: Sampling):
        return (torch.full((1, VOCAB), 1 / VOCAB).as_subclass(_OnHost) for _ in output)


def test_a_drafter_on_the_host_is_looked_at_beside_a_target_on_a_device() -> None:
    """Random and n-gram drafters compute on the host; on an H200 their audit failed where their laws met the target's."""
    session, inputs = toy_session(TARGET), Inputs(((1, 2),))
    found = list(windows_of(session, _HostDrafter(), inputs, [1, 2, 3, 1, 2, 3, 1, 2], DRAWN, NUM_DRAFT, count=2, kept=3))
    assert len(found) == 2
    assert all(window.draft_logits.shape[0] == NUM_DRAFT for window in found)
