"""The goals of the device side: numbers with their source, and what the parts' files say of each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Documents = Mapping[str, Mapping[str, Any]]  # by the part's name
PROJECT = "this project's own, set for an H200 before any was at hand"
FLASHINFER = (
    "flashinfer's own figure for its chain kernel on a B200, softmax excluded; beside ours from logits, softmax included"
)
PPD = "the paper's claim: its output is that of greedy decoding"
CAPTURED, FUSED = "captured", "fused"
ONE = "batch 1, gamma 5, V 32000, alpha 0.8"
MANY = "batch 64, gamma 5, V 151936, alpha 0.8"


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What is wanted, and ``found``, which reads it from the documents: a number, a truth, or None where it is not there.

    ``least``, ``most``: what the number must reach, or not exceed; neither: it must be true.
    """

    name: str
    source: str
    found: Callable[[Documents], float | bool | None]
    least: float | None = None
    most: float | None = None
    unit: str = ""

    @property
    def wanted(self) -> str:
        if self.least is None and self.most is None:
            return "yes"
        return f">= {self.least:g} {self.unit}" if self.most is None else f"<= {self.most:g} {self.unit}"

    def is_met(self, value: float | bool) -> bool:
        if isinstance(value, bool):
            return value
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)


def judge(documents: Documents, is_rehearsal: bool) -> list[dict[str, Any]]:
    """Return a row a goal: what is wanted, what was found, and the verdict. A rehearsal meets and misses nothing."""
    rows = []
    for goal in GOALS:
        value = goal.found(documents)
        verdict = (
            "not reached" if value is None else "not judged" if is_rehearsal else "met" if goal.is_met(value) else "MISSED"
        )
        rows.append({"goal": goal.name, "wanted": goal.wanted, "found": value, "verdict": verdict, "source": goal.source})
    return rows


def all_passed(part: str) -> Callable[[Documents], bool | None]:
    """Say whether all items of a part were measured and none failed or is red; a red one says no before all are there."""

    def found(documents: Documents) -> bool | None:
        document = documents.get(part)
        if document is None:
            return None
        items: Sequence[Mapping[str, Any]] = list(document["items"].values())
        if any("failed" in item or item.get("passed") is False for item in items):
            return False
        return True if items and set(document["planned"]) <= set(document["items"]) else None

    return found


def of_kernel(shape: str, column: str) -> Callable[[Documents], float | None]:
    """Read a column of the fused kernel's captured row at a shape."""

    def found(documents: Documents) -> float | None:
        rows = documents.get("kernels", {"items": {}})["items"].get(shape, {}).get("rows", [])
        values = [row[column] for row in rows if (row["kernel"], row["way"]) == (FUSED, CAPTURED)]
        return float(values[0]) if values else None

    return found


def top_k_ratio(documents: Documents) -> float | None:
    """The time with top-k 50 over that without a filter."""
    filtered, plain = (of_kernel(shape, "us")(documents) for shape in (f"{ONE}, top-k 50", ONE))
    return None if filtered is None or plain is None else filtered / plain


def waits_a_round(documents: Documents) -> float | None:
    """The most waits for the device a round, of our loops with a draft."""
    items = documents.get("loops", {"items": {}})["items"].values()
    rows = [row for item in items for row in item.get("rows", []) if ", ours" in row["loop"]]
    return max((row["waits a round"] for row in rows if row.get("waits a round") is not None), default=None)


def audit_passed(documents: Documents) -> bool | None:
    """Say whether every subject is green and every control was caught."""
    items = documents.get("audit", {"items": {}})["items"].values()
    missed = any(row["verdict"] == "MISSED" for item in items for row in item.get("rows", []))
    return False if missed else all_passed("audit")(documents)


GOALS = (
    Goal(name="every kernel check green", source=PROJECT, found=all_passed("checks")),
    Goal(name=f"fused, captured, fp16, {ONE}", source=PROJECT, found=of_kernel(ONE, "us"), most=8, unit="us"),
    Goal(
        name=f"fused, captured, fp16, {MANY}", source=PROJECT, found=of_kernel(MANY, "of copy bandwidth"), least=0.6,
        unit="of copy bandwidth",
    ),
    Goal(name="top-k 50 over no filter", source=PROJECT, found=top_k_ratio, most=1.3, unit="times"),
    Goal(
        name="fused, captured, batch 16, gamma 5, V 32000", source=FLASHINFER, most=27.2, unit="us",
        found=of_kernel("batch 16, gamma 5, V 32000, alpha 0.8", "us"),
    ),
    Goal(
        name="fused, captured, batch 32, gamma 8, V 128256", source=FLASHINFER, most=78.3, unit="us",
        found=of_kernel("batch 32, gamma 8, V 128256, alpha 0.8", "us"),
    ),
    Goal(name="waits for the device a round, ours", source=PROJECT, found=waits_a_round, most=1.1, unit="of 1"),
    Goal(name="tables recorded without a failed example", source=PROJECT, found=all_passed("tables")),
    Goal(name="PPD's tokens are plain decoding's", source=PPD, found=all_passed("pipeline")),
    Goal(name="audit passed, every control caught", source=PROJECT, found=audit_passed),
)  # fmt: skip
