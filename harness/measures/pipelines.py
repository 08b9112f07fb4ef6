"""PPD's match rate, and what a pipeline saved, what it could have saved, and where the rest went.

The match rate (Section 4.3) is how often the emitted token is among the k likeliest of an early layer: the paper's p_correct,
pooled over tokens, with intervals that resample examples. Which tokens matched, in their order, is there too: matches of one
text depend on each other, which Theorem 4.1 leaves out.

A pipeline is accounted for per emitted token, in seconds of the rounds (prompts apart), with the plain arm's time a layer and
the pipeline's early head:

    attainable = (layers that matches spared) x layer - early head
    saved      = plain - pipeline
               = attainable - slower_layers - slower_head - post - wait - adopt

``slower_layers`` is what the main process's layers took longer than the plain arm's: the cores share memory, caches and power,
each process has fewer threads than a plain arm on all of them, and what is done between rounds is in it. The plain arm's rounds
are timed whole; its head is taken to cost what the cheaper of the pipeline's two does (the early one is as large, and no layer
runs beside it), on several threads as much less as its whole rounds take less than on one; and a layer what is left of a
plain round, divided. Theorem 4.1 counts no heads, so its saving, a share of the layers, is the most that is attainable.

``break_even_rate`` is the match rate from which on the layers that matches spare are worth the early head, which every token
pays: where a model is small and its vocabulary large, a head costs as much as many layers, and few matches cannot pay. It is
the median of the texts' own: a few pauses hold much of all heads' time, so of their sum no interval over 100 texts holds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.core.records import Record, Unit
from harness.measures.pairing import incomparable, paired, succeeded
from harness.measures.statistics import Estimate, Missing, medians_drawn, ratio_of_examples, resampled
from methods.steps import PARTS

UNITS = {
    "match_rate": "%",
    "latency_s": "s",
    "baseline_latency_s": "s",
    "baseline_throughput": "tokens/s",
    "throughput": "tokens/s",
    "speedup": "x",
    "saved_frac": "%",
    "theorem_frac": "%",
    "attainable_frac": "%",
    "reached_frac": "%",
    "break_even_rate": "%",
    "slower_layers_ms": "ms",
    "slower_head_ms": "ms",
    "early_head_ms": "ms",
    "post_ms": "ms",
    "wait_ms": "ms",
    "adopt_ms": "ms",
    "layers_ms": "ms",
    "head_ms": "ms",
    "round_ms": "ms",
    "plain_round_ms": "ms",
}

SIGNED = ("saved_frac", "attainable_frac", "reached_frac", "slower_layers_ms", "slower_head_ms")  # differences of times
UNTIMED = ("match_rate", "theorem_frac")
MEDIANS = ("break_even_rate",)  # over texts; all others are of sums


@dataclass(frozen=True)
class Account:
    """Quantities of UNITS against the plain arm with the faster rounds, and which one that was."""

    estimates: dict[str, Estimate]
    baseline: int


def account(
    baselines: Sequence[Sequence[Record]], method: Sequence[Record], num_layers: int, simulated: bool = False
) -> Account | Missing | None:
    """None where the arms share no completed example; Missing where their times must not be compared.

    ``baselines`` are the plain arms; the last one ran on as many threads as a process of the pipeline has. A simulated
    pipeline's clock knows its rounds alone, so prompts are left out of both arms' latency there.
    """
    for baseline in baselines:
        if refusal := incomparable(baseline, method):
            return refusal
    arms = [succeeded(records) for records in (*baselines, method)]
    shared = set.intersection(*({(record.key, record.run) for record in arm} for arm in arms))
    *plain_arms, pipeline = ([record for record in arm if (record.key, record.run) in shared] for arm in arms)
    sums = [paired(baseline, pipeline, lambda record: _values(record, num_layers, simulated)) for baseline in plain_arms]
    if any(pair is None for pair in sums):
        return None
    pairs = [pair for pair in sums if pair is not None]
    plains, piped, units = [pair.first for pair in pairs], pairs[0].second, pairs[0].units
    fastest = min(range(len(plains)), key=lambda index: plains[index][ROUNDS].sum() / plains[index][TOKENS].sum())
    best = _at_its_best(plains, fastest)
    statistics = {**_named("plain", best), **_named("alike", plains[-1]), **_named("piped", piped)}
    estimates = {}
    for name in UNITS:
        estimate = _estimate(statistics, name, num_layers, units)
        if np.isfinite(estimate.value):
            estimates[name] = estimate
    least = estimates["attainable_frac"].low if "attainable_frac" in estimates else None
    if least is not None and least <= 0:  # a share of what may be nothing has no interval
        estimates.pop("reached_frac", None)
    return Account(estimates, fastest)


def untimed(method: Sequence[Record], num_layers: int) -> dict[str, Estimate]:
    """Return the quantities of UNITS that no clock decides, which are there also where times must not be compared."""
    if (sums := paired(method, method, lambda record: _values(record, num_layers, simulated=False))) is None:
        return {}
    statistics = {**_named("plain", sums.first), **_named("alike", sums.first), **_named("piped", sums.first)}
    estimates = {name: _estimate(statistics, name, num_layers, sums.units) for name in UNTIMED}
    return {name: found for name, found in estimates.items() if np.isfinite(found.value)}


def _estimate(statistics: dict[str, np.ndarray], name: str, num_layers: int, units: Sequence[Unit]) -> Estimate:
    def drawn(counts: np.ndarray) -> np.ndarray:
        if name in MEDIANS:
            return medians_drawn(_quantities(statistics, num_layers)[name], counts)
        return _quantities({one: counts @ values for one, values in statistics.items()}, num_layers)[name]

    value = float(drawn(np.ones((1, len(units))))[0])
    whole, least = 100.0 if name in UNTIMED else None, None if name in SIGNED else 0.0
    return resampled(value, drawn, len(units), UNITS[name], units, whole, least)


WALL, ROUNDS, TOKENS = 0, 1, 2
FIELDS = ("wall_s", "rounds_s", "tokens", "runs", "guessed", "matched", "ahead", "behind", *PARTS)


def _at_its_best(plains: Sequence[np.ndarray], fastest: int) -> np.ndarray:
    """Return the fastest arm's sums, with the prompts' time of whichever arm reads them fastest."""
    prompts = min((arm[WALL] - arm[ROUNDS] for arm in plains), key=lambda seconds: seconds.sum())
    best = plains[fastest].copy()
    best[WALL] = best[ROUNDS] + prompts
    return best


def _named(arm: str, sums: np.ndarray) -> dict[str, np.ndarray]:
    return {f"{arm}.{name}": values for name, values in zip(FIELDS, sums, strict=True)}


def _values(record: Record, num_layers: int, simulated: bool) -> tuple[float, ...]:
    """Return what is summed of one generation: ``ahead`` are the layers that its matches spared the main process, ``behind``
    those that they would have spared if every guess had matched."""
    steps = record.steps
    assert steps is not None
    rounds_s, tokens = sum(steps.round_s), float(len(record.tokens or ()))
    wall_s = rounds_s if simulated else record.wall_s or np.nan
    if not steps.early_layer:
        return (wall_s, rounds_s, tokens, 1.0, 0.0, 0.0, 0.0, 0.0, *([0.0] * len(PARTS)))
    spared = [num_layers - layer if hit else 0 for layer, hit in zip(steps.early_layer, steps.matched, strict=True)]
    guesses = [num_layers - layer for layer, hit in zip(steps.early_layer, steps.matched, strict=True) if hit is not None]
    parts = np.sum(steps.parts, axis=0) if steps.parts else np.full(len(PARTS), np.nan)
    ahead = float(sum(spared[:-1]))  # a match spares the next token's layers
    matched = float(sum(bool(hit) for hit in steps.matched))
    return (wall_s, rounds_s, tokens, 1.0, float(len(guesses)), matched, ahead, float(sum(guesses)), *map(float, parts))


def _quantities(total: dict[str, np.ndarray], num_layers: int) -> dict[str, np.ndarray]:
    """Return all of UNITS from sums over examples, of one draw or of many; times a token in seconds until they are named."""
    with np.errstate(divide="ignore", invalid="ignore"):
        tokens, plain_tokens = total["piped.tokens"], total["plain.tokens"]
        part = {name: total[f"piped.{name}"] / tokens for name in PARTS}
        plain, piped = total["plain.rounds_s"] / plain_tokens, total["piped.rounds_s"] / tokens
        guessed = total["piped.guessed"]
        per_guess = np.where(guessed > 0, part["early_head"] * tokens / guessed, np.inf)
        alike = total["alike.rounds_s"] / total["alike.tokens"]
        plain_head = np.minimum(part["head"], per_guess) * np.minimum(1.0, plain / alike)
        layer = (plain - plain_head) / num_layers
        spared, layers = total["piped.ahead"] / tokens, part["early_layers"] + part["late_layers"]
        attainable = spared * layer - part["early_head"]
        latency, plain_latency = total["piped.wall_s"] / total["piped.runs"], total["plain.wall_s"] / total["plain.runs"]
        return {
            "match_rate": 100 * total["piped.matched"] / guessed,
            "latency_s": latency,
            "baseline_latency_s": plain_latency,
            "baseline_throughput": plain_tokens / total["plain.wall_s"],
            "throughput": tokens / total["piped.wall_s"],
            "speedup": (total["plain.wall_s"] / plain_tokens) / (total["piped.wall_s"] / tokens),
            "saved_frac": 100 * (plain - piped) / plain,
            "theorem_frac": 100 * spared / num_layers,
            "attainable_frac": 100 * attainable / plain,
            "reached_frac": np.where(attainable > 0, 100 * (plain - piped) / attainable, np.nan),
            "break_even_rate": 100 * part["early_head"] * tokens / np.where(layer > 0, total["piped.behind"] * layer, 0.0),
            "slower_layers_ms": 1e3 * (layers - (num_layers - spared) * layer),
            "slower_head_ms": 1e3 * (part["head"] - plain_head),
            "early_head_ms": 1e3 * part["early_head"],
            "post_ms": 1e3 * part["post"],
            "wait_ms": 1e3 * part["wait"],
            "adopt_ms": 1e3 * part["adopt"],
            "layers_ms": 1e3 * layers,
            "head_ms": 1e3 * part["head"],
            "round_ms": 1e3 * piped,
            "plain_round_ms": 1e3 * plain,
        }


def ranks_of(record: Record, head: str, layer: int) -> list[int] | None:
    """The rank of every emitted token at a layer by "N" (the model's own head) or "Y" (a trained one); None if not measured."""
    for early in record.early:
        if (early.head, early.layer) == (head, layer):
            return early.ranks
    return None


def match_rate(records: Sequence[Record], head: str, layer: int, k: int, positions: range | None = None) -> Estimate | None:
    """Matches over tokens in percent, all outputs pooled; ``positions`` (from 0) restricts it to a part of every output.

    None if it was not measured, or no output reaches these positions.
    """
    counted = []
    for record in succeeded(records):
        if (ranks := ranks_of(record, head, layer)) is not None:
            part = ranks if positions is None else ranks[positions.start : positions.stop]
            if not part:
                continue
            counted.append((record.unit, 100 * sum(rank < k for rank in part), len(part)))
    return ratio_of_examples(counted, "%", 100.0)
