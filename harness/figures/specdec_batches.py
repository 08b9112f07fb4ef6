"""SpecDec, Figure 5: latency by batch size, and speed over the faster beam search at the largest batch, a column a device."""

from collections.abc import Callable
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.catalogue.base import Pieces, RecordsOf, Settings
from harness.catalogue.specdec_batches import BATCHES, MIN_BATCHES, TIMED_ARMS, TIMES, arms_at
from harness.catalogue.specdec_setup import BEAM, EFFICIENCY, EN_DE, GREEDY, HIGH_EFFICIENCY, STRICT, THEIR_BEAM, gamma_of
from harness.errors import UsageError
from harness.experiment import Experiment
from harness.figures.style import BLUE, GREY, PURPLE, footnote, look, not_shown, save
from harness.pairing import Refused, succeeded
from harness.statistics import Estimate

DEVICES = (("cpu", "float32"), ("cuda", "float32"), ("cuda", "bfloat16"), ("cuda", "float16"))
LINES = {
    BEAM: ("s", GREY, "--"),
    THEIR_BEAM: ("D", GREY, ":"),
    GREEDY: ("o", "black", "--"),
    STRICT: ("o", BLUE, "-"),
    HIGH_EFFICIENCY: ("P", PURPLE, "-"),
}
Latencies = dict[str, dict[int, Estimate]]


def latencies(settings: Settings, records_of: RecordsOf, device: str, dtype: str) -> tuple[Latencies, dict[str, str]]:
    """Milliseconds a sentence by arm and batch size, of what is recorded on a device beside greedy decoding; and why not of
    the arms whose times must not be shown."""
    found: Latencies = {name: {} for name in TIMED_ARMS}
    refused = {}
    for batch in BATCHES[settings.profile]:
        arms = {name: arm for name, arm in arms_at(settings, EN_DE, batch).items() if isinstance(arm, Experiment)}
        there = {name: arm.replace(device=device, dtype=dtype) for name, arm in arms.items()}
        known = {name: (arm, records) for name, arm in there.items() if succeeded(records := records_of(arm))}
        for name in known if GREEDY in known else ():
            result = TIMES["a sentence"].measure(known, name)
            if isinstance(result, Estimate):
                found[name][batch] = result
            elif isinstance(result, Refused):
                refused[f"{name}, at batch size {batch} on {device}, {dtype}"] = result.reason
    return {name: values for name, values in found.items() if values}, refused


def draw_batches(settings: Settings, records_of: RecordsOf, folder: Path, pieces_of: Pieces | None) -> list[Path]:
    """Devices other than the chosen one are shown where they have been measured."""
    places = dict.fromkeys([(settings.device, settings.dtype), *DEVICES])
    measured = {place: latencies(settings, records_of, *place) for place in places}
    found = {place: lines for place, (lines, _) in measured.items() if lines}
    refused = {arm: reason for _, reasons in measured.values() for arm, reason in reasons.items()}
    if not found:
        why = next(iter(refused.values()), "nothing is recorded; run `make reproduce-figure-specdec-5`")
        raise UsageError(f"figure specdec-5: {why}")
    with look():
        figure = Figure(figsize=(1.2 + 4.4 * len(found), 6.6))
        grid = figure.subplots(2, len(found), squeeze=False, sharex=True)
        for column, ((device, dtype), lines) in enumerate(found.items()):
            above, below = grid[0][column], grid[1][column]
            _panel(above, lines, lambda estimate: estimate)
            _panel(below, lines, _over(lines, _largest(settings)))
            above.set(title=f"{device}, {dtype}", yscale="log")
            below.axhline(1, color="black", lw=0.8)
            below.set(xlabel="batch size")
        grid[0][0].set(ylabel="ms a sentence")
        grid[1][0].set(ylabel=f"speed (AT, b = 5, batch {_largest(settings)} = 1)")
        grid[0][-1].legend(loc="upper left", bbox_to_anchor=(1.0, 1.02))
        footnote(figure, _provenance(settings) + not_shown(refused))
        return save(figure, folder, "specdec-5")


def _largest(settings: Settings) -> int:
    return max(BATCHES[settings.profile])


def _over(lines: Latencies, batch: int) -> Callable[[Estimate], Estimate | None]:
    """Speed over the faster beam search at a batch size (the largest is the paper's 1x); its own spread is not in the bars."""
    beams = [lines.get(name, {}).get(batch) for name in (BEAM, THEIR_BEAM)]
    times = [one.value for one in beams if one is not None]
    unit = min(times, default=0.0)

    def speed(estimate: Estimate) -> Estimate | None:
        if len(times) < len(beams):
            return None  # which is the faster is unknown
        low, high = (None if bound is None else unit / bound for bound in (estimate.high, estimate.low))
        return Estimate(unit / estimate.value, low, high, estimate.n, "x")

    return speed


def _panel(axes: Axes, lines: Latencies, quantity: Callable[[Estimate], Estimate | None]) -> None:
    axes.set_xscale("log", base=2)
    for name, values in lines.items():
        marker, colour, style = LINES[name]
        shown = {batch: one for batch, estimate in values.items() if (one := quantity(estimate)) is not None}
        spread = [[one.value - (one.value if one.low is None else one.low) for one in shown.values()]]
        spread += [[(one.value if one.high is None else one.high) - one.value for one in shown.values()]]
        axes.errorbar(
            list(shown), [one.value for one in shown.values()], yerr=spread, marker=marker, color=colour, ls=style, lw=1.6,
            markersize=6, elinewidth=1, capsize=2, label=name,
        )  # fmt: skip
    batches = sorted({batch for values in lines.values() for batch in values})
    axes.set_xticks(batches, [str(batch) for batch in batches])
    axes.minorticks_off()


def _provenance(settings: Settings) -> str:
    return (
        f"k = {gamma_of(settings, EN_DE)}, SpecDec++ with {EFFICIENCY}; {EN_DE.task}, profile {settings.profile}, data "
        f"{Path(settings.source).name}. Bars: 95 % over batches, none for fewer than {MIN_BATCHES}. Batch sizes are measured\n"
        "one after another. Below, 1 is the faster of our beam search and transformers'."
    )
