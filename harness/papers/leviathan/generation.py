"""Leviathan et al., Figures 1 and 5: real generations; the tokens of one by what became of them, and where their time went.

Figure 1 has a line a round and is a page too. Figure 5 is drawn from the measured spans of rounds.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.core.experiment import Comparison
from harness.core.records import Record
from harness.core.settings import Settings
from harness.measures.pairing import succeeded
from harness.papers.leviathan.setup import generation_arm, trace_arms
from harness.tables import style
from harness.tables.base import Figure
from harness.tables.coloured import COLOURS, MEANINGS, Token, coloured_rounds, summary, to_html
from harness.tables.evidence import Evidence
from harness.tables.files import write_whole
from harness.tables.style import BLUE, GREY, ORANGE, PURPLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture

COLUMNS = 92
LINE_INCHES = 0.27
CHARACTER_INCHES = 0.0925
MONOSPACED = "DejaVu Sans Mono"
SPANS = {"encoder and prompt": ORANGE, "draft": BLUE, "target": PURPLE, "the rest of a round": GREY}
Span = tuple[str, float, float]


def draw_generation(settings: Settings, evidence: Evidence, folder: Path) -> list[Path]:
    """Draw the first example, not a chosen one."""
    arm = generation_arm(settings)
    records = succeeded(evidence.records_of(arm))
    if not records:
        raise style.not_recorded("leviathan-1", "no generation is recorded")
    decode = evidence.decoder_of(arm)
    rounds = coloured_rounds(records[0], decode)
    heading = (
        f"{arm.target.name} with {arm.method.drafter.label}, gamma {arm.method.gamma}, temperature {arm.sampling.temperature:g}"  # type: ignore[union-attr]
    )
    page = write_whole(folder / "leviathan-1.html", to_html(records[0], decode, heading))
    with style.look():
        return [*style.save(_draw_rounds(rounds, heading, evidence.ran([arm])), folder, "leviathan-1"), page]


def _draw_rounds(rounds: Sequence[Sequence[Token]], heading: str, ran: str) -> "Picture":
    shown = [[Token(style.printable(one.text, MONOSPACED), one.kind) for one in tokens] for tokens in rounds]
    lines = [line for number, tokens in enumerate(shown, start=1) for line in _wrap(number, tokens)]
    figure = style.new_figure((COLUMNS + 6) * CHARACTER_INCHES, (len(lines) + 3) * LINE_INCHES)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(-5, COLUMNS + 1), ylim=(len(lines) + 1.6, -1.4))
    axes.set_axis_off()
    axes.text(-4.5, -0.8, f"{heading}: {summary(rounds)}", fontsize=10.5, va="center", fontweight="bold", parse_math=False)
    for height, (number, tokens) in enumerate(lines):
        _draw_line(axes, height, number, tokens)
    handles = [style.legend_patch(color=COLOURS[kind], label=meaning) for kind, meaning in MEANINGS.items()]
    axes.legend(
        handles=handles, loc="lower left", ncols=3, fontsize=9, bbox_to_anchor=(0.02, -0.02), columnspacing=1.5, handlelength=1
    )
    style.footnote(figure, "A line is one run of the target. Spaces are shown as they are; ⏎ is a line break.", ran)
    return figure


def _wrap(number: int, tokens: Sequence[Token]) -> list[tuple[int | None, list[Token]]]:
    """A round on as many lines as it needs; only the first carries its number."""
    lines: list[tuple[int | None, list[Token]]] = [(number, [])]
    used = 0
    for token in tokens:
        if used + len(token.text) > COLUMNS and lines[-1][1]:
            lines.append((None, []))
            used = 0
        lines[-1][1].append(token)
        used += len(token.text)
    return lines


def _draw_line(axes: "Axes", height: int, number: int | None, tokens: Sequence[Token]) -> None:
    if number is not None:
        axes.text(-1.2, height, str(number), ha="right", va="center", fontsize=9, color="#777777")
    column = 0
    for token in tokens:
        width, colour = len(token.text), COLOURS[token.kind]
        axes.fill_between([column + 0.04, column + width - 0.04], height - 0.4, height + 0.4, color=colour, alpha=0.18, lw=0)
        for offset, character in enumerate(token.text):
            axes.text(
                column + offset + 0.5, height, character, ha="center", va="center", color=_darken(colour), fontsize=11,
                family=MONOSPACED, parse_math=False, fontweight="bold" if token.kind == "corrected" else "normal",
            )  # fmt: skip
        if token.kind in ("rejected", "dropped"):
            axes.plot([column + 0.1, column + width - 0.1], [height, height], color=colour, lw=1)
        if token.kind == "bonus":
            axes.plot([column + 0.1, column + width - 0.1], [height + 0.36] * 2, color=colour, lw=1.2)
        column += width


def _darken(colour: str) -> str:
    """Return the same hue, dark enough to read on its own tint."""
    return "#" + "".join(f"{int(int(colour[i : i + 2], 16) * 0.72):02x}" for i in (1, 3, 5))


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
        raise style.not_recorded("leviathan-5", "no example is recorded in all its arms")
    plain = records[next(reversed(records))]
    key = sorted(common, key=lambda key: (plain[key].wall_s or 0.0, key))[len(common) // 2]
    with style.look():
        figure = style.new_figure(10, 3.6)
        axes = figure.subplots()
        for lane, arm in enumerate(records.values()):
            _draw_lane(axes, -lane, arm[key])
            _write_caption(axes, -lane, arm[key])
        _label_axes(axes, list(records))
        style.footnote(
            figure,
            f"Measured spans of example {key[0]}, {style.data_of(settings)}, on {settings.device}, temperature 0. A round's "
            "drafts are drawn equally long.",
            evidence.ran(list(arms.values())),
        )
        return style.save(figure, folder, "leviathan-5")


def _draw_lane(axes: "Axes", height: float, record: Record) -> None:
    for kind, colour in SPANS.items():
        bars = [(start * 1e3, seconds * 1e3) for name, start, seconds in spans(record) if name == kind]
        axes.broken_barh(bars, (height - 0.3, 0.6), facecolors=colour, edgecolor="white", linewidth=0.4)


def _write_caption(axes: "Axes", height: float, record: Record) -> None:
    wall_ms, steps = (record.wall_s or 0.0) * 1e3, record.steps
    runs = len(steps.drafted) if steps else 0
    text = f"{len(record.tokens or ())} tokens, {runs} runs, {wall_ms:.0f} ms"
    axes.annotate(text, (wall_ms, height), xytext=(6, 0), textcoords="offset points", va="center", fontsize=10)


def _label_axes(axes: "Axes", labels: Sequence[str]) -> None:
    axes.set(title="Where the time goes", xlabel="time (ms)", ylim=(-len(labels) + 0.5, 0.5))
    axes.set_yticks([-lane for lane in range(len(labels))], labels)
    axes.grid(axis="y", visible=False)
    axes.set_xlim(0, axes.get_xlim()[1] * 1.16)
    handles = [style.legend_patch(color=colour, label=kind) for kind, colour in SPANS.items()]
    axes.legend(handles=handles, loc="lower left", bbox_to_anchor=(0.3, 1.0), ncols=4, columnspacing=1.2, handlelength=1.2)


GENERATION = Figure(
    name="leviathan-1",
    title="a generation, round by round",
    plan=lambda settings: [Comparison((generation_arm(settings),))],
    draw=draw_generation,
)
TRACE = Figure(
    name="leviathan-5",
    title="where the time of a generation goes",
    plan=lambda settings: [Comparison(tuple(trace_arms(settings).values()))],
    draw=draw_trace,
)
