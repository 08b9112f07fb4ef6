"""Leviathan et al., Table 5 and Section A.5 (catalogue 11): what lenience does to alpha and to speed."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from harness.core.experiment import Experiment
from harness.core.settings import Settings
from harness.measures.of_run import accepted_over_verified, alpha_overlap, speedup
from harness.measures.statistics import Estimate, Missing
from harness.papers.leviathan.alpha import alpha_arm
from harness.papers.leviathan.setup import LENIENCES, PAPER, TARGET, autoregressive, drafter, model_notes, setup_of, speculative
from harness.tables import published
from harness.tables.engine import Arms, Column, Known, Result, Row, Section, row_name, table
from harness.tables.finding import Where, by_columns, order
from harness.tables.published import Published
from methods.speculative import theory

TIMED_DRAFT = "T5-small"
TASK = "EnDe"


def draft_name(row: published.Row) -> str:
    """The paper's name without the size: "T5-small (77M)" is "T5-small"."""
    return row["draft"].split(" (")[0]


def column_of(lenience: float) -> str:
    return f"l = {lenience:g}"


def gamma_of(temperature: float) -> int:
    """Temperature 0: the gamma of A.5. Temperature 1: that of Table 2's row, as A.5 names none."""
    if temperature == 0:
        rows = published.read(PAPER, "table_5")
        return next(int(row["gamma_used_for_computed"]) for row in rows if float(row["temp"]) == 0)
    rows = published.read(PAPER, "table_2")
    return next(int(row["gamma"]) for row in rows if (row["task"], row["draft"], row["temp"]) == (TASK, TIMED_DRAFT, "1"))


class _Key(NamedTuple):
    """The kind of a row, its published lines by lenience, and its draft's name among the overlaps."""

    kind: str
    lines: dict[float, published.Row]
    label: str = ""


def timed_arms(settings: Settings, temperature: float) -> Arms:
    """The target alone and, by lenience, with the small draft."""
    draft = drafter(settings, setup_of(settings, TASK), TIMED_DRAFT)
    if isinstance(draft, Missing):
        return dict.fromkeys((TARGET, *map(column_of, LENIENCES)), Missing(f"the profile has no {TIMED_DRAFT}"))
    baseline = autoregressive(settings, setup_of(settings, TASK), temperature, timed="lenience")
    lenient = {column_of(value): speculative(baseline, draft, gamma_of(temperature), value) for value in LENIENCES}
    return {TARGET: baseline, **lenient}


def sections(settings: Settings) -> list[Section]:
    """Alpha at temperature 1 and 0, then speed as measured and by theory."""
    groups = published.groups(PAPER, "table_5", "draft", "temp")
    lines = {place: {float(line["lenience"]): line for line in own} for place, own in groups.items()}
    timed = {place: {value: line for value, line in own.items() if line["speed_source"]} for place, own in lines.items()}
    timed = {place: own for place, own in timed.items() if own}
    theory_rows = (Row(row_name("speed by Theorem 3.8", *place), key=_Key("theory", own)) for place, own in timed.items())
    return [
        *(_overlaps(settings, place, own) for place, own in lines.items() if float(place[1]) > 0),
        *(_timed(settings, "alpha", "accepted", place, own) for place, own in lines.items() if float(place[1]) == 0),
        *(_timed(settings, "speed", "speed", place, own) for place, own in timed.items()),
        *(Section({}, (row,)) for row in theory_rows),
    ]


def _overlaps(settings: Settings, place: tuple[str, ...], lines: dict[float, published.Row]) -> Section:
    """Temperature 1: mean of sum min(p / l, q) on the target's own output (A.5)."""
    spec = drafter(settings, setup_of(settings, TASK), draft_name(lines[1.0]))
    arm: Experiment | Missing = spec if isinstance(spec, Missing) else alpha_arm(settings, TASK, float(place[1]))
    label, drafted = ("", None) if isinstance(spec, Missing) else (spec.label, spec)
    return Section({TARGET: arm}, (Row(row_name("alpha", *place), TARGET, _Key("overlap", lines, label), drafted),))


def _timed(settings: Settings, quantity: str, kind: str, place: tuple[str, ...], lines: dict[float, published.Row]) -> Section:
    draft = drafter(settings, setup_of(settings, TASK), TIMED_DRAFT)
    drafted = None if isinstance(draft, Missing) else draft
    row = Row(row_name(quantity, *place), TARGET if kind == "speed" else "", _Key(kind, lines), drafted)
    return Section(timed_arms(settings, float(place[1])), (row,))


def _printed(key: _Key, column: tuple[float, str]) -> Published:
    lenience, name = column
    return published.value(key.lines[lenience], name)


def _overlap(lenience: float, known: Known, row: Row) -> Result:
    return alpha_overlap(known[TARGET][1], row.key.label, lenience)


def _accepted(lenience: float, known: Known, row: Row) -> Result:
    """Temperature 0: the overlap of two point masses knows no lenience, so the rule itself is run and its decisions counted."""
    return accepted_over_verified(known[column_of(lenience)][1])


def _speed(lenience: float, known: Known, row: Row) -> Result:
    return speedup(known[TARGET][1], known[column_of(lenience)][1])


def _theory(lenience: float, known: Known, row: Row) -> Estimate:
    """Theorem 3.8 at the paper's own alpha and c: its best gamma at temperature 1, the paper's at temperature 0."""
    return Estimate(_by_theorem(row.key.lines[lenience])[0], None, None, 1)


def _by_theorem(line: published.Row) -> tuple[float, int]:
    """The speed and the gamma."""
    alpha, cost = float(line["alpha"]), float(line["c"])
    gamma = gamma_of(0) if float(line["temp"]) == 0 else theory.optimal_gamma(alpha, cost)
    return float(theory.walltime_factor(alpha, gamma, cost)), gamma


def _off(lenience: float, known: Known, row: Row) -> str:
    """Say where the printed speed is not what the theorem gives."""
    value, gamma = _by_theorem(line := row.key.lines[lenience])
    printed = float(line["speed_x"])
    off = abs(value / printed - 1)
    return f"the printed {printed:g} is {off:.0%} off Theorem 3.8 at gamma {gamma}, the best there is" if off > 0.02 else ""


def _columns(lenience: float) -> list[Column]:
    """Return the columns of one lenience, by the kind of the row."""

    def applies(kind: str) -> Callable[[Experiment | Missing | None, Row], bool]:
        return lambda arm, row: row.key.kind == kind and lenience in row.key.lines

    title, alpha, speed = column_of(lenience), (lenience, "alpha"), (lenience, "speed_x")
    return [
        Column(title, partial(_overlap, lenience), published=alpha, applies=applies("overlap")),
        Column(title, partial(_accepted, lenience), published=alpha, reads=(title,), applies=applies("accepted")),
        Column(title, partial(_speed, lenience), "x", published=speed, reads=(title,), applies=applies("speed")),
        Column(
            title, partial(_theory, lenience), "x", published=speed, applies=applies("theory"), remark=partial(_off, lenience),
            kind="planned",
        ),
    ]  # fmt: skip


def _notes(settings: Settings) -> list[str]:
    setup = setup_of(settings, TASK)
    return [
        "alpha at temperature 1: mean of sum min(p / l, q) on the target's own output. At temperature 0: accepted over "
        "verified drafts of the rule itself, which accepts a draft x if p(x) >= l max p; the paper prints the inequality "
        "reversed, which at l = 1 would accept everything.",
        f"speed: measured with {TIMED_DRAFT}, gamma {gamma_of(0)} at temperature 0 and {gamma_of(1)} at temperature 1, seconds "
        "per token, interleaved. The paper's speeds are not measured but computed from its alpha at c = 0.015.",
        "speed by Theorem 3.8: the theory at the paper's alpha and c, at temperature 1 with the gamma that is best there.",
        "Lenience changes the output distribution: no token becomes more than 1 / l times as likely.",
        *model_notes(settings, [setup.target, *setup.drafts.values()]),
    ]


def _is(quantity: str) -> Where:
    return lambda parts: parts[0] == quantity


LENIENCE = table(
    number=11,
    paper=PAPER,
    paper_number=5,
    title="lenience: alpha and speed",
    row_heads=("quantity", "draft", "temp"),
    columns=[column for lenience in LENIENCES for column in _columns(lenience)],
    blocks=(tuple(map(column_of, LENIENCES)),),
    sections=sections,
    published=_printed,
    first_notes=_notes,
    findings=(
        order(
            by_columns("l = 0.1", "l = 1", _is("speed")),
            "the measured speed",
            "at lenience 0.1",
            "at 1",
            "temperatures",
            beside=False,  # the paper's speeds are computed
        ),
        order(by_columns("l = 0.1", "l = 1", _is("alpha")), "alpha", "at lenience 0.1", "at 1", "drafts"),
    ),
)
