"""Optimized, Tables 2 and 5 (catalogue 31, 34): the sigmoid's scaling constants, on the models' own logits and in fp16."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from harness.core.experiment import Experiment
from harness.core.settings import Settings
from harness.measures.statistics import Missing
from harness.papers.optimized.rules import BY_TITLE, ROUGE, RULE_NOTES, WER, columns_for, setting_notes
from harness.papers.optimized.setup import (
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
    models_of,
    num_examples,
    plain_arm,
    ruled,
)
from harness.tables import published
from harness.tables.base import Table
from harness.tables.engine import Row, Section, row_name, table
from harness.tables.published import Published

SWEEP = (1e1, 1e3, 1e4, 1e5)
HALF = "float16"
NOTE = (
    "WER, ROUGE-1: fractions. saved: percent of the baseline's profiled time. fewer calls, faster calls: their "
    "number and mean time over the baseline's. accepted: of the drafts up to and including a round's first "
    "rejection."
)
NAMES = (WER, ROUGE, "saved", "fewer calls", "faster calls", "accepted")
COLUMNS = [replace(BY_TITLE[name], note=NOTE if name == WER else "") for name in NAMES]
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


def arms_of(settings: Settings, case: Case) -> Arms:
    plain, models = plain_arm(settings, case, "scaling", sampled=True), models_of(settings, case.pair)
    if isinstance(plain, Missing) or isinstance(models, Missing):
        absent = plain if isinstance(plain, Missing) else NO_STAND_IN
        return dict.fromkeys((BASELINE, *(one.name for one in scaled(settings))), absent)
    arms: Arms = {PLAIN: plain, BASELINE: ruled(plain, case, BASELINE, draft=models[1])}
    for one in scaled(settings):
        half = one.logits != settings.dtype
        arms[one.name] = ruled(plain, case, one.rule, draft=models[1], scale=one.scale, half_logits=half)
    return arms


def _sections(chosen: list[Case], settings: Settings) -> list[Section]:
    return [Section(arms_of(settings, case), _rows(settings, case), columns_for(case, COLUMNS), True) for case in chosen]


def _rows(settings: Settings, case: Case) -> tuple[Row, ...]:
    """The paper's numbers stand beside logits as its models gave them: half precision from Whisper, full from the others."""
    papers_logits = HALF if case.data.is_speech or settings.dtype == HALF else settings.dtype
    rows = [Row(row_name(case.pair.target, case.sampling, "", BASELINE, ""), BASELINE, (case, None))]
    for one in scaled(settings):
        key = (case, one.scale) if one.logits == papers_logits else None
        rows.append(Row(row_name(case.pair.target, case.sampling, one.name), one.name, key))
    return tuple(rows if case.sampling == FILTERED else (replace(row, key=None) for row in rows))


def _printed(name: str, key: tuple[Case, float | None], column: tuple[str, str]) -> Published:
    """The paper's number at a scale; None is the baseline's."""
    (case, scale), (table_name, metric) = key, column
    if table_name != "table_1":
        return None
    for line in published.read(PAPER, name):
        here = float(line["beta_scale"]) if line["beta_scale"] else None
        if line["target"].removeprefix("Whisper ") != case.pair.target or here != scale:
            continue
        if metric in line:
            return published.value(line, metric)
        return published.value(line, "value") if line["metric"] == metric else None
    return None


def _first_notes(settings: Settings) -> list[str]:
    return [
        "scale: alpha = -scale, beta = scale. Which scales the paper's rows are is from memory, unconfirmed.",
        "logits: as the models give them, or both models' rounded to fp16 before the scaling, which is then computed "
        "in fp16: there 1e5 is infinite, so nothing is accepted and every token is as likely (the paper's WER of 29 "
        "and 31).",
    ]


def _last_notes(settings: Settings, arms: Sequence[Experiment]) -> list[str]:
    sizes = ", ".join(f"{num_examples(settings, data, sampled=True)} of {data.label}" for data in (CV16, XSUM))
    return [
        f"A sample drawn by the seed: at most {sizes}. The paper's is 10 % of the test sets.",
        *RULE_NOTES[:1],
        *RULE_NOTES[2:],
        *setting_notes(settings, arms),
    ]


def _table(number: int, paper_number: int, title: str, chosen: list[Case]) -> Table:
    return table(
        number=number,
        paper=PAPER,
        paper_number=paper_number,
        title=title,
        row_heads=("target", "sampling", "logits", "rule", "scale"),
        columns=COLUMNS,
        blocks=(NAMES[:3], NAMES[3:]),
        sections=partial(_sections, chosen),
        published=partial(_printed, f"table_{paper_number}"),
        first_notes=_first_notes,
        last_notes=_last_notes,
    )


SCALING_TABLES = [
    _table(31, 2, "scaling of the logits", FIRST_TWO),
    _table(34, 5, "scaling of the logits, all pairs", ALL_PAIRS),
]
