"""How often 95 % intervals contain the truth, simulated: ``python -m harness.report.coverage EVIDENCE [SAMPLES]``.

EVIDENCE is a folder of records, or an archive of them such as ``results/evidence/leviathan.tar.xz``. The recorded examples of
an arm stand for all there are, so that their number is the truth; replicas of an arm are taken together, as if one process had
decoded all. Samples of n examples are drawn from them with replacement, each gets its interval, and those that contain the
truth are counted; a sample whose number is refused shows none and is no sample. What differs between trainings, sessions and
machines is not in it: an interval is over examples alone.

A file of measured passes (``results/bench/passes-*.json``) simulates medians of single times in the same way, its turns drawn.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from harness.core.errors import UsageError
from harness.core.experiment import Experiment, MethodSpec, ModelSpec, RuleSpec
from harness.core.record_files import load_experiment, load_records, record_files
from harness.core.records import Key, Record
from harness.core.text import text_table
from harness.measures import of_run, pipelines
from harness.measures.pairing import paired, succeeded, wall_s
from harness.measures.statistics import Estimate, Missing, median, ratio_of_examples, ratio_of_totals
from harness.models.names import num_layers
from harness.papers.leviathan import speed
from harness.papers.optimized import columns
from harness.report.passes import read_passes
from harness.tables.archive import unpacked
from tasks import get_task

SIZES, SAMPLES = (30, 60, 100, 200), 200
LEAST = 40  # recorded examples that may stand for all there are
MOST = 12  # arms of one evidence, spread over all that have so many
FEW = (3, 5, 10, 20)  # single times that a median is of
Found = Mapping[str, Estimate | Missing | None]
Measure = Callable[[Sequence[list[Record]], list[Record]], Found]  # of the plain arms and an arm's own records
MEDIANS = ("ar_s", "draft_s", "verify_s", "fixed_s", "cost_ratio", "verify_ratio", "fixed_ratio")
PREDICTED = ("predicted_theorem", "predicted_iid", "predicted_costs")
PARTS = ("saved_frac", "attainable_frac", "slower_layers_ms", "slower_head_ms")  # differences of times
TIMES = ("latency_s", "throughput", "early_head_ms", "post_ms", "wait_ms", "adopt_ms", "layers_ms", "head_ms", "round_ms")


@dataclass(frozen=True)
class Arm:
    """An arm's records, and those of plain decoding that it is measured against: of one whose rule was profiled, behind them
    those of the baseline rule (``has_rival``)."""

    experiment: Experiment
    plains: tuple[list[Record], ...]
    own: list[Record]
    has_rival: bool = False


def measures_of(arm: Arm) -> dict[str, Measure]:
    """Return what can be measured of an arm and plain decoding beside it, by the kind of its interval."""
    experiment, method = arm.experiment, arm.experiment.method
    drafters = list(dict.fromkeys(one.drafter for record in arm.own for one in record.overlap))
    task = get_task(experiment.task)
    score = next(iter(of_run.of_task(task, arm.own)), "")
    found: dict[str, Measure] = {
        "share of examples, exact": lambda _, own: {"cut short": cut_short(own)},
        "share of tokens": lambda _, own: _shares(own, drafters),
        "mean": lambda _, own: {"tokens": ratio_of_examples([(one.unit, len(one.tokens or ()), 1.0) for one in own])},
        "score of a task": lambda _, own: {score: of_run.of_task(task, own).get(score)},
    }
    if method.name == "autoregressive" or not arm.plains:
        return found
    found["ratio of paired times"] = lambda plains, own: {"time": _time_ratio(plains[0], own)}
    found["ratio of speeds"] = lambda plains, own: {
        "speedup": of_run.speedup(plains[0], own),
        "decode_speedup": of_run.decode_speedup(plains[0], own),
    }
    if arm.has_rival:
        found["ratio of calls or of their time"] = lambda plains, own: {
            "calls": columns.ratio(plains[-1], own, columns.num_calls),
            "profiled": columns.ratio(plains[-1], own, columns.profiled_s),
            "time a call": columns.call_ratio(plains[-1], own),
        }
        found["time a call, and its deviation"] = lambda _, own: {
            "mean": columns.call_ms(own),
            "deviation": columns.call_deviation_ms(own),
        }
    found["tokens a round"] = lambda _, own: {"tokens": of_run.tokens_per_step(own)}
    if method.is_pipeline:
        depth, is_simulated = num_layers(experiment.target, experiment.profile), method.values["execution"] == "simulated"
        accounted = _once(lambda plains, own: _estimates(pipelines.account(plains, own, depth, is_simulated)))
        found |= {
            "ratio of speeds": partial(_named, accounted, ("speedup",)),
            "difference of times (account)": partial(_named, accounted, PARTS),
            "time a token (account)": partial(_named, accounted, TIMES),
            "break-even (account)": partial(_named, accounted, ("break_even_rate",)),
            "part of what is attainable (account)": partial(_named, accounted, ("reached_frac",)),
        }
    elif method.drafter is not None and method.has_constant_gamma and method.drafter.label in drafters_of(arm.plains):
        label, gamma = method.drafter.label, method.gamma
        costs = _once(lambda plains, own: _estimates(speed.account(plains[0], own, label, gamma)))
        found |= {
            "median of examples (account)": partial(_named, costs, MEDIANS),
            "prediction (account)": partial(_named, costs, PREDICTED),
            "remainder (account)": partial(_named, costs, speed.SIGNED),
        }
    return found


def cut_short(records: Sequence[Record]) -> Estimate | None:
    """Return the percentage of outputs that the length limit ended."""
    return ratio_of_examples([(one.unit, 100.0 * (one.stop_reason == "length"), 1.0) for one in records], "%", 100.0)


def drafters_of(arms: Sequence[list[Record]]) -> set[str]:
    """Return the drafters whose overlap was measured in any of the arms."""
    return {one.drafter for records in arms for record in records for one in record.overlap}


def _shares(own: list[Record], drafters: Sequence[str]) -> Found:
    return {name: of_run.alpha_overlap(own, name) for name in drafters} | {"accepted": of_run.accepted_over_verified(own)}


def _time_ratio(plain: list[Record], own: list[Record]) -> Estimate | None:
    rows = paired(plain, own, lambda record: (wall_s(record),))
    return None if rows is None else ratio_of_totals(rows.first[0], rows.second[0], units=rows.units)


def _estimates(found: Any) -> Found:
    """Return the numbers of an account, none of one that is refused."""
    return found.estimates if isinstance(found, pipelines.Account) else found if isinstance(found, dict) else {}


def _once(measure: Measure) -> Measure:
    """An account gives several kinds: of one sample it is made once."""
    last: list[tuple[list[Record], Found]] = []

    def measured(plains: Sequence[list[Record]], own: list[Record]) -> Found:
        if not last or last[0][0] is not own:
            last[:] = [(own, measure(plains, own))]
        return last[0][1]

    return measured


def _named(measure: Measure, names: Sequence[str], plains: Sequence[list[Record]], own: list[Record]) -> Found:
    found = measure(plains, own)
    return {name: found.get(name) for name in names}


def coverage(measures: Mapping[str, Measure], arm: Arm, n: int, samples: int = SAMPLES) -> dict[str, dict[str, float]]:
    """Return, by kind and number, the share of samples of ``n`` whose interval contains the number of all examples.

    What is the same in every example has no interval. A number that fewer than half of the samples show is left out.
    """
    truth = {kind: measure(arm.plains, arm.own) for kind, measure in measures.items()}
    rng = np.random.default_rng(n)
    partners: list[dict[Key, Record]] = [{record.key: record for record in plain} for plain in arm.plains]
    hits: dict[tuple[str, str], list[bool]] = {}
    for _ in range(samples):
        drawn = [arm.own[index] for index in rng.integers(0, len(arm.own), n)]
        own = _numbered(drawn)
        plains = [_numbered([known[one.key] for one in drawn]) for known in partners]
        for kind, measure in measures.items():
            for name, found in measure(plains, own).items():
                whole = truth[kind].get(name)
                if not isinstance(whole, Estimate) or whole.low is None or not isinstance(found, Estimate):
                    continue
                is_hit = found.low is not None and found.high is not None and found.low <= whole.value <= found.high
                hits.setdefault((kind, name), []).append(is_hit)
    shares: dict[str, dict[str, float]] = {}
    for (kind, name), own_hits in hits.items():
        if len(own_hits) >= samples / 2:
            shares.setdefault(kind, {})[name] = float(np.mean(own_hits))
    return shares


def _numbered(records: Sequence[Record]) -> list[Record]:
    """An example that is drawn twice counts as two; all are of one replica."""
    return [replace(record, example=str(number), signature="all") for number, record in enumerate(records)]


def arms_of(folder: Path) -> list[Arm]:
    """Return the arms that have LEAST examples, replicas together, each with those that took turns with it."""
    pooled: dict[Experiment, list[Record]] = {}
    for file in record_files(folder):
        experiment = load_experiment(file)
        if experiment.batch_size == 1:
            records = [record for record in succeeded(load_records(file)) if record.repeat == 0]
            pooled.setdefault(_whole(experiment), []).extend(records)
    plain: dict[Experiment, list[list[Record]]] = {}
    for experiment, records in sorted(pooled.items(), key=lambda one: one[0].num_threads == 1):  # a pipeline's account asks so
        if experiment.method.name == "autoregressive":
            plain.setdefault(_beside(experiment), []).append(records)
    arms = []
    for experiment, records in pooled.items():
        if len(records) < LEAST:
            continue
        keys = {record.key for record in records}
        plains = [one for one in plain.get(_beside(experiment), ()) if keys <= {record.key for record in one}]
        rival: list[Record] = []
        if records[0].rule_times and experiment.method.rule != RuleSpec("baseline"):
            rival = pooled.get(experiment.replace(method=replace(experiment.method, rule=RuleSpec("baseline"))), [])
        has_rival = bool(rival and plains) and keys <= {record.key for record in rival}
        arms.append(Arm(experiment, (*plains, rival) if has_rival else tuple(plains), records, has_rival))
    return arms[:: ceil(len(arms) / MOST)] if arms else []


def _whole(experiment: Experiment) -> Experiment:
    """Return what the replicas of an arm have in common."""

    def of_all_trainings(spec: ModelSpec) -> ModelSpec:
        return replace(spec, name=spec.name.partition("@")[0], revision=None)

    return experiment.with_models(of_all_trainings).replace(replica=None, limit=1, probes=())


def _beside(experiment: Experiment) -> Experiment:
    """Return what the arms of a comparison have in common."""
    return experiment.replace(method=MethodSpec(name="autoregressive"), num_threads=None)


def report(evidence: Path, samples: int = SAMPLES) -> list[str]:
    """Return a line a kind of interval: the mean over arms and numbers, and the least, of the coverage in percent by n."""
    if evidence.suffix == ".json":
        return _table(FEW, _of_passes(evidence))
    folder = unpacked(evidence) if evidence.name.endswith(".tar.xz") else evidence
    if folder is None or not (arms := arms_of(folder)):
        raise UsageError(f"records {evidence}: no arm has {LEAST} examples; expected those of a table, such as table 9")
    found: dict[str, dict[int, list[float]]] = {}
    for arm in arms:
        measures = measures_of(arm)
        for n in SIZES:
            for kind, shares in coverage(measures, arm, n, samples).items():
                found.setdefault(kind, {}).setdefault(n, []).extend(shares.values())
    return _table(SIZES, found)


def _of_passes(file: Path) -> dict[str, dict[int, list[float]]]:
    """Simulate medians of the turns that passes were timed for."""
    rng, found = np.random.default_rng(0), dict[str, dict[int, list[float]]]()
    for one in read_passes(file):
        for turns in map(np.array, one.seconds):
            for n in FEW:
                intervals = [median(rng.choice(turns, n)) for _ in range(SAMPLES)]
                share = np.mean([a.low is not None and a.low <= np.median(turns) <= (a.high or 0) for a in intervals])
                found.setdefault(f"median of single times, of {one.turns}", {}).setdefault(n, []).append(float(share))
    return found


def _table(sizes: Sequence[int], found: Mapping[str, Mapping[int, list[float]]]) -> list[str]:
    cells = [["kind", "numbers", *(f"n = {n}" for n in sizes)]]
    for kind, by_n in found.items():
        shown = (f"{100 * np.mean(by_n[n]):.0f} (least {100 * min(by_n[n]):.0f})" if n in by_n else "-" for n in sizes)
        cells.append([kind, str(max(map(len, by_n.values()))), *shown])
    return text_table(cells)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python -m harness.report.coverage EVIDENCE [SAMPLES]  (a folder of records, an archive, or passes)")
    print("\n".join(report(Path(sys.argv[1]), *map(int, sys.argv[2:]))))
