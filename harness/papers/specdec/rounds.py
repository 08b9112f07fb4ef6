"""SpecDec, Figures 1 and 3: two iterations of a real translation, from what goes into the drafter to what goes into it next.

Boxes of one column are one position of the output. Nothing is made up: blocks, first choices and what stood are a record's.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.core.experiment import Experiment
from harness.core.records import Record
from harness.core.settings import Settings
from harness.papers.specdec.examples import COLOURS, END, Iteration, trace_of
from harness.papers.specdec.setup import STRICT
from harness.papers.specdec.traces import RELAXED, TRACES, arms, heading, traceable
from harness.tables import style
from harness.tables.base import Figure
from harness.tables.coloured import Kind
from harness.tables.evidence import Evidence, show_ids

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture

NUM_SHOWN = 2
NUM_KNOWN = 4  # of what stood before, the last so many are shown
MASK, BEGIN, MORE = "[MASK]", "[BOS]", "…"
CHARACTER, PADDING, GAP, HEIGHT, TALL = 0.082, 0.16, 0.07, 0.46, 0.3  # inches
LABELS = ("NAT: input", "NAT: draft", "AT: first choice", "next input")
LEGEND: dict[Kind, str] = {
    "before": "stood before",
    "accepted": "stands: the verifier's first choice",
    "candidate": "stands: among the top beta, within tau",
    "rejected": "bifurcation",
    "corrected": "the verifier's own",
    "dropped": "discarded",
}
Wish = Callable[[Iteration], bool]


@dataclass(frozen=True)
class _Box:
    """A token in a column; ``kind`` None is a mask."""

    column: int
    text: str
    kind: Kind | None


def draw_strict(settings: Settings, evidence: Evidence, folder: Path) -> list[Path]:
    """Figure 1: drafts up to the bifurcation are the verifier's first choices."""
    wishes: list[Wish] = [lambda one: _bifurcates(one) and _num(one, "accepted") > 1 and _num(one, "before") > 0, _bifurcates]
    return _draw("specdec-1", STRICT, wishes, settings, evidence, folder)


def draw_relaxed(settings: Settings, evidence: Evidence, folder: Path) -> list[Path]:
    """Figure 3: a draft that is not the verifier's first choice stands, and what follows is decided on it."""
    wishes: list[Wish] = [
        lambda one: _bifurcates(one) and _num(one, "candidate") > 0,
        lambda one: _num(one, "candidate") > 0,
        _bifurcates,
    ]
    return _draw("specdec-3", RELAXED, wishes, settings, evidence, folder)


def _num(one: Iteration, kind: Kind) -> int:
    return sum(token.kind == kind for token in one.drafter)


def _bifurcates(one: Iteration) -> bool:
    return one.bifurcation is not None


def _draw(
    figure_name: str, method: str, wishes: Sequence[Wish], settings: Settings, evidence: Evidence, folder: Path
) -> list[Path]:
    arm = arms(settings)[method]
    records = traceable(evidence.records_of(arm)) if isinstance(arm, Experiment) else []
    decode = evidence.decoder_of(arm) if isinstance(arm, Experiment) else show_ids
    record, first = _choose(figure_name, records, decode, wishes)
    iterations = trace_of(record, decode, "").iterations[first : first + NUM_SHOWN]
    source = evidence.sources_of(arm).get(record.example) if isinstance(arm, Experiment) else None
    with style.look():
        figure = _picture(iterations, first, heading(method, settings), source)
        style.footnote(
            figure, _provenance(settings, record, method), evidence.ran([arm] if isinstance(arm, Experiment) else [])
        )
        return style.save(figure, folder, figure_name)


def _choose(
    figure_name: str, records: Sequence[Record], decode: Callable[[Sequence[int]], str], wishes: Sequence[Wish]
) -> tuple[Record, int]:
    """The first iteration, with another behind it, that fulfils the first wish; where there is none, the next wish."""
    traces = [(record, trace_of(record, decode, "")) for record in records]
    for wish in wishes:
        for record, trace in traces:
            for index, one in enumerate(trace.iterations[: 1 - NUM_SHOWN]):
                if wish(one):
                    return record, index
    raise style.not_recorded(figure_name, "no recorded run has an iteration of the kind it shows")


def boxes(one: Iteration) -> list[list[_Box]]:
    """The four rows of an iteration. Columns count positions; -1 is what comes before those that are shown."""
    known = [token for token in one.drafter if token.kind == "before"]
    cut = max(len(known) - NUM_KNOWN, 0)
    prefix = [_Box(-1, MORE if cut else BEGIN, "before")]
    prefix += [_Box(column, token.text, "before") for column, token in enumerate(known[cut:])]
    start = len(prefix) - 1
    drafted = [_Box(start + i, token.text, token.kind) for i, token in enumerate(one.drafter[len(known) :])]
    made = [token for token in one.verifier[len(known) :] if token.kind != "dropped"]
    # The verifier's choice is taken over where it made the token; a draft that stands in its place discards it.
    kinds: list[Kind] = ["dropped" if token.kind == "candidate" else "accepted" for token in made]
    if made[-1].kind in ("corrected", "bonus"):
        kinds[-1] = "corrected"
    ended = made[-1].text == END
    seen = one.choices[: len(made) if ended else len(drafted) + 1]
    choices = [_Box(start + i, text, kinds[i] if i < len(kinds) else "dropped") for i, text in enumerate(seen)]
    masks = [_Box(box.column, MASK, None) for box in drafted]
    after = [_Box(start + i, token.text, "before") for i, token in enumerate(made)]
    following = [_Box(start + i, MASK, None) for i in range(len(made), len(made) if ended else len(drafted) + 1)]
    return [[*prefix, *masks], drafted, choices, [*prefix, *after, *following]]


def _picture(iterations: Sequence[Iteration], first: int, title: str, source: str | None) -> "Picture":
    shown = [boxes(one) for one in iterations]
    widths = [_widths(rows) for rows in shown]
    wide = max(sum(GAP + width for width in one.values()) for one in widths) + 1.5
    tall = len(shown) * (len(LABELS) + 0.75) * HEIGHT + 1.2
    figure = style.new_figure(wide, tall)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(-1.5, wide - 1.5), ylim=(tall - 0.75, -0.75))
    axes.set_axis_off()
    axes.text(-1.4, -0.55, title, fontsize=12, fontweight="bold", va="center", parse_math=False)
    if source is not None:
        axes.text(
            -1.4, -0.22, style.printable(f"Source: {source}"), fontsize=10, va="center", color="#555555", parse_math=False
        )
    for number, (rows, width) in enumerate(zip(shown, widths, strict=True)):
        top = number * (len(LABELS) + 0.75) * HEIGHT + 0.3
        axes.text(-1.4, top - 0.12, f"iteration {first + number + 1}", fontsize=9.5, color="#777777", va="center")
        _iteration(axes, top + 0.22, rows, width)
    used = {box.kind for rows in shown for row in rows for box in row}
    handles = [
        style.legend_patch(color=COLOURS[kind], alpha=0.5, label=label) for kind, label in LEGEND.items() if kind in used
    ]
    axes.legend(handles=handles, loc="lower left", bbox_to_anchor=(0.0, 0.0), ncols=3, fontsize=9, handlelength=1.2)
    return figure


def _widths(rows: Sequence[Sequence[_Box]]) -> dict[int, float]:
    """Inches of every column."""
    columns = sorted({box.column for row in rows for box in row})
    return {
        column: PADDING + CHARACTER * max(len(_shown(box.text)) for row in rows for box in row if box.column == column)
        for column in columns
    }


def _iteration(axes: "Axes", top: float, rows: Sequence[Sequence[_Box]], widths: dict[int, float]) -> None:
    left, at = {}, 0.0
    for column, width in widths.items():
        left[column], at = at, at + width + GAP
    labels = [*LABELS[:-1], "output" if rows[-1][-1].text == END else LABELS[-1]]
    for number, (label, row) in enumerate(zip(labels, rows, strict=True)):
        height = top + number * HEIGHT
        axes.text(-0.12, height, label, ha="right", va="center", fontsize=10)
        for box in row:
            _box(axes, left[box.column], height, widths[box.column], box)
            if label == LABELS[1] and box.kind != "dropped":
                _tick(axes, left[box.column] + widths[box.column] / 2, height + HEIGHT / 2, box.kind != "rejected")


def _box(axes: "Axes", left: float, height: float, width: float, box: _Box) -> None:
    from matplotlib.patches import FancyBboxPatch

    colour = "#BBBBBB" if box.kind is None else COLOURS[box.kind]
    axes.add_patch(
        FancyBboxPatch(
            (left, height - TALL / 2), width, TALL, boxstyle="round,pad=0,rounding_size=0.05", lw=1.1, edgecolor=colour,
            facecolor=(colour, 0.05 if box.kind in (None, "before", "dropped") else 0.25), ls="--" if box.kind is None else "-",
        )
    )  # fmt: skip
    axes.text(
        left + width / 2, height, _shown(box.text), ha="center", va="center", fontsize=9.5, parse_math=False,
        color="#999999" if box.kind in (None, "dropped") else "black",
    )  # fmt: skip
    if box.kind == "dropped":
        axes.plot([left + 0.06, left + width - 0.06], [height, height], color="#999999", lw=0.9)


def _tick(axes: "Axes", middle: float, height: float, stands: bool) -> None:
    mark, colour = ("\N{CHECK MARK}", COLOURS["accepted"]) if stands else ("\N{BALLOT X}", COLOURS["rejected"])
    axes.text(middle, height, mark, ha="center", va="center", fontsize=9, color=colour, fontweight="bold")


def _shown(text: str) -> str:
    return style.printable(text).strip() or "□"


def _provenance(settings: Settings, record: Record, method: str) -> str:
    relaxed = " First choices are given the drafts that stand." if method == RELAXED else ""
    made = f"Example {record.example}, {style.data_of(settings)}, on {settings.device}."
    return f"{made} A column is a position of the output.{relaxed}"


ITERATION = Figure(name="specdec-1", title="an iteration: draft, verify, bifurcation", plan=TRACES.plan, draw=draw_strict)
RELAXED_ITERATION = Figure(
    name="specdec-3", title="the same by SpecDec++: what a relaxed rule lets stand", plan=TRACES.plan, draw=draw_relaxed
)
