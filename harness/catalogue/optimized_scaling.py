"""Optimized, Tables 2 and 5 (catalogue 31, 34): the sigmoid's scaling constants, on the models' own logits and in fp16."""

from collections.abc import Iterator
from dataclasses import dataclass

from harness.catalogue import published
from harness.catalogue.base import Cell, Published, RecordsOf, Settings, Table, impossible, row_name
from harness.catalogue.optimized_columns import COLUMNS, cell
from harness.catalogue.optimized_notes import RULE_NOTES, model_notes, sample_notes, setting_notes, time_notes
from harness.catalogue.optimized_setup import (
    BASELINE,
    CV16,
    FILTERED,
    LLAMA_7B,
    LOSSY,
    NO_STAND_IN,
    PAPER,
    PLAIN,
    READERS,
    SMALL_EN,
    WHISPERS,
    XSUM,
    Arms,
    Case,
    cases,
    comparison_of,
    models_of,
    plain_arm,
    ruled,
)
from harness.catalogue.roles import Absent
from harness.experiment import Comparison

SWEEP = (1e1, 1e3, 1e4, 1e5)
HALF = "float16"
NAMES = ("WER", "ROUGE-1", "saved", "fewer calls", "faster calls", "accepted")
FIRST_TWO = cases((SMALL_EN, CV16), (LLAMA_7B, XSUM))
ALL_PAIRS = cases(*((pair, CV16) for pair in WHISPERS), *((pair, XSUM) for pair in READERS))


@dataclass(frozen=True)
class Scaled:
    """A row: a mode of the sigmoid, the logits that it is given, and beta = -alpha."""

    rule: str
    logits: str
    scale: float

    @property
    def name(self) -> str:
        return row_name(self.logits, self.rule, f"{self.scale:g}")


def scaled(settings: Settings) -> Iterator[Scaled]:
    """Logits in the models' own dtype, and rounded to fp16 where that is another."""
    for rule in LOSSY:
        for logits in dict.fromkeys((settings.dtype, HALF)):
            yield from (Scaled(rule, logits, scale) for scale in SWEEP)


def arms_of(settings: Settings, case: Case) -> Arms | Absent:
    plain, models = plain_arm(settings, case, "scaling", sampled=True), models_of(settings, case.pair)
    if isinstance(plain, Absent) or isinstance(models, Absent):
        return plain if isinstance(plain, Absent) else NO_STAND_IN
    arms = {PLAIN: plain, BASELINE: ruled(plain, case, BASELINE, draft=models[1])}
    for one in scaled(settings):
        half = one.logits != settings.dtype
        arms[one.name] = ruled(plain, case, one.rule, draft=models[1], scale=one.scale, half_logits=half)
    return arms


def _printed(table: str, case: Case, row: Scaled | None, metric: str | None, settings: Settings) -> Published:
    """The paper's number beside logits as its models gave them: half precision from Whisper, full from Llama and the others."""
    theirs = HALF if case.data.is_speech or settings.dtype == HALF else settings.dtype
    if metric is None or case.sampling != FILTERED or (row is not None and row.logits != theirs):
        return None
    for line in published.read(PAPER, table):
        scale = float(line["beta_scale"]) if line["beta_scale"] else None
        if line["target"].removeprefix("Whisper ") != case.pair.target or scale != (None if row is None else row.scale):
            continue
        if metric in line:
            return published.value(line, metric)
        return published.value(line, "value") if line["metric"] == metric else None
    return None


def _cells(table: str, chosen: list[Case], settings: Settings, records_of: RecordsOf) -> list[Cell]:
    found = []
    for case in chosen:
        arms = arms_of(settings, case)
        known = {} if isinstance(arms, Absent) else {name: (arm, records_of(arm)) for name, arm in arms.items()}
        for one in (None, *scaled(settings)):
            arm = BASELINE if one is None else one.name
            row = row_name(case.pair.target, case.sampling, row_name("", BASELINE, "") if one is None else one.name)
            for name in NAMES:
                column = COLUMNS[name]
                metric = column.metric if column.table == "table_1" else None
                printed = _printed(table, case, one, metric, settings)
                if not column.has(arm, case.data.is_speech):
                    continue
                if not isinstance(arms, Absent):
                    found.append(cell(row, name, column, arm, known, printed))
                elif printed is not None:
                    found.append(impossible(row, name, printed, arms.why, column.unit))
    return found


def _table(number: int, paper_number: int, title: str, chosen: list[Case]) -> Table:
    def plan(settings: Settings) -> list[Comparison]:
        return [one for case in chosen for one in comparison_of(arms_of(settings, case))]

    return Table(
        number=number,
        paper=PAPER,
        paper_number=paper_number,
        title=title,
        row_heads=("target", "sampling", "logits", "rule", "scale"),
        blocks=(NAMES[:3], NAMES[3:]),
        plan=plan,
        cells=lambda settings, records_of: _cells(f"table_{paper_number}", chosen, settings, records_of),
        notes=lambda settings: [
            "scale: alpha = -scale, beta = scale. Which scales the paper's rows are is from memory, unconfirmed.",
            "logits: as the models give them, or both models' rounded to fp16 before the scaling, which is then computed "
            "in fp16: there 1e5 is infinite, so nothing is accepted and every token is as likely (the paper's WER of 29 "
            "and 31).",
            "WER, ROUGE-1: fractions. saved: percent of the baseline's profiled time. fewer calls, faster calls: their "
            "number and mean time over the baseline's. accepted: of the drafts up to and including a round's first "
            "rejection.",
            *sample_notes(settings, (CV16, XSUM)),
            *RULE_NOTES[:1],
            *RULE_NOTES[2:],
            *time_notes(settings),
            *setting_notes(settings),
            *model_notes(plan(settings)),
        ],
    )


SCALING = _table(31, 2, "scaling of the logits", FIRST_TWO)
SCALING_ALL = _table(34, 5, "scaling of the logits, all pairs", ALL_PAIRS)
