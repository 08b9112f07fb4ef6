"""How often unchanged code moves a number of the pinned set: on other seeds, one thread beside two.

A seed's answer is kept as soon as it is known, in a file of this code and machine, so that a killed count goes on.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from harness.core.checkout import ROOT, hash_code
from harness.core.environment import describe
from harness.core.files import LineFile
from harness.exact.run import finding_line, read_findings
from harness.measures.statistics import CONFIDENCE, exact_interval
from harness.report.pinned import pinned_set
from harness.report.regress import measure, moves
from harness.run.runner import Runner

CODE = ("harness", "methods", "kernels", "tasks")
NUM_EXAMPLES = 4  # of each comparison


def alarms_file(folder: Path) -> Path:
    """Name the file of this code, these versions and this machine."""
    here = {name: value for name, value in describe().items() if name != "commit"}
    return folder / f"false-alarms-{hash_code(CODE, json.dumps(here), ROOT)}.jsonl"


def false_alarms(file: Path, seeds: Sequence[int]) -> Iterator[list[str]]:
    """Yield for every seed what moved between runs of a few examples on one thread and on two; none that the file has is run.

    Raises:
        UsageError: the file was changed, or another process is writing it.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    known = read_findings(file)
    with LineFile(file) as kept:
        for seed in seeds:
            name = f"seed {seed}"
            if name not in known:
                known[name] = {"moved": _moved(seed)}
                kept.write(finding_line(name, known[name]))
            yield known[name]["moved"]


def _moved(seed: int) -> list[str]:
    with TemporaryDirectory() as folder:
        runs = [measure(Runner(Path(folder), quiet=True), pinned_set(seed, threads, NUM_EXAMPLES)) for threads in (1, 2)]
    return [f"{move.comparison}, {move.metric}: {move.baseline} -> {move.now}{move.where}" for move in moves(*runs)]


def most_false_alarms(counts: Sequence[int]) -> float:
    """Return the share of runs below which false alarms are with 95 % confidence, from how many numbers moved on each seed.

    A seed counts once, however many comparisons it has: these share models and random numbers.
    """
    return exact_interval(sum(map(bool, counts)), len(counts), 1 - CONFIDENCE)[1]
