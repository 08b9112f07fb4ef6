"""One look for all figures, the marks that they share, and files without dates or random identifiers.

matplotlib is imported when something is drawn: it costs half a second, which every command that names a figure would pay.
"""

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from harness.core.errors import UsageError
from harness.core.settings import Settings
from harness.measures.pairing import succeeded
from harness.measures.statistics import Estimate, Missing
from harness.tables.engine import Known, Result, Row
from harness.tables.files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

# Okabe and Ito's palette: told apart by readers with any colour vision.
BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, GREY = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#CC79A7",
    "#56B4E9",
    "#7F7F7F",
)
COLOURS = (BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, GREY)  # of a figure's arms, in turn
Lines = dict[str, dict[int, Estimate]]  # by the name of an arm, then by place on the axis
NOTE_WIDTH = 120  # characters of a footnote's line
SETTINGS: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E5E5E5",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 10,
    "svg.hashsalt": "foretoken",
}


@contextmanager
def look() -> Iterator[None]:
    """Set fonts, colours and grid; figures are drawn and saved inside this context."""
    import matplotlib

    with matplotlib.rc_context(SETTINGS):
        yield


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure of this size in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height))


def legend_line(**look: Any) -> "Line2D":
    """A line or marker of a legend."""
    from matplotlib.lines import Line2D

    return Line2D([], [], **look)


def legend_patch(**look: Any) -> "Patch":
    """A coloured field of a legend."""
    from matplotlib.patches import Patch

    return Patch(**look)


def save(figure: "Figure", folder: Path, name: str) -> list[Path]:
    """``name``.svg and ``name``.png, each whole or not at all."""
    paths = []
    for kind, metadata in (("svg", {"Date": None, "Creator": "foretoken"}), ("png", {"Software": None})):
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind, dpi=160, metadata=metadata, bbox_inches="tight", pad_inches=0.15)
        paths.append(write_whole(folder / f"{name}.{kind}", buffer.getvalue()))
    return paths


def legends_beside(figure: "Figure", axes: "Axes", *groups: tuple[str, list]) -> None:
    """Titled legends stacked to the right of the data, the first on top."""
    height_inches = axes.get_position().height * figure.get_figheight()
    top = 1.03
    for title, handles in groups:
        legend = axes.legend(handles=handles, title=title, loc="upper left", bbox_to_anchor=(1.01, top), alignment="left")
        axes.add_artist(legend)
        # Inside the axes' clip path a legend would not count when the picture is cropped to what is drawn.
        legend.set_clip_on(False)
        lines = sum(1 + str(handle.get_label()).count("\n") for handle in handles)
        top -= (0.24 * (lines + 1) + 0.25) / height_inches
    axes.legend_ = None


def printable(text: str, family: str = SETTINGS["font.family"]) -> str:
    """Characters that the font lacks (or cannot show) become a box, as a warning would not tell the reader anything."""
    return "".join(character if ord(character) in _characters(family) else "□" for character in text)


@lru_cache
def _characters(family: str) -> frozenset[int]:
    """Return the characters that the regular and the bold font both have."""
    from matplotlib import font_manager, ft2font

    paths = [font_manager.findfont(font_manager.FontProperties(family=family, weight=weight)) for weight in ("normal", "bold")]
    return frozenset.intersection(*(frozenset(ft2font.FT2Font(path).get_charmap()) for path in paths))


def footnote(figure: "Figure", text: str, ran: str = "") -> None:
    """Lines of provenance under the axes; the last names the models that ``ran``: family, parameters, layers."""
    whole = f"{text}\nRan: {ran}." if ran else text
    figure.text(0.01, -0.2 / figure.get_figheight(), whole, fontsize=9, color="#555555", va="top")


def not_shown(reasons: Mapping[str, str]) -> str:
    """Lines for a footnote that name what was left out, together where the reason is one; empty where nothing was."""
    names: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        names.setdefault(reason, []).append(name)
    lines = [f"Not shown: {'; '.join(found)}: {reason}." for reason, found in names.items()]
    return "".join("\n" + "\n    ".join(wrap(line, NOTE_WIDTH)) for line in lines)


def data_of(settings: Settings) -> str:
    """Name the profile and the data in a line of provenance."""
    return f"profile {settings.profile}, data {Path(settings.source).name}"


def not_recorded(figure: str, what: str) -> UsageError:
    """The error of a figure that cannot be drawn; ``what`` is missing."""
    return UsageError(f"figure {figure}: {what}; run `make reproduce-figure-{figure}`")


def none_to_show(figure: str, refused: Mapping[str, str]) -> UsageError:
    """The error of a figure without a value: the first reason why values are ``refused``, or that none is recorded."""
    if refused:
        return UsageError(f"figure {figure}: {next(iter(refused.values()))}")
    return not_recorded(figure, "nothing is recorded")


def reaches(estimates: Sequence[Estimate]) -> list[list[float]]:
    """Return how far intervals reach below and above their values, as ``errorbar`` takes it; 0 if there is no interval."""
    shown = [one.shown for one in estimates]
    below = [0.0 if one.low is None else max(one.value - one.low, 0.0) for one in shown]
    return [below, [0.0 if one.high is None else max(one.high - one.value, 0.0) for one in shown]]


def reach(estimate: Estimate) -> list[list[float]] | None:
    """Return the reach of one interval; None, which draws no bar, if there is none."""
    return None if estimate.shown.low is None else reaches([estimate])


def measured_lines(
    known_at: Mapping[int, Known], names: Sequence[str], measure: Callable[[Known, Row], Result], label: str
) -> tuple[Lines, dict[str, str]]:
    """The recorded values of arms by place, and why a value must not be shown; ``label`` names the arm and the place."""
    found: Lines = {name: {} for name in names}
    refused = {}
    for place, known in known_at.items():
        for name in [name for name in names if name in known and succeeded(known[name][1])]:
            result = measure(known, Row(name, name))
            if isinstance(result, Missing):
                refused[label.format(name=name, place=place)] = result.why
            elif result is not None:
                found[name][place] = result
    return {name: values for name, values in found.items() if values}, refused


def draw_lines(
    axes: "Axes", lines: Lines, looks: Mapping[str, tuple[str, str, str]], markersize: float, elinewidth: float
) -> None:
    """A line with error bars for each arm; ``looks`` are marker, colour and line style."""
    for name, values in lines.items():
        marker, colour, style = looks[name]
        shown = list(values.values())
        axes.errorbar(
            list(values), [one.value for one in shown], yerr=reaches(shown), marker=marker, color=colour, ls=style, lw=1.6,
            markersize=markersize, elinewidth=elinewidth, capsize=2, label=name,
        )  # fmt: skip
