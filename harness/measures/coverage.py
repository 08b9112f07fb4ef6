"""How often 95 % intervals contain the truth, by simulation on records: ``python -m harness.measures.coverage FOLDER``.

The recorded examples of an arm stand for all there are, so that their number is the truth. Samples of n examples are drawn from
them with replacement, each gets its interval, and those that contain the truth are counted. What differs between trainings,
sessions and machines is not in it: an interval is over examples alone.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from harness.core.errors import UsageError
from harness.core.experiment import Experiment
from harness.core.record_files import load_experiment, load_records, record_files
from harness.core.records import Record
from harness.core.text import text_table
from harness.measures import of_run
from harness.measures.pairing import paired, succeeded
from harness.measures.statistics import Estimate, ratio_of_examples, ratio_of_totals
from tasks import get_task

SIZES, SAMPLES = (20, 30, 60, 100, 200), 200
LEAST = 60  # recorded examples that may stand for all there are
Arm = tuple[Experiment, list[Record]]
Measure = Callable[[list[Record], list[Record]], Estimate | None]


def cut_short(records: Sequence[Record]) -> Estimate | None:
    """Return the percentage of outputs that the length limit ended."""
    return ratio_of_examples([(one.unit, 100.0 * (one.stop_reason == "length"), 1.0) for one in records], "%", 100.0)


def measures_of(experiment: Experiment, records: Sequence[Record]) -> dict[str, list[Measure]]:
    """Return what can be measured of an arm and plain decoding beside it, by the kind of its interval."""
    drafters = dict.fromkeys(one.drafter for record in records for one in record.overlap)
    alphas: list[Measure] = [lambda _, own, name=name: of_run.alpha_overlap(own, name) for name in drafters]  # type: ignore[misc]
    if experiment.method.drafter is not None:
        alphas.append(lambda _, own: of_run.accepted_over_verified(own))
    task = get_task(experiment.task)
    score = next(iter(of_run.of_task(task, records)), "")
    found: dict[str, list[Measure]] = {
        "share of examples, exact": [lambda _, own: cut_short(own)],
        "share of tokens": alphas,
        "mean": [lambda _, own: ratio_of_examples([(one.unit, len(one.tokens or ()), 1.0) for one in own])],
        "score of a task": [lambda _, own: of_run.of_task(task, own).get(score)],
    }
    if experiment.method.name != "autoregressive":
        found["ratio of paired times"] = [_time_ratio]
        found["ratio of speeds"] = [_speed_ratio]
        found["tokens a round"] = [lambda _, own: of_run.tokens_per_step(own)]
    return found


def _time_ratio(plain: list[Record], own: list[Record]) -> Estimate | None:
    rows = paired(plain, own, lambda record: (record.wall_s or np.nan,))
    return None if rows is None else ratio_of_totals(rows.first[0], rows.second[0], replicas=rows.replicas)


def _speed_ratio(plain: list[Record], own: list[Record]) -> Estimate | None:
    found = of_run.speedup(plain, own)
    return found if isinstance(found, Estimate) else None


def coverage(measure: Measure, plain: list[Record], own: list[Record], n: int, samples: int = SAMPLES) -> float | None:
    """Return the share of samples of ``n`` whose interval contains the number of all; None where all have the same."""
    truth = measure(plain, own)
    if truth is None or truth.low is None:
        return None
    rng, partners = np.random.default_rng(n), {record.key: record for record in plain}
    hits = []
    for _ in range(samples):
        drawn = [own[index] for index in rng.integers(0, len(own), n)]
        beside = [partners[one.key] for one in drawn if one.key in partners]
        found = measure(_numbered(beside), _numbered(drawn))
        is_known = found is not None and found.low is not None and found.high is not None
        hits.append(is_known and found.low <= truth.value <= found.high)  # type: ignore[union-attr, operator]
    return float(np.mean(hits))


def _numbered(records: Sequence[Record]) -> list[Record]:
    """An example that is drawn twice counts as two."""
    return [replace(record, example=str(number)) for number, record in enumerate(records)]


def report(folder: Path) -> list[str]:
    """Return a line a kind of interval: the mean over arms and numbers, and the least, of the coverage in percent by n."""
    arms: list[Arm] = []
    for file in record_files(folder):
        records = [record for record in succeeded(load_records(file)) if record.repeat == 0]
        if len(records) >= LEAST:
            arms.append((load_experiment(file), records))
    if not arms:
        raise UsageError(f"records {folder}: no arm has {LEAST} examples; expected those of a table, such as table 9")
    plains = {one.comparison: records for one, records in arms if one.method.name == "autoregressive"}
    found: dict[str, dict[int, list[float]]] = {}
    for experiment, own in arms:
        for kind, measures in measures_of(experiment, own).items():
            for measure in measures:
                for n in SIZES:
                    if (share := coverage(measure, plains.get(experiment.comparison, []), own, n)) is not None:
                        found.setdefault(kind, {}).setdefault(n, []).append(share)
    cells = [["kind", "numbers", *(f"n = {n}" for n in SIZES)]]
    for kind, by_n in found.items():
        shown = (f"{100 * np.mean(shares):.0f} (least {100 * min(shares):.0f})" for shares in by_n.values())
        cells.append([kind, str(len(by_n[SIZES[0]])), *shown])
    return text_table(cells)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m harness.measures.coverage FOLDER  (of records, such as results/records)")
    print("\n".join(report(Path(sys.argv[1]))))
