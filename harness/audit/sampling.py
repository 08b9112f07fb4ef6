"""Subjects that must keep the target's law when they sample, in two tiers.

Law: the rule's output law on real target and draft distributions, integrated over its uniforms, within 1e-6 of the target's at
every place of a round and its bonus. Samples: seeded outputs through models, caches and batches, every position, every place of
the first round and its bonus tested apart.

Each test of samples is held at TEST_LEVEL, which is Bonferroni's for up to MAX_TESTS of them: all the tests of an audit
together raise a false alarm with a chance of at most 1e-6, and no verdict depends on which other subjects are audited.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from harness.audit.ground import NUM_DRAFT, NUM_POSITIONS, WINDOW_DRAFTS, Ground
from harness.audit.laws import LAW_BOUND, Window
from harness.audit.lossy import REPORTED
from harness.build import build_method, build_rule
from harness.experiment import Experiment
from methods.autoregressive import Autoregressive
from methods.exactness import emitted_laws
from methods.goodness import FALSE_ALARM, POWER, Fit, Sampled, fits_of
from methods.goodness_pooled import Numbers
from methods.sampling import Sampling
from methods.speculative.decode import DraftAndVerify
from methods.transformers_generate import TransformersGenerate
from methods.types import VerifyRule

MAX_TESTS = 2000
TEST_LEVEL = FALSE_ALARM / MAX_TESTS
KEPT, WINDOWS = 12, 1
NOMINAL = 0.05
THEIR_SHARE = 5  # of the samples that others are tested with, one of so many of transformers' loops


def exact(experiment: Experiment, ground: Ground) -> dict[str, Any]:
    """ "same distribution", "biased" (and what failed), or "unknown" where no sample or window could be had.

    transformers' loops have no rule whose law could be integrated, and take so long that fewer samples are drawn of them.
    """
    method, drafter = build_method(experiment.method, ground.target, ground.models), experiment.method.drafter
    law: dict[str, float] = {}
    windows: list[Window] = []
    if isinstance(method, DraftAndVerify) and drafter is not None:
        windows = [window for _, window in ground.windows(drafter, WINDOWS, KEPT)]
        law = deviations(build_rule(experiment.method), windows, experiment.sampling)
    fewer = THEIR_SHARE if isinstance(method, TransformersGenerate) else 1
    samples = ground.samples(method, count=ground.sizes.samples // fewer)
    steps = [step for one in samples for row in one.rows for step in row.steps]
    drafted, accepted = sum(len(step.drafted) for step in steps), sum(step.num_accepted for step in steps)
    fits = fits_at(samples, ground, 0 if drafter is None else NUM_DRAFT)
    return finding(law, len(windows), fits, drafted, accepted)


def finding(law: Mapping[str, float], num_windows: int, fits: Mapping[str, Fit], drafted: int, accepted: int) -> dict[str, Any]:
    """Something was seen, and where drafts are tested something was drafted."""
    failed = [f"law of {place}" for place, deviation in law.items() if deviation > LAW_BOUND]
    failed += [f"samples of {place}" for place, fit in fits.items() if not fit.passes(TEST_LEVEL)]
    seen = fits["position 0"].num_samples and ("draft 0" not in fits or (drafted and fits["draft 0"].num_samples))
    return {
        "verdict": "biased" if failed else "same distribution" if seen else "unknown",
        "failed": failed,
        "drafted": drafted,
        "accepted": accepted,
        "windows": num_windows,
        "largest_deviation": law,
        "tests": {place: shown(fit) for place, fit in fits.items()},
    }


def deviations(rule: VerifyRule, windows: Sequence[Window], sampling: Sampling) -> dict[str, float]:
    """How far the law of each place is from the target's, at the token and window where it is farthest."""
    found: dict[str, float] = {}
    for window in windows:
        laws = emitted_laws(rule, window.target_logits, window.draft_logits, sampling, REPORTED)
        for place, off in enumerate((laws - sampling.probs(window.target_logits)).abs().amax(-1).tolist()):
            name = "bonus" if place == WINDOW_DRAFTS else f"draft {place}"
            found[name] = max(found.get(name, 0.0), off)
    return found


def fits_at(samples: Sequence[Sampled], ground: Ground, num_draft: int = NUM_DRAFT) -> dict[str, Fit]:
    """Every position, drafted place and bonus: in the contexts that are often seen, and over all of them."""
    numbers = Numbers(samples, ground.target.session(), ground.plain.sampling, ground.sizes.batch)
    contexts = fits_of(samples, ground.laws, num_draft, NUM_POSITIONS, false_alarm=TEST_LEVEL)
    return contexts | numbers.fits(num_draft, TEST_LEVEL)


def shown(fit: Fit) -> dict[str, Any]:
    """A place that no context reached often enough has no test, and says so by its count."""
    if fit.num_samples == 0:
        return {"samples": 0}
    return {"samples": fit.num_samples, "p": _rounded(fit.p_value), f"tv_at_power_{POWER:g}": _rounded(fit.likely_tv)}


def false_alarms(ground: Ground) -> dict[str, Any]:
    """Plain sampling through the same tests, several times: it must not be called biased, and small p-values must be rare.

    A p-value bounds a chance, so at most NOMINAL of them may be below NOMINAL.
    """
    method, p_values, fits = Autoregressive(), list[float](), dict[str, Fit]()
    for series in range(ground.sizes.false_alarms):
        fits = fits_at(ground.samples(method, series), ground, num_draft=0)
        p_values += [fit.p_value for fit in fits.values() if fit.num_samples]
    alarms, small = (sum(p <= level for p in p_values) for level in (TEST_LEVEL, NOMINAL))
    wrong = not p_values or alarms > 0 or small > NOMINAL * len(p_values)
    return {
        "verdict": "unknown" if not p_values else "biased" if wrong else "same distribution",
        "tests_made": len(p_values),
        "alarms": alarms,
        "below_0.05": small,
        "smallest_p": _rounded(min(p_values, default=1.0)),
        "tests": {place: shown(fit) for place, fit in fits.items()},
    }


def _rounded(value: float) -> float:
    """Three digits: what is printed of a number that a machine's rounding may move in the last one."""
    return float(f"{value:.3g}")
