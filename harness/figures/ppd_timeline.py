"""PPD, Figures 1 and 2: a few tokens of a real pipeline as they were computed, on the time axis of the machine.

The main process's spans and each sub-process's work were measured while it ran; Figure 2 has Algorithm 2's idea of the same
rounds beneath, from the simulator, in layers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from harness.catalogue.base import Pieces, RecordsOf, Settings
from harness.catalogue.ppd_pipeline import ROLE, shown_arm
from harness.catalogue.ppd_setup import depth_of
from harness.errors import UsageError
from harness.experiment import Experiment
from harness.figures.style import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, footnote, look, save
from harness.pairing import succeeded
from harness.records import Record
from methods.ppd.pipeline import PARTS
from methods.ppd.simulate import simulate

COLOURS = {
    "early_layers": BLUE,
    "early_head": ORANGE,
    "post": PURPLE,
    "late_layers": SKY,
    "head": GREEN,
    "wait": GREY,
    "adopt": PURPLE,
}
LABELS = {
    BLUE: "layers up to the early one",
    ORANGE: "early head",
    SKY: "later layers",
    GREEN: "head: the token",
    GREY: "waiting",
    PURPLE: "request, hand-over",
}
RIGHT, WRONG = "#8FBF8F", "#E8D8D8"
NUM_SHOWN = 4


@dataclass(frozen=True)
class Shown:
    """Consecutive rounds of one generation: ``first`` of ``count``, each with its candidates' work measured."""

    experiment: Experiment
    record: Record
    first: int
    count: int

    def rounds(self) -> range:
        return range(self.first, self.first + self.count)


def draw_overview(settings: Settings, records_of: RecordsOf, folder: Path, pieces_of: Pieces | None) -> list[Path]:
    """Figure 1: three candidates a token; the one that proves right is carried on."""
    shown = _choose(settings, records_of, 3, lambda hits: True in hits[:-1] and False in hits[:-1], "ppd-1")
    text = _decoder(shown, pieces_of)
    with look():
        figure = Figure(figsize=(11, 3.4))
        axes = figure.subplots()
        _main_lane(axes, shown, 0.0, text)
        for slot in range(3):
            _candidate_lane(axes, shown, slot, -1.0 - slot, text, shared=True)
        _dress(axes, ["main process", *[f"candidate {slot + 1}" for slot in range(3)]], "time (ms)", candidates=True)
        axes.set_title("Three candidates begin while the token is still being computed")
        footnote(figure, _provenance(settings, shown, "The three candidates are one batch of one sub-process."))
        return save(figure, folder, "ppd-1")


def draw_flow(settings: Settings, records_of: RecordsOf, folder: Path, pieces_of: Pieces | None) -> list[Path]:
    """Figure 2: a run of matched tokens, measured above and by Algorithm 2 in layers below."""
    shown = _choose(settings, records_of, 1, lambda hits: all(hits[:-1]), "ppd-2")
    text = _decoder(shown, pieces_of)
    with look():
        figure = Figure(figsize=(11, 5.2))
        above, below = figure.subplots(2, 1)
        figure.subplots_adjust(hspace=0.6)
        _main_lane(above, shown, 0.0, text)
        _candidate_lane(above, shown, 0, -1.0, text, shared=False)
        _dress(above, ["main process", "sub-process 1"], "time (ms)", candidates=True)
        above.set_title("A run of the pipeline: measured")
        _simulated(below, shown, depth_of(settings, ROLE))
        _dress(below, ["main process", "sub-process 1"], "time (layers)", candidates=False)
        below.set_title("The same rounds by Algorithm 2: a layer is one unit, all else is free")
        footnote(figure, _provenance(settings, shown, ""))
        return save(figure, folder, "ppd-2")


def _choose(
    settings: Settings, records_of: RecordsOf, candidates: int, wanted: Callable[[list[bool]], bool], name: str
) -> Shown:
    """The first stretch of rounds with the wanted pattern of matches that begins where nothing had been begun early."""
    experiment = shown_arm(settings, candidates)
    for record in succeeded(records_of(experiment)):
        steps = record.steps
        if steps is None or not steps.units:
            continue
        for first in range(1, len(steps.matched) - NUM_SHOWN):
            rounds = slice(first, first + NUM_SHOWN)
            fresh = not steps.matched[first - 1]
            if fresh and wanted([bool(hit) for hit in steps.matched[rounds]]) and all(steps.units[rounds][:-1]):
                return Shown(experiment, record, first, NUM_SHOWN)
    raise UsageError(
        f"figure {name}: no recorded run has {NUM_SHOWN} rounds of the kind it shows; run `make reproduce-figure-{name}`"
    )


def _decoder(shown: Shown, pieces_of: Pieces | None) -> Callable[[int], str]:
    if pieces_of is None:
        return str
    decode = pieces_of(shown.experiment)
    return lambda token: decode([token]).replace("\n", "\\n").strip() or "(space)"


def _starts(shown: Shown) -> list[float]:
    """When each shown round began, seconds after the first of them."""
    steps = shown.record.steps
    assert steps is not None
    durations = [steps.round_s[index] for index in shown.rounds()]
    return [sum(durations[:index]) for index in range(shown.count)]


def _main_lane(axes: Axes, shown: Shown, height: float, text: Callable[[int], str]) -> None:
    steps, tokens = shown.record.steps, shown.record.tokens
    assert steps is not None
    assert tokens is not None
    for start, index in zip(_starts(shown), shown.rounds(), strict=True):
        at = start
        for name, seconds in zip(PARTS, steps.parts[index], strict=True):
            axes.broken_barh([(at * 1e3, seconds * 1e3)], (height - 0.34, 0.68), facecolors=COLOURS[name])
            at += seconds
        axes.annotate(text(tokens[index]), (at * 1e3, height + 0.36), ha="right", va="bottom", fontsize=10, fontweight="bold")
        axes.axvline(at * 1e3, color="#999999", lw=0.7, ls=":", zorder=0)


def _candidate_lane(axes: Axes, shown: Shown, slot: int, height: float, text: Callable[[int], str], *, shared: bool) -> None:
    """The work on each round's candidate of a slot: begun in its round, whatever became of it."""
    steps, tokens = shown.record.steps, shown.record.tokens
    assert steps is not None
    assert tokens is not None
    for start, index in zip(_starts(shown), shown.rounds(), strict=True):
        unit = 0 if shared else slot
        if not steps.units[index] or slot >= len(steps.candidates[index]):
            continue
        begin, end = steps.units[index][2 * unit : 2 * unit + 2]
        candidate = steps.candidates[index][slot]
        right = candidate == tokens[index]
        bar = ((start + begin) * 1e3, (end - begin) * 1e3)
        axes.broken_barh([bar], (height - 0.34, 0.68), facecolors=RIGHT if right else WRONG, edgecolor="#777777", linewidth=0.6)
        axes.annotate(
            text(candidate), (bar[0] + bar[1] / 2, height), ha="center", va="center", fontsize=9, alpha=1.0 if right else 0.55
        )


def _simulated(axes: Axes, shown: Shown, depth: int) -> None:
    """Algorithm 2 on the shown matches: the last round's match is beyond the picture, as in the measured one."""
    steps = shown.record.steps
    assert steps is not None
    hits = [int(bool(steps.matched[index])) for index in shown.rounds()]
    early = steps.early_layer[shown.first]
    result = simulate(hits, num_layers=depth, early_layer=early, num_candidates=1)
    for span in result.spans:
        if span.part != "layers" or (span.unit and span.token >= shown.count):
            continue
        colour = (BLUE if span.last_layer <= early else SKY) if span.unit == 0 else RIGHT if hits[span.token - 1] else WRONG
        bar = (span.start, span.end - span.start)
        axes.broken_barh([bar], (-span.unit - 0.34, 0.68), facecolors=colour, edgecolor="#777777", linewidth=0.6)
        axes.annotate(
            f"{span.first_layer}-{span.last_layer}", (bar[0] + bar[1] / 2, -span.unit), ha="center", va="center", fontsize=9
        )


def _dress(axes: Axes, lanes: Sequence[str], label: str, *, candidates: bool) -> None:
    axes.set(xlabel=label, ylim=(-len(lanes) + 0.45, 0.85), xlim=(0, None))
    axes.set_yticks([-lane for lane in range(len(lanes))], lanes)
    axes.grid(axis="y", visible=False)
    if candidates:
        handles = [Patch(color=colour, label=text) for colour, text in LABELS.items()]
        handles += [Patch(color=RIGHT, label="candidate, right"), Patch(color=WRONG, label="candidate, discarded")]
        axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.0, 1.05), handlelength=1.2)


def _provenance(settings: Settings, shown: Shown, remark: str) -> str:
    steps = shown.record.steps
    assert steps is not None
    early = steps.early_layer[shown.first]
    return (
        f"Tokens {shown.first + 1} to {shown.first + shown.count} of example {shown.record.example} "
        f"({shown.experiment.task}, data {Path(settings.source).name}, profile {settings.profile}); early layer {early}. "
        f"{remark}"
    )
