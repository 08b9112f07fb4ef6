"""Optimized, Figures 3 to 5: time a call and peak memory by initial number of drafts; a panel a pair."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from harness.core.experiment import Comparison, Experiment, MemoryProbe
from harness.core.settings import Settings
from harness.measures.of_run import peak_mib
from harness.measures.statistics import DESCRIPTIVE, Missing
from harness.papers.optimized import columns, setup
from harness.tables import style
from harness.tables.base import Figure
from harness.tables.engine import Known, Result, Row, known_arms, plan_of
from harness.tables.evidence import Evidence
from harness.tables.style import BLUE, GREEN, GREY, ORANGE, VERMILION

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SPEECH_CASES = [setup.Case(data=setup.CV16, pair=pair, sampling=setup.FILTERED) for pair in setup.WHISPERS]
SUMMARY_CASES = [setup.Case(data=setup.XSUM, pair=pair, sampling=setup.FILTERED) for pair in setup.READERS]
LINES = {
    setup.BASELINE: ("s", GREY, "--"),
    setup.EXACT: ("o", BLUE, "-"),
    setup.FUSED: ("^", GREEN, "-"),
    setup.SIGMOID: ("D", ORANGE, "-"),
    setup.RELEASED: ("v", VERMILION, ":"),
}
ArmsAt = Callable[[Settings, setup.Case, int], setup.Arms]
Reasons = dict[str, str]
Measure = Callable[[Known, Row], Result]


def timed_arms(settings: Settings, case: setup.Case, gamma: int) -> setup.Arms:
    """Plain decoding, which shows whether the machine drifted, and every rule."""
    plain = setup.plain_arm(settings, case, f"gamma {gamma}", sampled=True)
    rules = {rule: setup.ruled(plain, case, rule, gamma=gamma) for rule in setup.RULES}
    return {setup.PLAIN: plain if isinstance(plain, Missing) else plain.replace(probes=()), **rules}


def memory_arms(settings: Settings, case: setup.Case, gamma: int) -> setup.Arms:
    """Every rule, for its peak memory."""
    arms = ((name, arm) for name, arm in timed_arms(settings, case, gamma).items() if name != setup.PLAIN)
    return {name: arm if isinstance(arm, Missing) else arm.replace(probes=(MemoryProbe(),)) for name, arm in arms}


def call_ms(known: Known, row: Row) -> Result:
    """Milliseconds a call, refused where the machine drifted or clocks contradict each other."""
    experiment, own = known[row.arm]
    return columns.unfair(known[setup.PLAIN][1], experiment, own) or columns.call_ms(own)


def peak(known: Known, row: Row) -> Result:
    experiment, records = known[row.arm]
    return peak_mib(records, experiment.batch_size)


def curves(
    settings: Settings, case: setup.Case, arms_at: ArmsAt, measure: Measure, evidence: Evidence
) -> tuple[style.Lines, Reasons]:
    """The recorded values of a pair by rule and gamma, and why a value must not be shown."""
    known_at = {gamma: known_arms(arms_at(settings, case, gamma), evidence) for gamma in setup.SIZES[settings.profile].gammas}
    return style.measured_lines(known_at, tuple(setup.RULES), measure, f"{case.pair.target}, {{name}}, gamma {{place}}")


def _draw(
    name: str, cases: Sequence[setup.Case], arms_at: ArmsAt, measure: Measure, title: str, label: str, means: tuple[str, str],
    settings: Settings, evidence: Evidence, folder: Path,
) -> list[Path]:  # fmt: skip
    measured = {case: curves(settings, case, arms_at, measure, evidence) for case in cases}
    shown = {case: lines for case, (lines, _) in measured.items() if lines}
    refused = {arm: reason for _, reasons in measured.values() for arm, reason in reasons.items()}
    if not shown:
        raise style.none_to_show(name, refused)
    with style.look():
        figure = style.new_figure(1.4 + 4.0 * len(shown), 4.2)
        panels = figure.subplots(1, len(shown), squeeze=False)[0]
        for panel, (case, lines) in zip(panels, shown.items(), strict=True):
            arms = arms_at(settings, case, setup.SIZES[settings.profile].gammas[0])
            _panel(panel, case, lines, evidence.ran([arm for arm in arms.values() if isinstance(arm, Experiment)]))
        panels[0].set_ylabel(label)
        panels[-1].legend(loc="upper left", bbox_to_anchor=(1.0, 1.02))
        figure.suptitle(title, x=0.01, ha="left", y=1.06)
        style.footnote(figure, f"{_provenance(settings, list(shown), means)}{style.not_shown(refused)}")
        return style.save(figure, folder, name)


def _panel(axes: "Axes", case: setup.Case, lines: style.Lines, ran: str) -> None:
    from matplotlib.ticker import MaxNLocator

    style.draw_lines(axes, lines, LINES, markersize=5, elinewidth=0.8)
    axes.set_title(f"{case.data.label}: {case.pair.target} / {case.pair.draft}\nran: {ran}", fontsize=9)
    axes.set_xlabel("initial number of drafts, gamma")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _provenance(settings: Settings, cases: Sequence[setup.Case], means: tuple[str, str]) -> str:
    counts = ", ".join(
        dict.fromkeys(f"{setup.num_examples(settings, case.data, sampled=True)} of {case.data.label}" for case in cases)
    )
    what = means[settings.device.startswith("cuda")]
    return (
        f"At most {counts}, drawn by the seed; {style.data_of(settings)}, on "
        f"{settings.device}, {settings.dtype}; batch 1,\n{cases[0].sampling}, +2 / -1 heuristic. Bars: 95 % intervals over "
        f"examples, of {DESCRIPTIVE} or more. {what}\n"
        "Pairs are named as the paper's; below it, what ran: family, parameters, layers. Pairs without models are not shown."
    )


def _figure(
    name: str, title: str, cases: Sequence[setup.Case], arms_at: ArmsAt, measure: Measure, heading: str, label: str,
    means: tuple[str, str],
) -> Figure:  # fmt: skip
    """A figure of a ``measure`` by initial number of drafts; ``means`` say what it is on a CPU and on CUDA."""

    def plan(settings: Settings) -> list[Comparison]:
        return plan_of(arms_at(settings, case, gamma) for case in cases for gamma in setup.SIZES[settings.profile].gammas)

    draw = partial(_draw, name, cases, arms_at, measure, heading, label, means)
    return Figure(name=name, title=title, plan=plan, draw=draw)


PEAK = "peak above what is held (MiB)"
MEMORY = ("Here resident memory of the process.", "What torch's allocator gave out.")
BY_DRAFTS = (
    _figure(
        "optimized-3", "time a call by initial number of drafts", (*SUMMARY_CASES, *SPEECH_CASES), timed_arms, call_ms,
        "Profiled time of a call of speculative sampling", "mean time a call (ms)",
        ("Here CPU time of the process, the rules' CPU paths.", "Sum of device events by torch's profiler."),
    ),
    _figure(
        "optimized-4", "peak memory by initial number of drafts, summaries", SUMMARY_CASES, memory_arms, peak,
        "Peak memory of a generation, summaries", PEAK, MEMORY,
    ),
    _figure(
        "optimized-5", "peak memory by initial number of drafts, speech", SPEECH_CASES, memory_arms, peak,
        "Peak memory of a generation, speech", PEAK, MEMORY,
    ),
)  # fmt: skip
