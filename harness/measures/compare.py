"""Two arms held against each other, example by example."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from harness.core.errors import UsageError
from harness.core.experiment import Experiment
from harness.core.records import Record
from harness.measures import of_run as measures
from harness.measures.statistics import Estimate
from tasks import get_task


@dataclass(frozen=True)
class Difference:
    """Every metric of both sides, the paired speed-up, and what else differs between them."""

    names: tuple[str, str]
    fields: dict[str, tuple[Any, Any]]
    shared: int
    same_tokens: int
    speedup: Estimate | None
    refused: str | None
    metrics: dict[str, tuple[Estimate | None, Estimate | None]]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def as_text(self) -> str:
        lines = [f"A {self.names[0]}", f"B {self.names[1]}"]
        lines += [f"  {name}: {a!r} | {b!r}" for name, (a, b) in self.fields.items()]
        lines.append(f"{self.shared} shared runs, {self.same_tokens} with the same tokens")
        lines.append(f"{'speed of B over A':28s} {_text(self.speedup) if self.speedup else self.refused or 'unknown'}")
        lines += [f"{name:28s} A {_text(a):32s} B {_text(b)}" for name, (a, b) in self.metrics.items()]
        return "\n".join(lines)


def _text(estimate: Estimate | None) -> str:
    if estimate is None:
        return "unknown"
    spread = "" if estimate.low is None else f" [{estimate.low:.4g}, {estimate.high:.4g}]"
    return f"{estimate.value:.4g}{spread} {estimate.unit}".rstrip()


def compare_records(experiments: Sequence[Experiment], records: Sequence[list[Record]]) -> Difference:
    """Raises UsageError if the two share no successful example, since nothing could be paired."""
    first, second = ({r.key: r for r in measures.succeeded(side)} for side in records)
    shared = [key for key in first if key in second]
    if not shared:
        raise UsageError("compare: A and B share no example that succeeded; expected two runs of the same task, data and seed")
    speed = measures.speedup(records[0], records[1])
    metrics = [measures.all_metrics(get_task(e.task), side) for e, side in zip(experiments, records, strict=True)]
    return Difference(
        names=(experiments[0].signature, experiments[1].signature),
        fields=_different(experiments[0], experiments[1]),
        shared=len(shared),
        same_tokens=sum(first[key].tokens == second[key].tokens for key in shared),
        speedup=speed if isinstance(speed, Estimate) else None,
        refused=speed.why if isinstance(speed, measures.Missing) else None,
        metrics={name: (metrics[0].get(name), metrics[1].get(name)) for name in metrics[0] | metrics[1]},
    )


def _different(a: Experiment, b: Experiment) -> dict[str, tuple[Any, Any]]:
    values = {field.name: (getattr(a, field.name), getattr(b, field.name)) for field in fields(Experiment)}
    return {name: pair for name, pair in values.items() if pair[0] != pair[1]}
