"""Optimized, Figures 3 to 5: mean profiled time of a call, and peak memory, by initial number of drafts; a panel a pair."""

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from harness import verification
from harness.block_measures import peak_mib
from harness.catalogue.base import Pieces, RecordsOf, Settings
from harness.catalogue.optimized_gamma import GAMMAS, SPEECH_CASES, SUMMARY_CASES, memory_arms, timed_arms
from harness.catalogue.optimized_setup import BASELINE, EXACT, FUSED, PLAIN, RELEASED, RULES, SIGMOID, Arms, Case, num_examples
from harness.catalogue.roles import Absent
from harness.errors import UsageError
from harness.figures.style import BLUE, GREEN, GREY, ORANGE, VERMILION, footnote, look, not_shown, save
from harness.pairing import Refused, succeeded
from harness.statistics import Estimate

PEAK = "peak above what is held (MiB)"
MEMORY = ("Here resident memory of the process.", "What torch's allocator gave out.")  # on a CPU, on CUDA
LINES = {
    BASELINE: ("s", GREY, "--"),
    EXACT: ("o", BLUE, "-"),
    FUSED: ("^", GREEN, "-"),
    SIGMOID: ("D", ORANGE, "-"),
    RELEASED: ("v", VERMILION, ":"),
}
ArmsAt = Callable[[Settings, Case, int], Arms | Absent]
Curves = dict[str, dict[int, Estimate]]
Measure = Callable[[Arms, RecordsOf, str], Estimate | Refused | None]


def call_ms(arms: Arms, records_of: RecordsOf, rule: str) -> Estimate | Refused | None:
    """Refused where the machine drifted or clocks contradict each other."""
    plain, own = records_of(arms[PLAIN]), records_of(arms[rule])
    return verification.unfair(plain, arms[rule], own) or verification.call_ms(own)


def peak(arms: Arms, records_of: RecordsOf, rule: str) -> Estimate | Refused | None:
    return peak_mib(records_of(arms[rule]), arms[rule].batch_size)


def curves(
    settings: Settings, case: Case, arms_at: ArmsAt, measure: Measure, records_of: RecordsOf
) -> tuple[Curves, dict[str, str]]:
    """By rule and gamma, what is recorded of a pair; and why not of what must not be shown."""
    found: Curves = {rule: {} for rule in RULES}
    refused = {}
    for gamma in GAMMAS[settings.profile]:
        arms = arms_at(settings, case, gamma)
        for rule in RULES if not isinstance(arms, Absent) else ():
            assert not isinstance(arms, Absent)
            if not succeeded(records_of(arms[rule])):
                continue
            result = measure(arms, records_of, rule)
            if isinstance(result, Refused):
                refused[f"{case.pair.target}, {rule}, gamma {gamma}"] = result.reason
            elif result is not None:
                found[rule][gamma] = result
    return {rule: values for rule, values in found.items() if values}, refused


def _draw(
    name: str, cases: Sequence[Case], arms_at: ArmsAt, measure: Measure, title: str, label: str, means: tuple[str, str]
) -> Callable[[Settings, RecordsOf, Path, Pieces | None], list[Path]]:
    def draw(settings: Settings, records_of: RecordsOf, folder: Path, pieces_of: Pieces | None) -> list[Path]:
        measured = {case: curves(settings, case, arms_at, measure, records_of) for case in cases}
        shown = {case: lines for case, (lines, _) in measured.items() if lines}
        refused = {arm: reason for _, reasons in measured.values() for arm, reason in reasons.items()}
        if not shown:
            why = next(iter(refused.values()), f"nothing is recorded; run `make reproduce-figure-{name}`")
            raise UsageError(f"figure {name}: {why}")
        with look():
            figure = Figure(figsize=(1.4 + 4.0 * len(shown), 4.2))
            panels = figure.subplots(1, len(shown), squeeze=False)[0]
            for panel, (case, lines) in zip(panels, shown.items(), strict=True):
                _panel(panel, case, lines)
            panels[0].set_ylabel(label)
            panels[-1].legend(loc="upper left", bbox_to_anchor=(1.0, 1.02))
            figure.suptitle(title, x=0.01, ha="left", y=1.0)
            footnote(figure, f"{_provenance(settings, list(shown), means)}{not_shown(refused)}")
            return save(figure, folder, name)

    return draw


def _panel(axes: Axes, case: Case, lines: Curves) -> None:
    for rule, values in lines.items():
        marker, colour, style = LINES[rule]
        centre = [one.value for one in values.values()]
        spread = [
            [one.value - one.low if one.low is not None else 0 for one in values.values()],
            [one.high - one.value if one.high is not None else 0 for one in values.values()],
        ]
        axes.errorbar(
            list(values), centre, yerr=[[max(0.0, width) for width in side] for side in spread], fmt=marker, ls=style,
            color=colour, lw=1.6, markersize=5, elinewidth=0.8, capsize=2, label=rule,
        )  # fmt: skip
    axes.set_title(f"{case.data.label}: {case.pair.target} / {case.pair.draft}", fontsize=10)
    axes.set_xlabel("initial number of drafts, gamma")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _provenance(settings: Settings, cases: Sequence[Case], means: tuple[str, str]) -> str:
    counts = ", ".join(
        dict.fromkeys(f"{num_examples(settings, case.data, sampled=True)} of {case.data.label}" for case in cases)
    )
    what = means[settings.device.startswith("cuda")]
    return (
        f"At most {counts}, drawn by the seed; profile {settings.profile}, data {Path(settings.source).name}, on "
        f"{settings.device}, {settings.dtype}; batch 1,\n{cases[0].sampling}, +2 / -1 heuristic. Bars: 95 % intervals over "
        f"examples. {what}\nPairs are named as the paper's; profiles toy and test have small stand-ins. Pairs without "
        "models are not shown."
    )


draw_time = _draw(
    "optimized-3", (*SUMMARY_CASES, *SPEECH_CASES), timed_arms, call_ms, "Profiled time of a call of speculative sampling",
    "mean time a call (ms)",
    ("Here CPU time of the process, the rules' CPU paths.", "Sum of device events by torch's profiler."),
)  # fmt: skip
draw_summary_memory = _draw(
    "optimized-4", SUMMARY_CASES, memory_arms, peak, "Peak memory of a generation, summaries", PEAK, MEMORY,
)  # fmt: skip
draw_speech_memory = _draw(
    "optimized-5", SPEECH_CASES, memory_arms, peak, "Peak memory of a generation, speech", PEAK, MEMORY,
)  # fmt: skip
