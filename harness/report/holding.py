"""Holding a pair against its baseline: run the same examples anew, and say what moved.

On a CPU in fp64, or on the machine of the baseline, a run gives the same numbers again, and any difference is a change.
Elsewhere rounding moves some examples, in either direction alike; then a number has moved if a test of pairs says so, which
among all numbers of a run happens by rounding alone with a chance of at most FALSE_ALARM (``harness.measures.paired_tests``).
A new draft is judged so everywhere: the examples' numbers are as likely to rise as to fall where it is as good as the old one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.core.errors import UsageError
from harness.core.experiment import Comparison, Experiment, ModelSpec
from harness.measures.paired_tests import at_least, holm, signed_rank
from harness.measures.statistics import Estimate, ratio_of_examples
from harness.measures.verdicts import NOT_KEPT
from harness.report.baseline import FAILED, FALSE_ALARM, OUTPUT, Baseline, measured_now, pin_all, read, relative_name
from harness.report.regress import Move, moved_metrics, same
from harness.run.build import specs_of
from tasks.sources.source import Source

ROUNDED = {"float32": 0.05, "float64": 0.05, "bfloat16": 0.5, "float16": 0.5}  # at most this share of outputs parts by rounding
MEASURED = "numbers an example has"  # one in which nothing was drafted has no acceptance
Examples = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Change:
    """A number that differs from the baseline: by how much an example's does, how likely by rounding, and whether it counts.

    ``difference`` is None of what is no number, ``p`` where nothing was tested.
    """

    move: Move
    difference: Estimate | None = None
    p: float | None = None
    counts: bool = True

    def as_text(self) -> str:
        values = (self.move.baseline, self.move.now)
        text = f"{self.move.metric}: {'differs' if values == ('-', '-') else ' -> '.join(values)}{self.move.where}"
        if (found := self.difference) is not None:
            text += f"; in an example {found.as_text('+.3g')}"
        return text if self.p is None else f"{text}; p {self.p:.2g}"


@dataclass(frozen=True)
class Judgement:
    """What a run says of a baseline: a summary, and all that differs."""

    summary: str
    changes: tuple[Change, ...]

    @property
    def moved(self) -> bool:
        return any(change.counts for change in self.changes)

    def as_text(self) -> str:
        lines = [f"  {'moved' if one.counts else 'by chance'}  {one.as_text()}" for one in self.changes]
        return "\n".join([self.summary, *lines])


def hold(path: Path, new_draft: bool = False, quiet: bool = False) -> Judgement:
    """Run a baseline's examples anew and judge what differs. ``new_draft``: its draft may be another, and is tested for it.

    Raises:
        UsageError: the file cannot be read or was edited; other weights or data than it was written of.
    """
    baseline = read(path)
    pinned = pin_all(baseline.comparison)
    _refuse_others(path, baseline, pinned, new_draft)
    return judge(path, baseline, measured_now(pinned, quiet), new_draft)


def judge(path: Path, baseline: Baseline, now: Baseline, new_draft: bool = False) -> Judgement:
    """Say what differs from a baseline and what of it counts.

    Raises:
        UsageError: the examples are not the same.
    """
    before, after = baseline.measured, now.measured
    for example in sorted(before["examples"].keys() ^ after["examples"].keys()):
        where = "was not run" if example in before["examples"] else "is not in the baseline"
        raise UsageError(
            f"baseline {path}: refused: example {example!r} {where}; expected the same examples, or --update REASON"
        )
    experiment = now.comparison.arms[-1]
    apart = _apart(baseline, now)
    strict = experiment.device == "cpu" and (experiment.dtype == "float64" or not apart) and not new_draft
    found = moved_metrics("", before, after)
    if strict:
        changes = [Change(move) for move in found]
        how = f"{'fp64' if experiment.dtype == 'float64' else 'the same machine'}: any difference is a change"
    else:
        changes = _tested(baseline, now, found, new_draft)
        why = "a new draft" if new_draft else f"other {', '.join(apart)}" if apart else f"on {experiment.device}"
        how = f"{why}: tested example by example, at most {FALSE_ALARM:g} false alarms a run"
    if before["verdict"] != after["verdict"]:
        move = Move("", "audit", before["verdict"], after["verdict"])
        changes.append(Change(move, counts=strict or after["verdict"] in NOT_KEPT))
    counted = sum(change.counts for change in changes)
    moved = f"{counted} numbers moved" if counted else "nothing moved"
    return Judgement(f"regress: {path}: {moved} ({len(before['examples'])} examples; {how})", tuple(changes))


def _apart(baseline: Baseline, now: Baseline) -> list[str]:
    """List in what the machines differ."""
    names = sorted(baseline.machine.keys() | now.machine.keys())
    return [name for name in names if baseline.machine.get(name) != now.machine.get(name)]


def _tested(baseline: Baseline, now: Baseline, found: list[Move], new_draft: bool) -> list[Change]:
    """Test every number as one family. What no example has any more, and one that fails, is never rounding."""
    experiment, before, after = now.comparison.arms[-1], baseline.measured, now.measured
    old, new = before["examples"], after["examples"]
    changed_sets = sum(old[name].keys() != new[name].keys() for name in old)
    if changed_sets:
        found = [*found, Move("", MEASURED, "all", "others", f"{changed_sets} of {len(old)} examples")]
    differences = {move.metric: _differences(move.metric, old, new) for move in found}
    p_values = {metric: signed_rank(list(differences.get(metric, {}).values())) for metric in before["metrics"]}
    p_values[MEASURED] = _by_rounding(changed_sets, len(old), experiment)
    if experiment.sampling.greedy or not new_draft:  # what is sampled hangs on the draft
        parted = sum(old[name][OUTPUT] != new[name][OUTPUT] for name in old)
        p_values[OUTPUT] = _by_rounding(parted, len(old), experiment)
    certain = {FAILED} | (before["metrics"].keys() ^ after["metrics"].keys())
    moved = certain | holm({name: p for name, p in p_values.items() if name not in certain}, FALSE_ALARM)
    return [
        Change(
            move,
            ratio_of_examples([(name, value, 1.0) for name, value in differences[move.metric].items()], ends=(None, None)),
            None if move.metric in certain else p_values.get(move.metric),
            move.metric in moved,
        )
        for move in found
    ]


def _by_rounding(hits: int, n: int, experiment: Experiment) -> float:
    """Return the chance that rounding parts so many outputs of ``n`` or more."""
    return at_least(hits, n, ROUNDED[experiment.dtype])


def _differences(metric: str, old: Examples, new: Examples) -> dict[str, float]:
    """Return by how much each example's number rose; 0 within its last digits. What is no number in both is left out."""
    pairs = {name: (one.get(metric), new[name].get(metric)) for name, one in old.items()}
    return {
        name: 0.0 if same(was, now) else now - was
        for name, (was, now) in pairs.items()
        if isinstance(was, float | int) and isinstance(now, float | int)
    }


def _refuse_others(path: Path, baseline: Baseline, pinned: Comparison, new_draft: bool) -> None:
    """UsageError for weights or data that are not what the baseline was written of. A draft may be, if it is a new one."""
    folder = path.resolve().parent
    for was, now in _specs(baseline.comparison, pinned):
        is_target = was.name == pinned.arms[-1].target.name
        if was.revision != now.revision and (is_target or not new_draft):
            remedy = "" if is_target else "--new-draft compares it with the old one, "
            raise UsageError(
                f"baseline {path}: refused: {'target' if is_target else 'draft'} {relative_name(was.name, folder)} has other "
                f"weights (revision {now.revision}, in the baseline {was.revision}); put those back; {remedy}--update REASON "
                "writes the baseline anew"
            )
    first, here = baseline.comparison.arms[0], pinned.arms[0]
    if first.source_fingerprint != here.source_fingerprint:
        data = relative_name(Source.of(first.source).place, folder)
        raise UsageError(
            f"baseline {path}: refused: {data} holds other data ({here.source_fingerprint}, in the baseline "
            f"{first.source_fingerprint}); put them back; --update REASON writes the baseline anew"
        )


def _specs(before: Comparison, now: Comparison) -> Iterator[tuple[ModelSpec, ModelSpec]]:
    """Yield every model of a comparison with what its name means now."""
    for arm, other in zip(before.arms, now.arms, strict=True):
        yield from zip(specs_of(arm), specs_of(other), strict=True)
