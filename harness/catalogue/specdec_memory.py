"""SpecDec, Tables 14 and 15 (catalogue 24 and 25): peak memory of AT and SpecDec++, and what of the difference is weights.

A peak is the loaded models' weights and the most that a batch takes above them; both models are loaded throughout, as in the
paper. The only published numbers at hand are the authors' repository's, which are counted otherwise.
"""

from collections.abc import Callable
from functools import partial

from harness.block_measures import decoded_together
from harness.catalogue import published
from harness.catalogue.base import Cell, Published, RecordsOf, Settings, Table, cell_of, computed, impossible
from harness.catalogue.roles import Absent
from harness.catalogue.specdec_batches import (
    BATCHES,
    MIB,
    MIN_BATCHES,
    arms_at,
    decoding_mib,
    total_peak_mib,
    weights_mib,
    with_spread,
)
from harness.catalogue.specdec_notes import arm_notes
from harness.catalogue.specdec_setup import CNNDM, EFFICIENCY, EN_DE, GREEDY, HIGH_EFFICIENCY, PAPER, Setup, comparison_of
from harness.experiment import Comparison, Experiment
from harness.pairing import Refused
from harness.records import Record
from harness.statistics import Estimate, ratio_of_examples

Arm = tuple[Experiment, list[Record]]
Result = Estimate | Refused | None
WEIGHTS = "weights"


def _difference(measure: Callable[[Experiment, list[Record]], Estimate | Refused], at: Arm, method: Arm) -> Estimate | Refused:
    """Of two numbers without intervals."""
    more, less = measure(*method), measure(*at)
    if isinstance(more, Refused) or isinstance(less, Refused):
        return more if isinstance(more, Refused) else less
    return Estimate(more.value - less.value, None, None, min(more.n, less.n), "MiB")


def extra_decoding(at: Arm, method: Arm) -> Result:
    """Mean over batches of what the method held more than AT above the loaded models, batch by batch."""
    batches = [decoded_together(records, experiment.batch_size) for experiment, records in (at, method)]
    plain = {rows[0].key: rows[0].peak_bytes for rows in batches[0]}
    pairs = [(rows[0].example, rows[0].peak_bytes, plain.get(rows[0].key)) for rows in batches[1]]
    rows = [(example, (more - less) / MIB, 1.0) for example, more, less in pairs if more is not None and less is not None]
    return with_spread(ratio_of_examples(rows, "MiB"))


# Column -> the published rows' model (None: the paper has no such number) and the measure of (AT, SpecDec++).
COLUMNS: dict[str, tuple[str | None, Callable[[Arm, Arm], Result]]] = {
    "AT": ("Fairseq (beam1)", lambda at, method: total_peak_mib(*at)),
    "SpecDec++": ("SpecDec", lambda at, method: total_peak_mib(*method)),
    "extra": ("extra", partial(_difference, total_peak_mib)),
    "AT decoding": (None, lambda at, method: decoding_mib(*at)),
    "SpecDec++ decoding": (None, lambda at, method: decoding_mib(*method)),
    "extra decoding": (None, extra_decoding),
}
# The same of the weights alone.
WEIGHT_COLUMNS: dict[str, tuple[str, Callable[[Experiment, Experiment], Estimate | Refused]]] = {
    "AT": ("AT", lambda at, method: weights_mib(at)),
    "SpecDec++": ("AT+NAT", lambda at, method: weights_mib(method)),
    "extra": ("NAT", lambda at, method: _difference(lambda arm, _: weights_mib(arm), (at, []), (method, []))),
}


def batches_of(settings: Settings, setup: Setup) -> tuple[int, ...]:
    """The paper measured summarization at batch 1 only."""
    return (1,) if setup == CNNDM else BATCHES[settings.profile]


def plan(setup: Setup, settings: Settings) -> list[Comparison]:
    return [one for batch in batches_of(settings, setup) for one in comparison_of(arms_at(settings, setup, batch, memory=True))]


def cells(table: str, setup: Setup, settings: Settings, records_of: RecordsOf) -> list[Cell]:
    found: list[Cell] = []
    for batch in batches_of(settings, setup):
        arms = arms_at(settings, setup, batch, memory=True)
        at, method = arms[GREEDY], arms[HIGH_EFFICIENCY]
        if isinstance(at, Absent) or isinstance(method, Absent):
            why = next(arm.why for arm in (at, method) if isinstance(arm, Absent))
            found += [
                impossible(str(batch), name, _printed(table, model, batch), why, "MiB") for name, (model, _) in COLUMNS.items()
            ]
            continue
        if not found:
            found += _weight_cells(table, at, method)
        found += _batch_cells(table, batch, (at, records_of(at)), (method, records_of(method)))
    return found


def _weight_cells(table: str, at: Experiment, method: Experiment) -> list[Cell]:
    found = []
    for column, (model, measure) in WEIGHT_COLUMNS.items():
        result, printed = measure(at, method), _printed(table, model, None)
        if isinstance(result, Estimate):
            found.append(computed(WEIGHTS, column, printed, result.value, "MiB"))
        else:
            found.append(impossible(WEIGHTS, column, printed, result.reason, "MiB"))
    return found


def _batch_cells(table: str, batch: int, at: Arm, method: Arm) -> list[Cell]:
    return [
        cell_of(str(batch), column, _printed(table, model, batch), [at, method], partial(measure, at, method), "MiB")
        for column, (model, measure) in COLUMNS.items()
    ]


def _printed(table: str, model: str | None, batch: int | None) -> Published:
    """The repository's number, at a batch or of the weights; else that the paper's is lost."""
    if model is None:
        return None
    setting = "" if batch is None else f"batch {batch}"
    rows = [row for row in published.read(PAPER, table) if (row["model"], row["setting"]) == (model, setting)]
    if rows:
        return published.value(rows[0], "value")
    return None if batch is None else "not recovered"


def notes(setup: Setup, settings: Settings) -> list[str]:
    where = (
        "torch.cuda.max_memory_allocated" if settings.device.startswith("cuda") else "the process's resident memory at its peak"
    )
    theirs = (
        "The printed numbers are the authors' repository's: nvidia-smi's of the whole process, CUDA's context included; by "
        "which rule its SpecDec decoded is not said. What the paper's table has (torch.cuda.max_memory_allocated) is not "
        "recovered."
    )
    setting = f"{EFFICIENCY}, as in the paper" if setup == EN_DE else f"{EFFICIENCY}"
    return [
        f"MiB. AT is greedy decoding; SpecDec++ has {setting}. Peak: the loaded "
        "weights and the most that any batch took above the loaded models; a maximum has no interval. decoding: the mean over "
        "batches of what one took above them, n batches, without an interval where they are fewer than "
        f"{MIN_BATCHES}; extra decoding: the same of the difference, batch by batch. Measured by {where}.",
        "weights: of the verifier, of verifier and drafter, of the drafter, from their recipes.",
        "A CPU's peak also has what the allocator keeps between operations, so small differences are the allocator's.",
        *([theirs] if setup == EN_DE else []),
        *arm_notes(plan(setup, settings)),
    ]


def _table(number: int, paper_number: int, title: str, setup: Setup) -> Table:
    return Table(
        number=number,
        paper=PAPER,
        paper_number=paper_number,
        title=title,
        row_heads=("batch",),
        blocks=(("AT", "SpecDec++", "extra"), ("AT decoding", "SpecDec++ decoding", "extra decoding")),
        plan=partial(plan, setup),
        cells=partial(cells, f"table_{paper_number}", setup),
        notes=partial(notes, setup),
    )


TRANSLATION_MEMORY = _table(24, 14, "peak memory, translation", EN_DE)
SUMMARY_MEMORY = _table(25, 15, "peak memory, CNN/DM", CNNDM)
