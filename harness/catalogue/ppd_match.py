"""PPD, Tables 2, 6, 7 and 8 (catalogue 1, 4, 5 and 6): how often an early layer's candidates hold the final token.

One greedy generation an example, and one forward pass over it, feed all of them.
"""

from collections.abc import Callable

from harness.catalogue import published
from harness.catalogue.base import Cell, RecordsOf, Settings, Table, cell_of, impossible, row_name
from harness.catalogue.ppd_setup import (
    PAPER,
    PROBED,
    TASKS,
    data_notes,
    heads_of,
    layer_notes,
    layers_of,
    length_notes,
    match_arm,
    model_notes,
    paper_layers,
    remark,
)
from harness.catalogue.roles import Absent
from harness.experiment import Comparison, Experiment
from harness.match_rates import match_rate
from harness.pairing import Refused
from harness.records import Record
from harness.statistics import Estimate

Arm = tuple[Experiment, list[Record]]
TOTAL = "Total"
COLUMNS_A_LINE = 3


def column_of(layer: int) -> str:
    return f"layer {layer}"


def blocks_of(columns: list[str]) -> tuple[tuple[str, ...], ...]:
    """As many columns as a terminal's line holds."""
    return tuple(tuple(columns[start : start + COLUMNS_A_LINE]) for start in range(0, len(columns), COLUMNS_A_LINE))


def position_of(text: str) -> tuple[str, range | None]:
    """A bin as printed, "17-32" say, and the positions from 0 that it means; the total has no bounds."""
    if text == "total":
        return TOTAL, None
    first, last = map(int, text.split("-"))
    return text, range(first - 1, last)


def plan_of(*datasets: str) -> Callable[[Settings], list[Comparison]]:
    return lambda settings: [Comparison((match_arm(settings, dataset),)) for dataset in datasets]


def layer_cells(settings: Settings, records_of: RecordsOf) -> list[Cell]:
    """Table 2: all positions. A dataset's first cell has the remark on its texts."""
    arms = {dataset: (arm := match_arm(settings, dataset), records_of(arm)) for dataset in TASKS}
    remarks = {dataset: remark(*arm) for dataset, arm in arms.items()}
    cells = []
    for row in published.read(PAPER, "table_2"):
        dataset, column = row["dataset"], column_of(int(row["layer"]))
        name = row_name(dataset, row["k"], row["trained"])
        cells.append(_cell(settings, arms[dataset], row, name, column, None, remarks.pop(dataset, "")))
    return cells


def position_cells(table: str, settings: Settings, records_of: RecordsOf) -> list[Cell]:
    """Tables 6 to 8: one dataset each, by position. The first cell has the remark on its texts."""
    rows = published.read(PAPER, table)
    experiment = match_arm(settings, rows[0]["dataset"])
    arm = (experiment, records_of(experiment))
    note, cells = remark(*arm), []
    for row in rows:
        column, positions = position_of(row["token_position"])
        name = row_name(row["layer"], row["k"], row["trained"])
        cells.append(_cell(settings, arm, row, name, column, positions, note if row is rows[0] else ""))
    return cells


def _cell(settings: Settings, arm: Arm, row: published.Row, name: str, column: str, positions: range | None, note: str) -> Cell:
    rate, heads = published.value(row, "match_rate_pct"), heads_of(settings)
    if row["trained"] == "Y" and isinstance(heads, Absent):
        return impossible(name, column, rate, heads.why, "%")
    layer, k = layers_of(settings)[int(row["layer"])], int(row["k"])

    def estimate() -> Estimate | Refused | None:
        found = match_rate(arm[1], row["trained"], layer, k, positions)
        return Refused("no output reaches these positions") if found is None and positions is not None else found

    return cell_of(name, column, rate, [arm], estimate, unit="%", note=note)


def notes(settings: Settings) -> list[str]:
    return [
        "Percent of tokens that are among the k likeliest of a layer: by the model's own norm and head (trained: N), or by a "
        "head trained for that layer (Y). Tokens are pooled, intervals resample examples; n counts examples.",
        *length_notes(settings),
        f"Layer {paper_layers()[0]} is before the middle, where Theorem 4.1 does not hold (it needs d-bar >= d / 2): its match "
        f"rate says nothing of speed. The text of Section 4.3 names layers {published.claim(PAPER, 'layers probed')}; the "
        f"{published.claim(PAPER, 'layers probed', 'checked_value')}.",
        *layer_notes(settings, PROBED),
        *data_notes(settings),
        *model_notes(settings, [PROBED, "heads"]),
    ]


MATCH_RATES = Table(
    number=1,
    paper=PAPER,
    paper_number=2,
    title="match rate by task, k, layer and head",
    row_heads=("dataset", "k", "trained"),
    blocks=blocks_of([column_of(layer) for layer in paper_layers()]),
    plan=plan_of(*TASKS),
    cells=layer_cells,
    notes=notes,
)


def _by_position(number: int, paper_number: int, title: str) -> Table:
    name = f"table_{paper_number}"
    rows = published.read(PAPER, name)
    columns = dict.fromkeys(position_of(row["token_position"])[0] for row in rows)
    return Table(
        number=number,
        paper=PAPER,
        paper_number=paper_number,
        title=f"match rate by token position, {title}",
        row_heads=("layer", "k", "trained"),
        blocks=blocks_of(list(columns)),
        plan=plan_of(rows[0]["dataset"]),
        cells=lambda settings, records_of: position_cells(name, settings, records_of),
        notes=notes,
    )


BY_POSITION = [_by_position(4, 6, "SQuAD"), _by_position(5, 7, "WMT EN-FR"), _by_position(6, 8, "CNN/DM")]
