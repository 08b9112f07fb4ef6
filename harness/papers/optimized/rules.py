"""Optimized, Tables 1, 3 and 4 (catalogue 30, 32, 33): metric and profiled time, wall-clock, time a call, by verify rule.

The columns here, and the notes on rules, times, settings and models, are those of Tables 2 and 5 too (scaling.py).
"""

from collections.abc import Callable, Sequence
from functools import partial

from harness.core.experiment import Experiment
from harness.core.records import Record
from harness.core.settings import Settings
from harness.measures import of_run as measures
from harness.measures.sentences import equal_frac
from harness.measures.statistics import Estimate, Missing
from harness.papers.optimized import measures as verification
from harness.papers.optimized.setup import (
    ALL_CASES,
    BASELINE,
    EXACT,
    FILTERED,
    GAMMA,
    LOSSY,
    MAX_NEW_TOKENS,
    PAPER,
    PLAIN,
    SCALES,
    UNTRAINED,
    Arms,
    Case,
    arms_of,
    from_zoo,
    without_profiler,
)
from harness.tables import published
from harness.tables.base import Table
from harness.tables.engine import Column, Known, Result, Row, Section, row_name, table
from harness.tables.published import Published
from tasks import get_task

Measure = Callable[[Known, Row], Result]
FIRST = (BASELINE, f"{UNTRAINED}{BASELINE}")  # the rows that others are compared with


def baseline_of(rule: str) -> str:
    """The rule that another is compared with: the baseline with the same draft."""
    return f"{UNTRAINED}{BASELINE}" if rule.startswith(UNTRAINED) else BASELINE


def _records(measure: Callable[[Sequence[Record]], Result]) -> Measure:
    return lambda known, row: measure(known[row.arm][1])


def _timed(measure: Callable[[list[Record]], Result]) -> Measure:
    """A time of one arm, refused where its clocks contradict each other."""

    def measured(known: Known, row: Row) -> Result:
        experiment, records = known[row.arm]
        return verification.contradiction(experiment, records) or measure(records)

    return measured


def _compared(
    title: str, measure: Callable[[list[Record], list[Record]], Result], unit: str, published: tuple[str, str], note: str = ""
) -> Column:
    """A column of times over the baseline's, refused where the two must not be compared."""

    def measured(known: Known, row: Row) -> Result:
        (experiment, own), (_, base), (_, plain) = known[row.arm], known[baseline_of(row.arm)], known[PLAIN]
        return verification.unfair(plain, experiment, base, own) or measure(base, own)

    return Column(
        title, measured, unit, note=note, published=published, reads=lambda rule: (PLAIN, baseline_of(rule)), applies=_not_first
    )


def _not_first(arm: Experiment | Missing | None, row: Row) -> bool:
    return row.arm not in FIRST


def _saved(measure: Callable[[list[Record], list[Record]], Estimate | None]) -> Callable[[list[Record], list[Record]], Result]:
    return lambda base, own: verification.saved_pct(measure(base, own))


def _ratio(value: verification.Value) -> Callable[[list[Record], list[Record]], Estimate | None]:
    return lambda base, own: verification.ratio(base, own, value)


def _total(value: verification.Value, unit: str) -> Callable[[Sequence[Record]], Estimate | None]:
    return lambda records: verification.total(records, value, unit)


def _score(metric: str, scale: float) -> Measure:
    def measured(known: Known, row: Row) -> Result:
        experiment, records = known[row.arm]
        found = measures.of_task(get_task(experiment.task), records).get(metric)
        if found is None:
            return None
        low, high = (None if bound is None else scale * bound for bound in (found.low, found.high))
        return Estimate(scale * found.value, low, high, found.n)

    return measured


def _alpha(known: Known, row: Row) -> Result:
    drafter = known[row.arm][0].method.drafter
    return None if drafter is None else measures.alpha_overlap(known[PLAIN][1], drafter.label)


OUT_OF_DOMAIN = (
    "out of domain: the zoo's Whisper has heard toy speech only and hears real recordings in chunks; calls, times and "
    "acceptance are what counts here"
)


def _domain(known: Known, row: Row) -> str:
    experiment = known[row.arm][0]
    return OUT_OF_DOMAIN if from_zoo(experiment.target) and experiment.source != "toy" else ""


WER, ROUGE = "WER", "ROUGE-1"
# ``published`` is a published file and the metric there.
COLUMNS = (
    Column(
        WER, _score("wer", 1.0), published=("table_1", "WER"), remark=_domain,
        note="WER, ROUGE-1: fractions, as the paper prints them. saved: percent of the baseline's profiled time, which is "
        "summed over all calls and examples.",
    ),
    Column(ROUGE, _score("rouge1", 0.01), published=("table_1", "ROUGE-1")),
    _compared("saved", _saved(_ratio(verification.profiled_s)), "%", ("table_1", "profiling_time_reduction_pct")),
    Column("profiled", _timed(_total(verification.profiled_ms, "ms")), "ms"),
    Column("calls", _records(_total(verification.num_calls, "calls")), "calls"),
    Column(
        "a call", _timed(verification.call_ms), "ms", published=("table_4", "avg_ms_per_step"),
        note="a call, deviation: mean and standard deviation of the profiled time over all calls. saved a call: percent of the "
        "baseline's mean, as the paper's last columns.",
    ),
    Column("deviation", _timed(verification.call_deviation_ms), "ms", published=("table_4", "std_ms_per_step")),
    _compared("saved a call", _saved(verification.call_ratio), "%", ("table_4", "profiling_time_reduction_pct")),
    _compared(
        "fewer calls", _ratio(verification.num_calls), "x", ("derived_call_ratio", "implied_calls_ratio"),
        "fewer calls, faster calls: number of calls, and mean time of one, over the baseline's; their product is the ratio of "
        "profiled times. Beside them what the paper's Tables 1 and 4 imply: most of its sigmoid's gain is fewer calls, not "
        "faster ones.",
    ),
    _compared("faster calls", verification.call_ratio, "x", ("derived_call_ratio", "per_step_time_ratio_table4")),
    Column(
        "accepted", _records(measures.accepted_over_verified),
        note="accepted: of the drafts up to and including a round's first rejection. alpha: mean over plain decoding's output "
        "of the sum of min(target, draft), what an exact rule accepts of the pair; a rule that accepts more does not "
        "check. untrained draft: the draft's shape with seeded random weights: what stands of it is what a rule lets pass.",
    ),
    Column("alpha", _alpha, reads=(PLAIN,)),
    Column(
        "as baseline", lambda known, row: equal_frac(known[baseline_of(row.arm)][1], known[row.arm][1]), "%",
        reads=lambda rule: (baseline_of(rule),), applies=_not_first,
        note="as baseline: percent of outputs that are the baseline's with the same draft, token for token. Exact rules are "
        "given the same random numbers, so theirs are, but for decisions that rounding turns over.",
    ),
    _compared(
        "wall saved", _saved(_ratio(verification.wall_s)), "%", ("table_3", "wallclock_reduction_pct"),
        "wall saved: percent of the baseline's wall-clock seconds of all examples, models included. wall: these seconds, "
        "features of recordings excluded. over plain: speed over plain decoding, seconds a token; it needs no draft.",
    ),
    Column("wall", _records(_total(verification.wall_s, "s")), "s"),
    Column(
        "over plain", lambda known, row: measures.speedup(known[PLAIN][1], known[row.arm][1]), "x", reads=(PLAIN,),
    ),
)  # fmt: skip
BY_TITLE = {column.title: column for column in COLUMNS}


def columns_for(case: Case, columns: Sequence[Column] = COLUMNS) -> list[Column]:
    """The columns of a data set: speech has no ROUGE, summaries have no WER."""
    foreign = ROUGE if case.data.is_speech else WER
    return [column for column in columns if column.title != foreign]


def printed_value(key: tuple[Case, str], column: tuple[str, str]) -> Published:
    """The paper's number; what it prints of its sigmoid stands beside both of ours."""
    (case, rule), (name, metric) = key, column
    method = {BASELINE: "baseline", EXACT: "exact", **dict.fromkeys(LOSSY, "sigmoid")}.get(rule)
    place = (case.data.name, case.data.subset, case.pair.target, method)
    for row in published.read(PAPER, name):
        here = (row["dataset"], row["subset"], row["target"], row["method"])
        if here == place and row.get("metric", metric) == metric:
            return published.value(row, "value" if "value" in row else metric)
    return None


RULE_NOTES = (
    "Rules: baseline is the sequence of operations of transformers' own function; exact the paper's 3.2.1; fused our exact "
    "kernel, from logits; sigmoid the paper's 3.2.2, as its text describes it and as its code was released (clamps, and "
    "the row behind the last draft never activated: where every draft stands, the next token is drawn from raw logits). "
    "The paper prints one sigmoid; its number stands beside both.",
    f"Sigmoid constants: alpha = -{SCALES[True]:g}, beta = {SCALES[True]:g} for speech, -{SCALES[False]:g} and "
    f"{SCALES[False]:g} for summaries. The text at hand has lost them: from memory, unconfirmed, but for the summaries', which "
    "the released kernels define.",
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
        f"Settings as the paper's: batch 1, {GAMMA} drafts at first, then 2 more after a round in which all stood, else 1 "
        f"fewer; at most {MAX_NEW_TOKENS[True]} tokens of speech (or what the model has positions for) and "
        f"{MAX_NEW_TOKENS[False]} of summaries; tiles of 1,024. Here {settings.dtype}; the paper's models were FP16.",
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
    if any(from_zoo(arm.target) for arm in arms):
        notes.append(
            "zoo: small models of the paper's architectures, trained here. Its Llama is prompted as it was trained (PPD's "
            'prompt); other models as in the paper, "Summary:" after the article. Its Whisper hears 3 seconds at a time '
            "and was trained on spoken toy sentences whatever the data."
        )
    return notes


def _sections(timed: bool, settings: Settings) -> list[Section]:
    """A section a case, a row a rule. The paper's numbers stand in the rows of transformers' default sampling."""
    return [_section(case, _arms(settings, case, timed)) for case in ALL_CASES]


def _arms(settings: Settings, case: Case, timed: bool) -> Arms:
    arms = arms_of(settings, case)
    return without_profiler(settings, arms) if timed else arms


def _section(case: Case, arms: Arms) -> Section:
    printed = case.sampling == FILTERED
    rows = (Row(row_name(*case.heads, name), name, (case, name) if printed else None) for name in arms if name != PLAIN)
    return Section(arms, tuple(rows), columns_for(case), printed_only=True)


def _table(number: int, paper_number: int, title: str, blocks: tuple[tuple[str, ...], ...], timed: bool = False) -> Table:
    return table(
        number=number,
        paper=PAPER,
        paper_number=paper_number,
        title=title,
        row_heads=("data", "target", "sampling", "rule"),
        columns=COLUMNS,
        blocks=blocks,
        sections=partial(_sections, timed),
        published=printed_value,
        last_notes=lambda settings, arms: [*RULE_NOTES, *setting_notes(settings, arms)],
    )


QUALITY_BLOCKS = (
    (WER, ROUGE, "saved"),
    ("profiled", "calls", "fewer calls", "faster calls"),
    ("accepted", "alpha", "as baseline"),
)
RULE_TABLES = [
    _table(30, 1, "WER or ROUGE-1, and profiled time of speculative sampling", QUALITY_BLOCKS),
    _table(32, 3, "wall-clock time", (("wall saved", "wall", "over plain"),), timed=True),
    _table(33, 4, "time per call of speculative sampling", (("a call", "deviation", "saved a call"), ("calls", "profiled"))),
]
