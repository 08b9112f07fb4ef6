"""SpecDec, Tables 14 to 17 (catalogue 24 to 27): peak memory and latency at several batch sizes, which Figure 5 shows too.

Memory and time are measured in runs of their own, because reading the one disturbs the other. A peak is the loaded models'
weights and the most that a batch takes above them; both models are loaded throughout, as in the paper. Of Tables 14 and 15
only the numbers of the authors' repository are at hand, which are counted otherwise. Tables 16 and 17 are of T5-large in the
paper, to show that latency, not memory, is the bottleneck; only what its text says of them is left. Ours also show what
SpecDec does about it.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from harness.core.experiment import Experiment, MemoryProbe
from harness.core.records import Record
from harness.core.settings import Settings
from harness.measures.of_run import decoded_together, peak_mib
from harness.measures.statistics import DESCRIPTIVE, Estimate, Missing, ratio_of_examples
from harness.papers.specdec import setup
from harness.papers.specdec.columns import arm_notes, faster_beam, printed_value, which_beam
from harness.papers.specdec.measures import latency_s, sentence_speedup, timed_together
from harness.tables import published
from harness.tables.base import Table
from harness.tables.engine import Column, Kind, Known, Result, Row, Section, row_name, table
from harness.tables.finding import FASTER, Where, side
from harness.tables.published import Published

MIB = 2**20
TIMED_ARMS = (setup.GREEDY, setup.BEAM, setup.THEIR_BEAM, setup.STRICT, setup.HIGH_EFFICIENCY)
T5 = "T5-large"
T5_KEY = (T5, "cells")
NAMES = {setup.EN_DE: "base", setup.CNNDM: "BART"}
WEIGHTS = "weights"


def at_batch(plain: Experiment | Missing, settings: Settings, batch: int, memory: bool) -> Experiment | Missing:
    """The verifier alone, decoding ``batch`` sentences together, for its times or for its ``memory``."""
    if isinstance(plain, Missing):
        return plain
    sizes = setup.SIZES[settings.profile]
    limit = settings.limit or (sizes.memory_limit if memory else sizes.batch_limit)
    repeats = 1 if memory else settings.repeats or 1
    return plain.replace(batch_size=batch, limit=limit, repeats=repeats, probes=(MemoryProbe(),) if memory else ())


def arms_at(settings: Settings, setting: setup.Setup, batch: int, *, memory: bool = False) -> setup.Arms:
    """AT by both searches, SpecDec and its efficient relaxed setting, decoding ``batch`` sentences together.

    Where time is measured, transformers' beam search too: the faster of the two searches is the baseline of speeds.
    """
    plain = at_batch(setup.greedy(settings, setting, "batches"), settings, batch, memory)
    drafter, gamma = setup.drafter_of(settings, setting.drafter), setup.gamma_of(settings, setting)
    return {
        setup.GREEDY: plain,
        setup.BEAM: setup.beam(plain),
        **({} if memory else {setup.THEIR_BEAM: setup.beam(plain, "transformers")}),
        setup.STRICT: setup.strict(plain, drafter, gamma),
        setup.HIGH_EFFICIENCY: setup.relaxed(plain, drafter, gamma, setup.EFFICIENCY),
    }


# Memory


def weights_mib(known: Known, name: str) -> Result:
    """The size of an arm's verifier and drafter in memory; None where the run noted nothing of them."""
    experiment = known[name][0]
    drafter = experiment.method.drafter
    names = [experiment.target.name, *([drafter.model.name] if drafter is not None and drafter.model is not None else [])]
    facts = known.evidence.facts_of(experiment)
    if not all(facts.get(model) for model in names):
        return None
    counts = [facts[model]["num_parameters"] for model in names]
    if None in counts:
        return Missing("unknown: the size of a model's weights cannot be had without loading it")
    return Estimate(sum(counts) * int(experiment.dtype[-2:]) / 8 / MIB, None, None, 1, "MiB")


def total_peak_mib(known: Known, name: str) -> Result:
    """Weights and the most that any batch took above the loaded models. A maximum has no interval."""
    weights, peaks = weights_mib(known, name), peaks_mib(*known[name])
    if not isinstance(weights, Estimate):
        return weights
    if isinstance(peaks, Missing):
        return peaks
    return Estimate(weights.value + max(peaks), None, None, len(peaks), "MiB")


def peaks_mib(experiment: Experiment, records: Sequence[Record]) -> list[float] | Missing:
    """Per batch the most that was held above the loaded models."""
    batches = decoded_together(records, experiment.batch_size)
    peaks = [rows[0].peak_bytes / MIB for rows in batches if rows[0].peak_bytes is not None]
    if len(peaks) < len(batches):
        return Missing("unknown: the records hold no peak of memory, which this system or device could not measure")
    return peaks


def decoding_mib(experiment: Experiment, records: Sequence[Record]) -> Result:
    """Mean over batches of what one held above the loaded models."""
    return peak_mib(records, experiment.batch_size)


def _extra(measure: Callable[[Known, str], Result], known: Known, row: Row) -> Result:
    """SpecDec++'s number minus AT's; neither has an interval."""
    more, less = measure(known, row.arm), measure(known, setup.GREEDY)
    if not isinstance(more, Estimate) or not isinstance(less, Estimate):
        return less if isinstance(more, Estimate) else more
    return Estimate(more.value - less.value, None, None, min(more.n, less.n), "MiB")


def _extra_decoding(known: Known, row: Row) -> Result:
    """Mean over batches of what SpecDec++ held more than AT above the loaded models, batch by batch."""
    at, method = (decoded_together(records, arm.batch_size) for arm, records in (known[setup.GREEDY], known[row.arm]))
    plain = {rows[0].key: rows[0].peak_bytes for rows in at}
    pairs = [(rows[0].example, rows[0].peak_bytes, plain.get(rows[0].key)) for rows in method]
    rows = [(example, (more - less) / MIB, 1.0) for example, more, less in pairs if more is not None and less is not None]
    return ratio_of_examples(rows, "MiB")


def _both(title: str, measure: Callable[[Known, Row], Result], model: str | None = None, kind: Kind = "measured") -> Column:
    """A column of Tables 14 and 15, whose rows show AT and SpecDec++; ``model`` names it in the published files."""
    return Column(title, measure, "MiB", published=model, reads=(setup.GREEDY,), kind=kind)


HELD_COLUMNS = (
    _both("AT", lambda known, row: total_peak_mib(known, setup.GREEDY), "Fairseq (beam1)"),
    _both("SpecDec++", lambda known, row: total_peak_mib(known, row.arm), "SpecDec"),
    _both("extra", partial(_extra, total_peak_mib), "extra"),
    _both("AT decoding", lambda known, row: decoding_mib(*known[setup.GREEDY])),
    _both("SpecDec++ decoding", lambda known, row: decoding_mib(*known[row.arm])),
    _both("extra decoding", _extra_decoding),
)
# The same columns of the weights alone.
WEIGHT_COLUMNS = (
    _both("AT", lambda known, row: weights_mib(known, setup.GREEDY), "AT", "planned"),
    _both("SpecDec++", lambda known, row: weights_mib(known, row.arm), "AT+NAT", "planned"),
    _both("extra", partial(_extra, weights_mib), "NAT", "planned"),
)


def held_sections(setting: setup.Setup, settings: Settings) -> list[Section]:
    """Tables 14 and 15. The paper measured summarization at batch 1 only."""
    sections: list[Section] = []
    for batch in (1,) if setting == setup.CNNDM else setup.SIZES[settings.profile].batches:
        arms = arms_at(settings, setting, batch, memory=True)
        if not sections and all(isinstance(arms[name], Experiment) for name in (setup.GREEDY, setup.HIGH_EFFICIENCY)):
            sections.append(Section(arms, (Row(WEIGHTS, setup.HIGH_EFFICIENCY, ""),), WEIGHT_COLUMNS))
        sections.append(Section(arms, (Row(str(batch), setup.HIGH_EFFICIENCY, f"batch {batch}"),)))
    return sections


def _held_value(name: str, setting: str, model: str) -> Published:
    """The repository's number, at a batch or of the weights (""); "not recovered" where the paper's is lost."""
    rows = [row for row in published.read(setup.PAPER, name) if (row["model"], row["setting"]) == (model, setting)]
    if rows:
        return published.value(rows[0], "value")
    return "not recovered" if setting else None


def _held_notes(setting: setup.Setup, settings: Settings) -> list[str]:
    where = (
        "torch.cuda.max_memory_allocated" if settings.device.startswith("cuda") else "the process's resident memory at its peak"
    )
    repository = (
        "The printed numbers are the authors' repository's: nvidia-smi's of the whole process, CUDA's context included; by "
        "which rule its SpecDec decoded is not said. What the paper's table has (torch.cuda.max_memory_allocated) is not "
        "recovered."
    )
    rule = f"{setup.EFFICIENCY}, as in the paper" if setting == setup.EN_DE else f"{setup.EFFICIENCY}"
    return [
        f"MiB. AT is greedy decoding; SpecDec++ has {rule}. Peak: the loaded "
        "weights and the most that any batch took above the loaded models; a maximum has no interval. decoding: the mean over "
        "batches of what one took above them, n batches, without an interval where they are fewer than "
        f"{DESCRIPTIVE}; extra decoding: the same of the difference, batch by batch. Measured by {where}.",
        "weights: of the verifier, of verifier and drafter, of the drafter, from their recipes.",
        "A CPU's peak also has what the allocator keeps between operations, so small differences are the allocator's.",
        *([repository] if setting == setup.EN_DE else []),
    ]


def _held_table(number: int, paper_number: int, title: str, setting: setup.Setup) -> Table:
    return table(
        number=number,
        paper=setup.PAPER,
        paper_number=paper_number,
        title=title,
        row_heads=("batch",),
        columns=HELD_COLUMNS,
        blocks=(("AT", "SpecDec++", "extra"), ("AT decoding", "SpecDec++ decoding", "extra decoding")),
        sections=partial(held_sections, setting),
        published=partial(_held_value, f"table_{paper_number}"),
        first_notes=partial(_held_notes, setting),
        last_notes=arm_notes,
        findings=(side("extra decoding", 0, "the memory of SpecDec++", ("larger", "smaller"), "than AT's", "batch sizes"),),
        data=setup.data_of,
        is_committed=setting == setup.EN_DE,
    )


# Latency


def batch_speedup(known: Known, baseline: str, arm: str) -> Result:
    """Seconds of the baseline over the arm's; the interval resamples batches."""
    return sentence_speedup(*(_as_wholes(*known[name]) for name in (setup.GREEDY, baseline, arm)))


def _as_wholes(experiment: Experiment, records: Sequence[Record]) -> list[Record]:
    """A record a batch: its first row's with the time of all, and any wrong output among them."""
    wholes = []
    for rows in timed_together(records, experiment.batch_size):
        divergences = [row.divergence for row in rows if row.divergence is not None]
        worst = next((one for one in divergences if one.kind == "bug"), divergences[0] if divergences else None)
        wholes.append(replace(rows[0], wall_s=sum(row.wall_s or 0.0 for row in rows), divergence=worst))
    return wholes


def _sentence_s(records: Sequence[Record], batch_size: int) -> Estimate | None:
    """Mean seconds a sentence; the interval resamples batches."""
    batches = timed_together(records, batch_size)
    times = [(rows[0].example, sum(row.wall_s or 0.0 for row in rows), len(rows)) for rows in batches]
    return ratio_of_examples(times, "s")


def _milliseconds(seconds: Callable[[Sequence[Record], int], Estimate | None]) -> Callable[[Known, Row], Result]:
    """A time of an arm's batches, refused where a speed over greedy decoding is."""

    def measured(known: Known, row: Row) -> Result:
        experiment, records = known[row.arm]
        over_greedy, found = batch_speedup(known, setup.GREEDY, row.arm), seconds(records, experiment.batch_size)
        if isinstance(over_greedy, Missing) or not isinstance(found, Estimate):
            return over_greedy if isinstance(over_greedy, Missing) else found
        return found.mapped(lambda time: 1e3 * time, "ms")

    return measured


A_SENTENCE = Column("a sentence", _milliseconds(_sentence_s), "ms", reads=(setup.GREEDY,))
TIMES = (
    Column(
        "latency", _milliseconds(latency_s), "ms", reads=(setup.GREEDY,), published="latency_s",
        note="latency: ms until a batch is done, encoders included; a sentence: the same over its sentences. speed, over "
        "greedy: over AT of the same batch size with beam 5, the faster of our search and transformers', and with b = 1, arms "
        f"interleaved. Intervals resample batches (n); there is none of fewer than {DESCRIPTIVE}.",
    ),
    A_SENTENCE,
    Column(
        "speed", lambda known, row: batch_speedup(known, faster_beam(known), row.arm), "x",
        reads=(setup.GREEDY, setup.BEAM, setup.THEIR_BEAM), remark=which_beam,
    ),
    Column(
        "over greedy", lambda known, row: batch_speedup(known, setup.GREEDY, row.arm), "x", reads=(setup.GREEDY, setup.BEAM),
    ),
)  # fmt: skip
MEMORY = (
    Column(
        "peak", lambda known, row: total_peak_mib(known, row.arm), "MiB", published="memory_GB",
        note="MiB. peak: weights of verifier and drafter and the most that any batch took above the loaded models; decoding: "
        "the mean over batches of what one took. Measured in a run without a clock.",
    ),
    Column("weights", lambda known, row: weights_mib(known, row.arm), "MiB", kind="planned"),
    Column("decoding", lambda known, row: decoding_mib(*known[row.arm]), "MiB"),
)  # fmt: skip


def timed_sections(setting: setup.Setup, settings: Settings) -> list[Section]:
    """Tables 16 and 17: T5-large by greedy decoding, as in the paper, then our arms; each at every batch size."""
    large, sections = setup.greedy(settings, replace(setting, verifier="t5-large"), "batches"), []
    for memory, columns in ((False, TIMES), (True, MEMORY)):
        for batch in setup.SIZES[settings.profile].batches:
            row = Row(row_name(T5, setup.GREEDY, batch), setup.GREEDY, T5_KEY)
            sections.append(Section({setup.GREEDY: at_batch(large, settings, batch, memory)}, (row,), columns))
        for batch in setup.SIZES[settings.profile].batches:
            arms = arms_at(settings, setting, batch, memory=memory)
            rows = tuple(Row(row_name(NAMES[setting], name, batch), name) for name in arms)
            sections.append(Section(arms, rows, columns))
    return sections


def _timed_notes(name: str, settings: Settings) -> list[str]:
    stands_in = " and here a far smaller model of its family" if settings.profile in ("toy", "test") else ""
    rows = [row for row in published.read(setup.PAPER, name) if row["value"]]
    text = "; ".join(f"{row['model']}, {row['setting']}: {row['metric']} {row['value']}" for row in rows)
    return [
        f"{T5} is the paper's model{stands_in}, decoded greedily; all that is left of its numbers is in its text: "
        f"{text}. The other rows are ours."
    ]


def _is(method: str) -> Where:
    return lambda parts: parts[1] == method


def _timed_table(number: int, paper_number: int, title: str, setting: setup.Setup) -> Table:
    return table(
        number=number,
        paper=setup.PAPER,
        paper_number=paper_number,
        title=title,
        row_heads=("model", "method", "batch"),
        columns=(*TIMES, *MEMORY),
        blocks=tuple(tuple(column.title for column in columns) for columns in (TIMES, MEMORY)),
        sections=partial(timed_sections, setting),
        published=partial(printed_value, f"table_{paper_number}", ("latency_s", "memory_GB")),
        first_notes=partial(_timed_notes, f"table_{paper_number}"),
        last_notes=arm_notes,
        findings=(
            side("over greedy", 1, setup.STRICT, FASTER, "than greedy decoding", "batch sizes", _is(setup.STRICT)),
            side("speed", 1, setup.STRICT, FASTER, "than beam search", "batch sizes", _is(setup.STRICT)),
        ),
        data=setup.data_of,
        is_committed=setting == setup.EN_DE,
    )


COST_TABLES = [
    _held_table(24, 14, "peak memory, translation", setup.EN_DE),
    _held_table(25, 15, "peak memory, CNN/DM", setup.CNNDM),
    _timed_table(26, 16, "latency and memory, translation", setup.EN_DE),
    _timed_table(27, 17, "latency and memory, CNN/DM", setup.CNNDM),
]
