"""Leviathan et al., Figure 5: where the time of one generation went, drawn from the measured spans of real rounds."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.core.errors import UsageError
from harness.core.records import Record
from harness.core.settings import Settings
from harness.measures.pairing import succeeded
from harness.papers.leviathan.setup import trace_arms
from harness.tables.evidence import Evidence
from harness.tables.style import BLUE, GREY, ORANGE, PURPLE, footnote, legend_patch, look, new_figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Span = tuple[str, float, float]
COLOURS = {"encoder and prompt": ORANGE, "draft": BLUE, "target": PURPLE, "the rest of a round": GREY}


def spans(record: Record) -> list[Span]:
    """(kind, start, seconds) in order. What precedes the rounds is all time outside them; a round's drafts share its time."""
    steps = record.steps
    if steps is None or record.wall_s is None or len(steps.round_s) != len(steps.drafted):
        return []
    start = max(record.wall_s - sum(steps.round_s), 0.0)
    out: list[Span] = [("encoder and prompt", 0.0, start)]
    # Plain decoding has neither drafts nor a separate verification: its round is one run of the target.
    draft_times, verify_times = steps.draft_s or [0.0] * len(steps.drafted), steps.verify_s or steps.round_s
    for drafted, draft_s, verify_s, round_s in zip(steps.drafted, draft_times, verify_times, steps.round_s, strict=True):
        end = start + round_s
        for _ in drafted:
            out.append(("draft", start, draft_s / len(drafted)))
            start += draft_s / len(drafted)
        target_s = verify_s if drafted else round_s
        out += [("target", start, target_s), ("the rest of a round", start + target_s, max(end - start - target_s, 0.0))]
        start = end
    return out


def draw_trace(settings: Settings, evidence: Evidence, folder: Path) -> list[Path]:
    """One lane a gamma, the same example in each: the one of median baseline time."""
    arms = trace_arms(settings)
    records = {label: {record.key: record for record in succeeded(evidence.records_of(arm))} for label, arm in arms.items()}
    common = [
        key for key in next(iter(records.values())) if all(spans(arm[key]) if key in arm else False for arm in records.values())
    ]
    if not common:
        raise UsageError("figure leviathan-5: no example is recorded in all its arms; run `make reproduce-figure-leviathan-5`")
    plain = records[next(reversed(records))]
    key = sorted(common, key=lambda key: (plain[key].wall_s or 0.0, key))[len(common) // 2]
    with look():
        figure = new_figure(10, 3.6)
        axes = figure.subplots()
        for lane, (label, arm) in enumerate(records.items()):
            _lane(axes, -lane, arm[key])
            _caption(axes, -lane, label, arm[key])
        _dress(axes, list(records))
        footnote(
            figure,
            f"Measured spans of example {key[0]}, profile {settings.profile}, data {Path(settings.source).name}, on "
            f"{settings.device}, temperature 0. A round's drafts are drawn equally long.",
        )
        return save(figure, folder, "leviathan-5")


def _lane(axes: "Axes", height: float, record: Record) -> None:
    for kind, colour in COLOURS.items():
        bars = [(start * 1e3, seconds * 1e3) for name, start, seconds in spans(record) if name == kind]
        axes.broken_barh(bars, (height - 0.3, 0.6), facecolors=colour, edgecolor="white", linewidth=0.4)


def _caption(axes: "Axes", height: float, label: str, record: Record) -> None:
    wall_ms, steps = (record.wall_s or 0.0) * 1e3, record.steps
    runs = len(steps.drafted) if steps else 0
    text = f"{len(record.tokens or ())} tokens, {runs} runs, {wall_ms:.0f} ms"
    axes.annotate(text, (wall_ms, height), xytext=(6, 0), textcoords="offset points", va="center", fontsize=10)


def _dress(axes: "Axes", labels: Sequence[str]) -> None:
    axes.set(title="Where the time goes", xlabel="time (ms)", ylim=(-len(labels) + 0.5, 0.5))
    axes.set_yticks([-lane for lane in range(len(labels))], labels)
    axes.grid(axis="y", visible=False)
    axes.set_xlim(0, axes.get_xlim()[1] * 1.16)
    handles = [legend_patch(color=colour, label=kind) for kind, colour in COLOURS.items()]
    axes.legend(handles=handles, loc="lower left", bbox_to_anchor=(0.3, 1.0), ncols=4, columnspacing=1.2, handlelength=1.2)
