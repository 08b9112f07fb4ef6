"""``speculation_profile.json``, which travels with a draft's checkpoint: read, and written from any log with a histogram.

Source (NVIDIA/Model-Optimizer): ``examples/specdec_bench/specdec_bench/speculation_profile.py`` at edf879d, schema 1.0 (pull
request 2247). Rates and lengths are rounded to six digits there, and so they are here.

Off by one: ``acceptance_length_histogram`` is keyed by tokens a round emits, bonus counted, so length 1 is a round in which no
draft stands; the two vectors of rates are by draft, and entry i is about lengths of i + 2 and more. Who made a profile with
specdec_bench counted every piece of a stream as a round, the prompt's pass too; we count the rounds that drafted. It writes 0
for both rates at a length that no round has, also below longer ones (``specdec_bench/metrics/acceptance_rate.py`` at 037a9f6
has no entry there), and holds the next length against the last that was seen. Such a 0 is no rate: the histogram tells it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from harness.core.errors import UsageError
from harness.engines.entries import Entry, agree, count, number, numbers, over, sparse
from harness.measures.counts import Counted, Counts, Histogram, Told, added, most, padded, weighted
from harness.measures.statistics import Estimate, ratio_of_totals

PROFILE = "speculation_profile.json"
OURS = "foretoken acceptance"  # who writes a profile of the rounds that drafted alone
SCHEMA = "1.0"
DIGITS, ROUNDED = 6, 1e-6
TOLERANCE = 0.02  # of its check of the mean
RATES = ("conditional_accept_rates", "marginal_accept_rates")
UNSEEN = "; 0 where no round had just so many"
Rates = tuple[list[float], list[float]]  # marginal and conditional, by draft


def is_profile(value: Any) -> bool:
    return isinstance(value, dict) and "schema_version" in value and all(name in value for name in RATES)


def read_profile(entries: Sequence[Entry]) -> Counted:
    """Read a profile: rounds by length of one measurement, without drafts made and without requests."""
    found, (marginal, conditional) = entries[0].made(_counts)
    mean, mean_per_request = entries[0].made(_means)
    unseen = "" if (marginal, conditional) == _rates(found.histogram or (), found.gamma or 0) else UNSEEN
    told = [
        Told("mean_accept_length", mean, "a round, bonus counted"),
        Told("mean_accept_length_per_request", mean_per_request, "mean over requests, bonus counted"),
        Told(RATES[1], marginal, f"position 1, joint, and so on{unseen}"),
        Told(RATES[0], conditional, f"position 1, conditional, and so on, where every round drafts as many{unseen}"),
    ]
    source = "examples/specdec_bench/specdec_bench/speculation_profile.py at edf879d"
    return Counted(format=PROFILE, source=source, requests=[found], told=told, is_total=True)


def _means(value: Any) -> tuple[float, float | None]:
    per_request = value.get("mean_accept_length_per_request")
    return number(value, "mean_accept_length"), None if per_request is None else number(value, "mean_accept_length_per_request")


def _counts(value: Any) -> tuple[Counts, Rates]:
    if not is_profile(value):
        raise ValueError(f"no fields {', '.join(RATES)}; expected one profile")
    if value["schema_version"] != SCHEMA:
        raise ValueError(f"field 'schema_version': {value['schema_version']!r}; expected {SCHEMA!r}")
    if value.get("measured") is not True:
        raise ValueError("field 'measured': not true; nothing was measured")
    if not value.get("acceptance_length_histogram"):
        raise ValueError("field 'acceptance_length_histogram': absent; rates without counts say nothing of how sure they are")
    histogram, gamma = sparse(value, "acceptance_length_histogram", lowest=1), count(value, "num_speculative_tokens")
    rounds, accepted = sum(histogram), weighted(histogram)
    all_rounds, drafting = (None, rounds) if value.get("producer") == OURS else (rounds, None)
    found = Counts(request="profile", accepted=accepted, gamma=gamma, histogram=histogram, rounds=all_rounds, drafting=drafting)
    agree(value, "mean_accept_length", 1 + over(accepted, rounds, 0.0), ROUNDED)
    both = [numbers(value, name) for name in RATES]
    for name, stated in zip(RATES, both, strict=True):
        if len(stated) != gamma:
            raise ValueError(f"field {name!r}: {len(stated)} rates; expected num_speculative_tokens {gamma}")
    rates, filled = _rates(histogram, gamma), _filled(histogram, gamma)
    if all(rate == 0 for rate, own in zip(both[1], filled[0], strict=True) if own == 0):
        rates = filled
    for name, stated, expected in zip(RATES, both, reversed(rates), strict=True):
        for place, (rate, own) in enumerate(zip(stated, expected, strict=True)):
            agree({f"{name}[{place}]": rate}, f"{name}[{place}]", own, ROUNDED)
    return found, rates


def _filled(histogram: Histogram, gamma: int) -> Rates:
    """Return the same rates as specdec_bench writes them: 0 at lengths that no round has, which the next length passes over."""
    marginal, _ = _rates(histogram, gamma)
    kept, last = ([0.0] * gamma, [0.0] * gamma), 1.0
    for place, rate in enumerate(marginal):
        if place + 1 < len(histogram) and histogram[place + 1]:
            kept[0][place], kept[1][place] = rate, rate / last
            last = rate
    return kept


def _rates(histogram: Histogram, gamma: int) -> Rates:
    """Return for every draft the share of rounds in which it and all before it stand, and the share given those before it."""
    rounds = sum(histogram)
    marginal = [over(sum(histogram[place:]), rounds, 0.0) for place in range(1, gamma + 1)]
    conditional = [over(after, before, 0.0) for before, after in zip([1.0, *marginal], marginal, strict=False)]
    return marginal, conditional


def profile_of(
    histograms: Sequence[Histogram] | None, gamma: int, facts: Mapping[str, Any], conditions: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the profile of a log: ``histograms`` are those of its requests, ``facts`` fields that describe what was measured.

    Intervals (95 %, over requests) stand under ``measurement_conditions``, which is free in that format.

    Raises:
        UsageError: nothing was measured, or the log has no histogram.
    """
    if histograms is None:
        raise UsageError("profile: the log does not count rounds by accepted drafts of a chain; expected one with a histogram")
    pooled = added(histograms)
    rounds, gamma = sum(pooled), max(gamma, most(pooled))
    if not rounds or not gamma:
        raise UsageError("profile: nothing was measured, no round drafted; a profile of nothing is not written")
    marginal, conditional = _rates(pooled, gamma)
    lengths = [1 + weighted(one) / sum(one) for one in histograms if sum(one)]
    mean = 1 + weighted(pooled) / rounds
    return {
        "schema_version": SCHEMA,
        "measured": True,
        "producer": OURS,
        "method": None,
        "draft_checkpoint": None,
        "target_model": None,
        "num_speculative_tokens": gamma,
        "block_size": None,
        "max_supported_k": gamma,
        "verification_method": "longest_prefix",
        RATES[0]: _rounded(conditional),
        RATES[1]: _rounded(marginal),
        "mean_accept_length": round(mean, DIGITS),
        "mean_accept_length_per_request": round(float(np.mean(lengths)), DIGITS) if len(histograms) > 1 else None,
        "accept_length_model": "measured_per_k",
        "accept_length_by_k": {str(gamma): round(mean, DIGITS)},
        "acceptance_length_histogram": {str(stand + 1): times for stand, times in enumerate(pooled) if times},
        "per_category": None,
        "measurement_conditions": {**conditions, "num_requests": len(histograms), "intervals": _intervals(histograms, gamma)},
        "validation": _validation(mean, marginal),
        **facts,
    }


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, DIGITS) for value in values]


def _validation(mean: float, marginal: Sequence[float]) -> dict[str, Any]:
    """Return the two checks that the format carries. They pass: the vector reaches as far as the longest round."""
    implied = 1 + sum(marginal)
    consistency = {
        "implied_mean_accept_length": round(implied, DIGITS),
        "reported_mean_accept_length": round(mean, DIGITS),
        "abs_delta": round(abs(implied - mean), DIGITS),
        "tolerance": TOLERANCE,
        "passed": abs(implied - mean) <= TOLERANCE,
    }
    places = range(1, len(marginal))
    falling = [
        {"position": place, "value": marginal[place], "previous": marginal[place - 1]}
        for place in places
        if marginal[place] > marginal[place - 1]
    ]
    return {"mean_consistency": consistency, "marginal_monotonicity": {"passed": not falling, "violations": falling}}


def _intervals(histograms: Sequence[Histogram], gamma: int) -> dict[str, Any]:
    """Return the 95 % intervals of the mean length and of the marginal rates over requests; null of too few requests."""
    rows = np.array([padded(one, gamma + 1) for one in histograms], dtype=float)
    rounds = rows.sum(1)
    mean = ratio_of_totals(rows @ np.arange(1, gamma + 2), rounds, ends=(1.0, gamma + 1.0))
    rates = [ratio_of_totals(rows[:, place:].sum(1), rounds, whole=1.0) for place in range(1, gamma + 1)]
    return {"mean_accept_length": _ends(mean), RATES[1]: [_ends(rate) for rate in rates]}


def _ends(found: Estimate | None) -> list[float] | None:
    if found is None or found.shown.low is None or found.shown.high is None:
        return None
    return _rounded([found.shown.low, found.shown.high])
