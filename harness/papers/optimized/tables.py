"""Optimized, Tables 1 to 5 (catalogue 30 to 34), by verify rule: quality, profiled time and calls; wall-clock; time a call.

Tables 2 and 5 (catalogue 31 and 34) vary the sigmoid's scaling constants, on the models' own logits and in fp16.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from harness.core.experiment import Experiment
from harness.core.settings import Settings
from harness.papers.optimized import setup
from harness.papers.optimized.columns import BY_TITLE, CALL_TIME, CALLS, COLUMNS, ROUGE, WER, columns_for, printed_value
from harness.tables import published
from harness.tables.base import Finding, Table
from harness.tables.engine import PERPLEXITY, Row, Section, row_name, table
from harness.tables.finding import FASTER, Where, by_columns, by_head, once, order, side, together
from harness.tables.published import Published

RULE_NOTES = (
    "Rules: baseline is the sequence of operations of transformers' own function; exact the paper's 3.2.1; fused our exact "
    "kernel, from logits; sigmoid the paper's 3.2.2, as its text describes it and as its code was released (clamps, and "
    "the row behind the last draft never activated: where every draft stands, the next token is drawn from raw logits). "
    "The paper prints one sigmoid; its number stands beside both.",
    f"Sigmoid constants: alpha = -{setup.SCALES[True]:g}, beta = {setup.SCALES[True]:g} for speech, "
    f"-{setup.SCALES[False]:g} and {setup.SCALES[False]:g} for summaries. The text at hand has lost them: from memory, "
    "unconfirmed, but for the summaries', which the released kernels define.",
    "Sampling: the paper does not say. Temperature 1 with top-k 50 is transformers' default and has the paper's numbers beside "
    "it; unfiltered is temperature 1 alone.",
)


def setting_notes(settings: Settings, arms: Sequence[Experiment]) -> list[str]:
    """Describe the profiling of time, the settings, and the models that stand in."""
    cpu = (
        "Profiled time here is CPU time: processor time of this process during a call, all threads; the paper's is an A100's. "
        "The kernels' CPU paths run, PyTorch in place of Triton; DEVICE=cuda DTYPE=float16 is the paper's setting. At a toy "
        "vocabulary a call costs little but its number of operations; `foretoken bench kernels` has real vocabularies."
    )
    cuda = (
        "Profiled time: the sum of the device's events in a call, each once, by torch's profiler; refused where CUDA "
        "events or the clock contradict it. The paper logged total_average(), which adds nested operations on top. "
        "Wall-clock time is taken in runs without the profiler."
    )
    return [
        cuda if settings.device.startswith("cuda") else cpu,
        f"Settings as the paper's: batch 1, {setup.GAMMA} drafts at first, then 2 more after a round in which all stood, else "
        f"1 fewer; at most {setup.MAX_NEW_TOKENS[True]} tokens of speech (or what the model has positions for) and "
        f"{setup.MAX_NEW_TOKENS[False]} of summaries; tiles of 1,024. Here {settings.dtype}; the paper's models were FP16.",
        *_model_notes(arms),
    ]


def _model_notes(arms: Sequence[Experiment]) -> list[str]:
    """Name the pairs of models; no notes without arms."""
    pairs = dict.fromkeys(
        (arm.target.name, arm.method.drafter.model.name)
        for arm in arms
        if arm.method.drafter is not None and arm.method.drafter.model is not None
    )
    if not pairs:
        return []
    notes = ["Models here, target and draft: " + "; ".join(f"{target}, {draft}" for target, draft in pairs) + "."]
    if any(setup.from_zoo(arm.target) for arm in arms):
        notes.append(
            "zoo: models of the same families, far smaller, trained here. Its Llama is prompted as it was trained (PPD's "
            'prompt); other models as in the paper, "Summary:" after the article. Its Whisper hears 3 seconds at a time '
            "and was trained on spoken toy sentences whatever the data."
        )
    return notes


def _sections(timed: bool, settings: Settings) -> list[Section]:
    """A section a case, a row a rule. The paper's numbers stand in the rows of transformers' default sampling."""
    sections = []
    for case in setup.ALL_CASES:
        arms = setup.arms_of(settings, case)
        shown = [name for name in arms if name != setup.PLAIN]
        rows = (
            Row(
                row_name(case.data.label, case.pair.target, case.sampling, name),
                name,
                (case, name) if case.sampling == setup.FILTERED else None,
            )
            for name in shown
        )
        arms = setup.without_profiler(settings, arms) if timed else arms
        sections.append(Section(arms, tuple(rows), columns_for(case), printed_only=True))
    return sections


def _rule_table(
    number: int,
    paper_number: int,
    title: str,
    blocks: tuple[tuple[str, ...], ...],
    findings: Sequence[Finding],
    timed: bool = False,
) -> Table:
    return table(
        number=number,
        paper=setup.PAPER,
        paper_number=paper_number,
        title=title,
        row_heads=("data", "target", "sampling", "rule"),
        columns=COLUMNS,
        blocks=blocks,
        sections=partial(_sections, timed),
        published=printed_value,
        last_notes=lambda settings, arms: [*RULE_NOTES, *setting_notes(settings, arms)],
        findings=findings,
    )


def _is(rule: str) -> Where:
    return lambda parts: parts[3] == rule


def _is_lossy(parts: Sequence[str]) -> bool:
    return parts[3].endswith(setup.LOSSY)


def _untrained(parts: Sequence[str]) -> bool:
    return parts[3] == f"{setup.UNTRAINED}{setup.SIGMOID}"


def _saves(column: str, time: str, rule: str = setup.EXACT) -> Finding:
    """The time of a rule beside the baseline's, of which it saves a share."""
    return side(column, 0, f"{time} of the rule {rule}", ("shorter", "longer"), "than the baseline's", "settings", _is(rule))


QUALITY_BLOCKS = (
    (WER, ROUGE, "saved"),
    ("profiled", "calls", CALLS, CALL_TIME),
    ("accepted", "alpha", "as baseline", PERPLEXITY.title),
)
RULE_TABLES = [
    _rule_table(
        30,
        1,
        "WER or ROUGE-1, and profiled time of speculative sampling",
        QUALITY_BLOCKS,
        (
            _saves("saved", "profiled time"),
            order(
                by_columns("accepted", "alpha", _untrained),
                "acceptance of an untrained draft",
                "by the sigmoid",
                "by an exact rule",
                "settings",
            ),
            order(
                by_head(WER, 3, setup.SIGMOID, setup.BASELINE),
                "the word error rate",
                "with the sigmoid",
                "with the baseline",
                "settings",
            ),
        ),
    ),
    _rule_table(
        32,
        3,
        "wall-clock time",
        (("wall saved", "wall", "over plain"),),
        (
            _saves("wall saved", "wall-clock time"),
            together(
                side(
                    "over plain",
                    1,
                    "speculative sampling by an exact rule",
                    FASTER,
                    "than plain decoding",
                    "settings",
                    lambda parts: not _is_lossy(parts),
                ),
                side("over plain", 1, "by a sigmoid it", FASTER, "than plain decoding", "settings", _is_lossy),
            ),
        ),
        timed=True,
    ),
    _rule_table(
        33,
        4,
        "time per call of speculative sampling",
        (("a call", "deviation", "saved a call"), ("calls", "profiled")),
        (
            _saves("saved a call", "time a call"),
            _saves("saved a call", "time a call", setup.FUSED),
        ),
    ),
]


# Scaling

SWEEP = (1e1, 1e3, 1e4, 1e5)
HALF = "float16"
NOTE = (
    "WER, ROUGE-1: fractions. saved: percent of the baseline's profiled time. "
    f"{CALLS}, {CALL_TIME}: their number and mean time over the baseline's, below 1 is less. accepted: of the drafts up to and "
    "including a round's first rejection."
)
SHOWN = (WER, ROUGE, "saved", CALLS, CALL_TIME, "accepted")
SCALED_COLUMNS = [replace(BY_TITLE[name], note=NOTE if name == WER else "") for name in SHOWN]
FIRST_TWO = setup.cases((setup.SMALL_EN, setup.CV16), (setup.LLAMA_7B, setup.XSUM))
ALL_PAIRS = setup.cases(*((pair, setup.CV16) for pair in setup.WHISPERS), *((pair, setup.XSUM) for pair in setup.READERS))


class _Scaled(NamedTuple):
    """A row: a mode of the sigmoid, the logits that it is given, and beta = -alpha."""

    rule: str
    logits: str
    scale: float

    @property
    def name(self) -> str:
        return row_name(self.logits, self.rule, f"{self.scale:g}")


def scaled(settings: Settings) -> list[_Scaled]:
    """Logits in the models' own dtype, and rounded to fp16 where that is another."""
    kinds = dict.fromkeys((settings.dtype, HALF))
    return [_Scaled(rule, logits, scale) for rule in setup.LOSSY for logits in kinds for scale in SWEEP]


def scaled_arms(settings: Settings, case: setup.Case) -> setup.Arms:
    """Plain decoding, the baseline, and both sigmoids at every scale."""
    plain = setup.plain_arm(settings, case, "scaling", sampled=True)
    arms = {setup.PLAIN: plain, setup.BASELINE: setup.ruled(plain, case, setup.BASELINE)}
    for one in scaled(settings):
        arms[one.name] = setup.ruled(plain, case, one.rule, scale=one.scale, half_logits=one.logits != settings.dtype)
    return arms


def _scaled_sections(chosen: list[setup.Case], settings: Settings) -> list[Section]:
    return [
        Section(scaled_arms(settings, case), _rows(settings, case), columns_for(case, SCALED_COLUMNS), True) for case in chosen
    ]


def _rows(settings: Settings, case: setup.Case) -> tuple[Row, ...]:
    """The paper's numbers stand beside logits as its models gave them: half precision from Whisper, full from the others."""
    papers_logits = HALF if case.data.is_speech or settings.dtype == HALF else settings.dtype
    rows = [Row(row_name(case.pair.target, case.sampling, "", setup.BASELINE, ""), setup.BASELINE, (case, None))]
    for one in scaled(settings):
        key = (case, one.scale) if one.logits == papers_logits else None
        rows.append(Row(row_name(case.pair.target, case.sampling, one.name), one.name, key))
    return tuple(rows if case.sampling == setup.FILTERED else (replace(row, key=None) for row in rows))


def _printed(name: str, key: tuple[setup.Case, float | None], column: tuple[str, str]) -> Published:
    """The paper's number at a scale; None is the baseline's."""
    (case, scale), (table_name, metric) = key, column
    if table_name != "table_1":
        return None
    for line in published.read(setup.PAPER, name):
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
    sizes = ", ".join(
        f"{setup.num_examples(settings, data, sampled=True)} of {data.label}" for data in (setup.CV16, setup.XSUM)
    )
    return [
        f"A sample drawn by the seed: at most {sizes}. The paper's is 10 % of the test sets.",
        *RULE_NOTES[:1],
        *RULE_NOTES[2:],
        *setting_notes(settings, arms),
    ]


def _by_scale(column: str, what: str, high: float, low: float, logits: str = "") -> Finding:
    """A quantity at a high scale beside that at a low one, with ``logits`` or else the models' own; a sample may be small.

    Below the scale at which fp16 overflows logits that are rounded to it decide as the others: one setting, not two.
    """
    pairs = by_head(column, 4, f"{high:g}", f"{low:g}", lambda parts: logits in ("", parts[2]))
    return order(
        once(pairs, 2),
        what,
        f"{f'with {logits} logits ' if logits else ''}at scale {high:g}",
        f"at scale {low:g}",
        "settings",
        describes=True,
    )


def _scaling_table(number: int, paper_number: int, title: str, chosen: list[setup.Case]) -> Table:
    return table(
        number=number,
        paper=setup.PAPER,
        paper_number=paper_number,
        title=title,
        row_heads=("target", "sampling", "logits", "rule", "scale"),
        columns=SCALED_COLUMNS,
        blocks=(SHOWN[:3], SHOWN[3:]),
        sections=partial(_scaled_sections, chosen),
        published=partial(_printed, f"table_{paper_number}"),
        first_notes=_first_notes,
        last_notes=_last_notes,
        findings=(
            _by_scale(WER, "the word error rate", 1e3, 1e1),
            _by_scale(WER, "the word error rate", 1e5, 1e3, HALF),
            _by_scale("accepted", "acceptance", 1e3, 1e1),
        ),
    )


SCALING_TABLES = [
    _scaling_table(31, 2, "scaling of the logits", FIRST_TWO),
    _scaling_table(34, 5, "scaling of the logits, all pairs", ALL_PAIRS),
]
