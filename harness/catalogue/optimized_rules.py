"""Optimized, Tables 1, 3 and 4 (catalogue 30, 32, 33): metric and profiled time, wall-clock, time a call, by verify rule."""

from collections.abc import Callable

from harness.catalogue.base import Cell, RecordsOf, Settings, Table, impossible, row_name
from harness.catalogue.optimized_columns import COLUMNS, cell, printed_value
from harness.catalogue.optimized_notes import GAIN, RULE_NOTES, model_notes, setting_notes, time_notes
from harness.catalogue.optimized_setup import (
    ALL_CASES,
    FILTERED,
    PAPER,
    PLAIN,
    RULES,
    Arms,
    Case,
    arms_of,
    comparison_of,
    undisturbed,
)
from harness.catalogue.roles import Absent
from harness.experiment import Comparison

ArmsOf = Callable[[Settings, Case], Arms | Absent]


def by_clock(settings: Settings, case: Case) -> Arms | Absent:
    arms = arms_of(settings, case)
    return arms if isinstance(arms, Absent) else undisturbed(settings, arms)


def plan_of(arms: ArmsOf) -> Callable[[Settings], list[Comparison]]:
    return lambda settings: [one for case in ALL_CASES for one in comparison_of(arms(settings, case))]


def cells_of(names: tuple[str, ...], arms: ArmsOf) -> Callable[[Settings, RecordsOf], list[Cell]]:
    """A row a rule. What the paper printed stands in the rows of transformers' default sampling; pairs without models have
    those rows alone."""

    def cells(settings: Settings, records_of: RecordsOf) -> list[Cell]:
        return [one for case in ALL_CASES for one in _case_cells(case, names, arms(settings, case), records_of)]

    return cells


def _case_cells(case: Case, names: tuple[str, ...], arms: Arms | Absent, records_of: RecordsOf) -> list[Cell]:
    found, known = [], {}
    if not isinstance(arms, Absent):
        known = {name: (arm, records_of(arm)) for name, arm in arms.items()}
    for rule in RULES if isinstance(arms, Absent) else [name for name in arms if name != PLAIN]:
        row = row_name(*case.heads, rule)
        for name in names:
            column = COLUMNS[name]
            shown = column.metric if case.sampling == FILTERED else None
            printed = printed_value(column.table, shown, case.data, case.pair, rule)
            if not column.has(rule, case.data.is_speech):
                continue
            if not isinstance(arms, Absent):
                found.append(cell(row, name, column, rule, known, printed))
            elif printed is not None:
                found.append(impossible(row, name, printed, arms.why, column.unit))
    return found


def _table(
    number: int, paper_number: int, title: str, blocks: tuple[tuple[str, ...], ...], arms: ArmsOf, notes: tuple[str, ...]
) -> Table:
    plan = plan_of(arms)
    return Table(
        number=number,
        paper=PAPER,
        paper_number=paper_number,
        title=title,
        row_heads=("data", "target", "sampling", "rule"),
        blocks=blocks,
        plan=plan,
        cells=cells_of(tuple(name for block in blocks for name in block), arms),
        notes=lambda settings: [
            *notes,
            *RULE_NOTES,
            *time_notes(settings),
            *setting_notes(settings),
            *model_notes(plan(settings)),
        ],
    )


QUALITY = _table(
    30, 1, "WER or ROUGE-1, and profiled time of speculative sampling",
    (("WER", "ROUGE-1", "saved"), ("profiled", "calls", "fewer calls", "faster calls"), ("accepted", "alpha", "as baseline")),
    arms_of,
    (
        "WER, ROUGE-1: fractions, as the paper prints them. saved: percent of the baseline's profiled time, which is "
        "summed over all calls and examples.",
        GAIN,
        "accepted: of the drafts up to and including a round's first rejection. alpha: mean over plain decoding's output "
        "of the sum of min(target, draft), what an exact rule accepts of the pair; a rule that accepts more does not "
        "check. untrained draft: the draft's shape with seeded random weights: what stands of it is what a rule lets pass.",
        "as baseline: percent of outputs that are the baseline's with the same draft, token for token. Exact rules are "
        "given the same random numbers, so theirs are, but for decisions that rounding turns over.",
    ),
)  # fmt: skip

WALL_CLOCK = _table(
    32, 3, "wall-clock time", (("wall saved", "wall", "over plain"),), by_clock,
    (
        "wall saved: percent of the baseline's wall-clock seconds of all examples, models included. wall: these seconds, "
        "features of recordings excluded. over plain: speed over plain decoding, seconds a token; it needs no draft.",
    ),
)  # fmt: skip

STEPS = _table(
    33, 4, "time per call of speculative sampling", (("a call", "deviation", "saved a call"), ("calls", "profiled")), arms_of,
    (
        "a call, deviation: mean and standard deviation of the profiled time over all calls. saved a call: percent of the "
        "baseline's mean, as the paper's last columns.",
    ),
)  # fmt: skip
