"""PPD, Figures 1 and 2: a few tokens of a real pipeline as they were computed, on the time axis of the machine.

The main process's spans and each sub-process's work were measured while it ran; Figure 2 has Algorithm 2's idea of the same
rounds beneath, from the simulator, in layers.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.core.experiment import Comparison, Experiment
from harness.core.records import Record
from harness.core.settings import Settings
from harness.measures.pairing import succeeded
from harness.papers.ppd.pipeline import ROLE, SHOWN, comparison, shown_arm
from harness.papers.ppd.setup import depth_of
from harness.tables import style
from harness.tables.base import Figure
from harness.tables.evidence import Evidence
from harness.tables.style import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY
from methods.steps import PARTS, Steps

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {
    "early_layers": BLUE,
    "early_head": ORANGE,
    "post": PURPLE,
    "late_layers": SKY,
    "head": GREEN,
    "wait": GREY,
    "adopt": PURPLE,
}
RIGHT, WRONG, ARROW = "#8FBF8F", "#E8D8D8", "#1B5E20"
LABELS = {
    BLUE: "layers up to the early one",
    ORANGE: "early head",
    SKY: "later layers",
    GREEN: "head: the token",
    GREY: "waiting",
    PURPLE: "request, hand-over",
    RIGHT: "candidate, right",
    WRONG: "candidate, discarded",
}
NUM_SHOWN = 4
LONGEST = 14  # characters of a token
TALL = 0.34  # half the height of a bar, in lanes


@dataclass(frozen=True)
class _Shown:
    """Consecutive rounds of one generation: ``first`` of ``count``, each with its candidates' work measured."""

    experiment: Experiment
    record: Record
    first: int
    count: int

    @property
    def steps(self) -> Steps:
        assert self.record.steps is not None
        return self.record.steps

    @property
    def tokens(self) -> list[int]:
        assert self.record.tokens is not None
        return self.record.tokens

    def rounds(self) -> range:
        return range(self.first, self.first + self.count)


def draw_overview(settings: Settings, evidence: Evidence, folder: Path) -> list[Path]:
    """Figure 1: three candidates a token; the one that proves right is carried on."""
    shown = _choose(settings, evidence, 3, (lambda hits: True in hits and False in hits, any), "ppd-1")
    text = _decoder(shown, evidence)
    with style.look():
        figure = style.new_figure(11, 3.4)
        axes = figure.subplots()
        _main_lane(axes, shown, depth_of(settings, ROLE), text)
        for slot in range(3):
            _candidate_lane(axes, shown, slot, text, shared=True)
        _label_axes(axes, ["main process", *[f"candidate {slot + 1}" for slot in range(3)]], "time (ms)", legend=True)
        axes.set_title("Three candidates begin while the token is still being computed")
        style.footnote(
            figure,
            _provenance(settings, shown, "The three candidates are one batch of one sub-process."),
            evidence.ran([shown.experiment]),
        )
        return style.save(figure, folder, "ppd-1")


def draw_flow(settings: Settings, evidence: Evidence, folder: Path) -> list[Path]:
    """Figure 2: a run of matched tokens, measured above and by Algorithm 2 in layers below."""
    shown = _choose(settings, evidence, 1, (all, any), "ppd-2")
    text = _decoder(shown, evidence)
    with style.look():
        figure = style.new_figure(11, 5.2)
        above, below = figure.subplots(2, 1)
        figure.subplots_adjust(hspace=0.6)
        _main_lane(above, shown, depth_of(settings, ROLE), text)
        _candidate_lane(above, shown, 0, text, shared=False)
        _label_axes(above, ["main process", "sub-process 1"], "time (ms)", legend=True)
        above.set_title("A run of the pipeline: measured")
        _simulated(below, shown, depth_of(settings, ROLE))
        _label_axes(below, ["main process", "sub-process 1"], "time (layers)", legend=False)
        below.set_title("The same rounds by Algorithm 2: a layer is one unit, all else is free")
        style.footnote(figure, _provenance(settings, shown, ""), evidence.ran([shown.experiment]))
        return style.save(figure, folder, "ppd-2")


def _choose(
    settings: Settings, evidence: Evidence, candidates: int, wishes: Sequence[Callable[[list[bool]], bool]], name: str
) -> _Shown:
    """The first stretch of rounds that begins where nothing had been begun early and whose matches (the last round's is not
    seen) fulfil the first wish; where there is none, the second. A text's very first round comes last: it is a cold one."""
    experiment = shown_arm(settings, candidates)
    for wish in wishes:
        for record in succeeded(evidence.records_of(experiment)):
            steps = record.steps
            if steps is None or not steps.units or len(steps.matched) <= NUM_SHOWN:
                continue
            for first in (*range(1, len(steps.matched) - NUM_SHOWN), 0):
                seen = slice(first, first + NUM_SHOWN - 1)
                fresh = first == 0 or not steps.matched[first - 1]
                if fresh and wish([bool(hit) for hit in steps.matched[seen]]) and all(steps.units[seen]):
                    return _Shown(experiment, record, first, NUM_SHOWN)
    raise style.not_recorded(name, f"no recorded run has {NUM_SHOWN} rounds of the kind it shows")


def _decoder(shown: _Shown, evidence: Evidence) -> Callable[[int], str]:
    decode = evidence.decoder_of(shown.experiment)

    def text(token: int) -> str:
        piece = style.printable(decode([token]).replace("\n", "\\n")).strip() or "(space)"
        return piece if len(piece) <= LONGEST else f"{piece[: LONGEST - 1]}…"

    return text


def _starts(shown: _Shown) -> list[float]:
    """When each shown round began, seconds after the first of them."""
    durations = [shown.steps.round_s[index] for index in shown.rounds()]
    return [sum(durations[:index]) for index in range(shown.count)]


def _main_lane(axes: "Axes", shown: _Shown, depth: int, text: Callable[[int], str]) -> None:
    steps, whole = shown.steps, sum(shown.steps.round_s[index] for index in shown.rounds())
    for start, index in zip(_starts(shown), shown.rounds(), strict=True):
        early, at = steps.early_layer[index], start
        first = depth - early if index and steps.matched[index - 1] else 0
        labels = {"early_layers": _layers(first + 1, early), "late_layers": _layers(early + 1, depth)}
        for name, seconds in zip(PARTS, steps.parts[index], strict=True):
            _bar(axes, 0, at * 1e3, seconds * 1e3, COLOURS[name])
            if name in labels and seconds > 0.05 * whole:
                _inside(axes, 0, (at + seconds / 2) * 1e3, labels[name], "white" if COLOURS[name] == BLUE else "black")
            at += seconds
        axes.annotate(
            text(shown.tokens[index]), (at * 1e3, TALL), (-2, 3), textcoords="offset points", ha="right", va="bottom",
            fontsize=10, fontweight="bold", parse_math=False,
        )  # fmt: skip
        axes.axvline(at * 1e3, color="#999999", lw=0.7, ls=":", zorder=0)


def _candidate_lane(axes: "Axes", shown: _Shown, slot: int, text: Callable[[int], str], *, shared: bool) -> None:
    """The work on each round's candidate of a slot, and an arrow where it was taken over."""
    steps, unit, lane = shown.steps, 0 if shared else slot, slot + 1
    for start, index in zip(_starts(shown), shown.rounds(), strict=True):
        if not steps.units[index] or slot >= len(steps.candidates[index]):
            continue
        begin, end = (1e3 * (start + seconds) for seconds in steps.units[index][2 * unit : 2 * unit + 2])
        candidate = steps.candidates[index][slot]
        right = candidate == shown.tokens[index]
        _bar(axes, lane, begin, end - begin, RIGHT if right else WRONG, outlined=True)
        _inside(axes, lane, (begin + end) / 2, text(candidate), "black" if right else "#777777")
        if right:
            taken = 1e3 * (start + steps.round_s[index])
            arrow = {"arrowstyle": "-|>", "color": ARROW, "lw": 1.6, "shrinkA": 0, "shrinkB": 0}
            axes.annotate("", (taken, -TALL), (taken, -lane), arrowprops=arrow, zorder=4)
            axes.plot([end, taken], [-lane, -lane], color=ARROW, lw=1.6, zorder=4)


def _simulated(axes: "Axes", shown: _Shown, depth: int) -> None:
    """Draw Algorithm 2 on the shown matches."""
    hits = [int(bool(shown.steps.matched[index])) for index in shown.rounds()]
    early = shown.steps.early_layer[shown.first]
    for unit, round_, first, last, start in algorithm_2(hits, depth, early):
        colour = (BLUE if last <= early else SKY) if unit == 0 else RIGHT if hits[round_] else WRONG
        size = last - first + 1
        _bar(axes, unit, start, size, colour, outlined=True)
        _inside(axes, unit, start + size / 2, _layers(first, last), "white" if colour == BLUE else "black")


def algorithm_2(hits: Sequence[int], depth: int, early: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield (unit, round, first layer, last layer, start) of every stretch of layers with one candidate; a layer takes 1.

    Unit 0 is the main process. Unit 1 runs ``depth - early`` layers of each round's candidate; on a hit the main process waits
    for them and goes on behind them, on a miss it begins the next token anew.
    """
    now, done = 0, 0
    for index, hit in enumerate(hits):
        if done < early:
            yield 0, index, done + 1, early, now
            now, done = now + early - done, early
        begun, ahead = now, depth - early
        yield 0, index, done + 1, depth, now
        now += depth - done
        yield 1, index, 1, ahead if hit else min(ahead, now - begun), begun
        now, done = (max(now, begun + ahead), ahead) if hit else (now, 0)


def _bar(axes: "Axes", lane: int, begin: float, width: float, colour: str, *, outlined: bool = False) -> None:
    line = 0.6 if outlined else 0.0
    axes.broken_barh([(begin, width)], (-lane - TALL, 2 * TALL), facecolors=colour, edgecolor="#777777", linewidth=line)


def _inside(axes: "Axes", lane: int, middle: float, text: str, colour: str) -> None:
    axes.text(middle, -lane, text, ha="center", va="center", fontsize=9, color=colour, parse_math=False)


def _layers(first: int, last: int) -> str:
    return f"{first}\N{EN DASH}{last}" if first < last else str(last)


def _label_axes(axes: "Axes", lanes: Sequence[str], label: str, *, legend: bool) -> None:
    axes.set(xlabel=label, ylim=(-len(lanes) + 0.45, 0.85))
    axes.set_xlim(0, axes.dataLim.x1)
    axes.set_yticks([-lane for lane in range(len(lanes))], lanes)
    axes.grid(axis="y", visible=False)
    if legend:
        fields = [style.legend_patch(color=colour, label=text) for colour, text in LABELS.items()]
        arrow = style.legend_line(color=ARROW, lw=1.6, marker="^", markersize=5, label="taken over")
        axes.legend(handles=[*fields, arrow], loc="upper left", bbox_to_anchor=(1.0, 1.08), handlelength=1.2)


def _provenance(settings: Settings, shown: _Shown, remark: str) -> str:
    tokens = f"Tokens {shown.first + 1} to {shown.first + shown.count} of example {shown.record.example}"
    made = f"{shown.experiment.task}, data {Path(settings.source).name}, profile {settings.profile}"
    return f"{tokens} ({made}); early layer {shown.steps.early_layer[shown.first]}. {remark}"


def _plan(settings: Settings) -> list[Comparison]:
    """The comparison of Table 3 that the timelines are taken from."""
    return [*comparison(settings, SHOWN).divided()]


TIMELINES = (
    Figure(
        name="ppd-1", title="three candidates begin while the token is still being computed", plan=_plan, draw=draw_overview
    ),
    Figure(name="ppd-2", title="a run of matched tokens in the pipeline", plan=_plan, draw=draw_flow),
)
