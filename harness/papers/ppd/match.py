"""PPD, Tables 2 and 5 to 8 (catalogue 1 and 3 to 6): how often an early layer's candidates hold the final token.

One greedy generation an example, and one forward pass over it, feed all but Table 5, where the final token is also sampled.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from harness.core.experiment import EarlyProbe, Experiment
from harness.core.settings import Settings
from harness.measures.pipelines import match_rate
from harness.measures.statistics import Missing, NotReached
from harness.papers.ppd.setup import (
    PAPER,
    PROBED,
    TASKS,
    data_notes,
    decoding,
    depth_of,
    heads_of,
    layer_notes,
    layers_of,
    length_notes,
    match_arm,
    model_notes,
    paper_layers,
    remark,
)
from harness.tables import published
from harness.tables.base import Table
from harness.tables.engine import Column, Known, Result, Row, Section, row_name, table
from harness.tables.finding import ONE_TRAINING, against, by_columns, by_head, order
from harness.tables.published import Published
from kernels.inputs import SamplingSpec
from methods.ppd.theory import PAPER_DEPTH, scaled_layer

TOTAL = "Total"
WHOLE = ("dataset", "k", "trained", "layer")  # what names a number over all positions
COLUMNS_A_LINE = 3


@dataclass(frozen=True)
class _Rates:
    """The published lines of a row by column, and the layers here that stand for theirs.

    ``remarked`` is the column in which a data set's first row has the remark on its texts; empty in other rows.
    """

    lines: Mapping[str, published.Row]
    layers: Mapping[str, int]
    remarked: str


def column_of(layer: int) -> str:
    return f"layer {layer}"


def blocks_of(columns: list[str]) -> tuple[tuple[str, ...], ...]:
    """Blocks of as many columns as a terminal's line holds."""
    return tuple(tuple(columns[start : start + COLUMNS_A_LINE]) for start in range(0, len(columns), COLUMNS_A_LINE))


def position_of(text: str) -> tuple[str, range | None]:
    """Read a bin as printed, "17-32" say: its name, and the positions from 0 that it means; the total has no bounds."""
    if text == "total":
        return TOTAL, None
    first, last = map(int, text.split("-"))
    return text, range(first - 1, last)


PARTS = {
    whole: lines for name in ("table_6", "table_7", "table_8") for whole, lines in published.groups(PAPER, name, *WHOLE).items()
}


def _column(title: str, positions: range | None = None) -> Column:
    return Column(
        title,
        partial(_rate, title, positions),
        "%",
        published=title,
        applies=lambda arm, row: title in row.key.lines,
        remark=lambda known, row: remark(*known[row.arm]) if row.key.remarked == title else "",
        parts=(lambda known, row: ()) if positions else partial(_parts, title),
    )


def _parts(title: str, known: Known, row: Row) -> Iterator[tuple[Result, Published]]:
    """The rate of each bin of positions that Tables 6 to 8 have of a total, and the paper's."""
    line, records, layer = row.key.lines[title], known[row.arm][1], row.key.layers[title]
    for part in PARTS.get(tuple(line[name] for name in WHOLE), ()):
        _, positions = position_of(part["token_position"])
        if positions:
            found = match_rate(records, part["trained"], layer, int(part["k"]), positions)
            yield found, published.value(part, "match_rate_pct")


def _rate(title: str, positions: range | None, known: Known, row: Row) -> Result:
    line, records = row.key.lines[title], known[row.arm][1]
    found = match_rate(records, line["trained"], row.key.layers[title], int(line["k"]), positions)
    return NotReached("no output is so long; nothing failed") if found is None and positions is not None else found


def _printed(key: _Rates, title: str) -> Published:
    return published.value(key.lines[title], "match_rate_pct")


def _section(
    settings: Settings,
    dataset: str,
    lines: Sequence[published.Row],
    heads: tuple[str, ...],
    title_of: Callable[[published.Row], str],
) -> Section:
    """A data set's rows, named by the published columns ``heads``; trained heads may be absent."""
    arm, layers, trained = match_arm(settings, dataset), layers_of(settings), heads_of(settings)
    arms: dict[str, Experiment | Missing] = {"N": arm, "Y": trained if isinstance(trained, Missing) else arm}
    groups: dict[str, dict[str, published.Row]] = {}
    for line in lines:
        groups.setdefault(row_name(*(line[head] for head in heads)), {})[title_of(line)] = line
    rows: list[Row] = []
    for name, group in groups.items():
        here = {title: layers[int(line["layer"])] for title, line in group.items()}
        key = _Rates(group, here, "" if rows else next(iter(group)))
        rows.append(Row(name, next(iter(group.values()))["trained"], key))
    return Section(arms, tuple(rows))


def _by_layer_sections(settings: Settings) -> list[Section]:
    """Table 2: all positions, a column a layer."""
    groups, heads = published.groups(PAPER, "table_2", "dataset"), ("dataset", "k", "trained")
    return [_section(settings, name, groups[name,], heads, lambda line: column_of(int(line["layer"]))) for name in TASKS]


def _by_position_sections(name: str, settings: Settings) -> list[Section]:
    """Tables 6 to 8: one data set each, a column a bin of positions."""
    lines, heads = published.read(PAPER, name), ("layer", "k", "trained")
    return [_section(settings, lines[0]["dataset"], lines, heads, lambda line: position_of(line["token_position"])[0])]


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


WITH_HEADS = order(
    by_head(None, 2, "Y", "N", apart=TOTAL),  # the total is of the same tokens as its positions
    "the match rate",
    "with a trained head",
    f"with the model's own {ONE_TRAINING}",
    "pairs of numbers",
    beside=False,
)
LAYER_COLUMNS = [_column(column_of(layer)) for layer in paper_layers()]
MATCH_RATES = table(
    number=1,
    paper=PAPER,
    paper_number=2,
    title="match rate by task, k, layer and head",
    row_heads=("dataset", "k", "trained"),
    columns=LAYER_COLUMNS,
    blocks=blocks_of([column.title for column in LAYER_COLUMNS]),
    sections=_by_layer_sections,
    published=_printed,
    first_notes=notes,
    findings=(
        WITH_HEADS,
        against("the match rate"),
    ),
)


def _by_position(number: int, paper_number: int, title: str) -> Table:
    name = f"table_{paper_number}"
    bins = dict(position_of(line["token_position"]) for line in published.read(PAPER, name))
    first, second, *_ = bins  # outputs that end at EOS seldom reach the last
    return table(
        number=number,
        paper=PAPER,
        paper_number=paper_number,
        title=f"match rate by token position, {title}",
        row_heads=("layer", "k", "trained"),
        columns=[_column(bin_name, positions) for bin_name, positions in bins.items()],
        findings=(
            order(
                by_columns(second, first),
                "the match rate",
                f"at tokens {second}",
                f"at {first}",
                "rows",
                beside=False,  # of ours many late tokens are EOS, of the paper's none is
            ),
            WITH_HEADS,
        ),
        blocks=blocks_of(list(bins)),
        sections=partial(_by_position_sections, name),
        published=_printed,
        first_notes=notes,
    )


BY_POSITION = [_by_position(4, 6, "SQuAD"), _by_position(5, 7, "WMT EN-FR"), _by_position(6, 8, "CNN/DM")]


# Table 5

SAMPLED = "llama-2-13b"  # the model of Table 5
DECODINGS = {"greedy": "Greedy", "top_k": "Top-k sampling", "top_p": "Top-p sampling"}


def sampling_of(row: published.Row) -> SamplingSpec:
    """The sampling of the final token. The paper names no temperature; 1 is taken."""
    if row["final_sampling"] == "greedy":
        return SamplingSpec()
    name, _, value = row["sampling_param"].partition("=")
    return SamplingSpec(temperature=1.0, top_k=int(value)) if name == "k" else SamplingSpec(temperature=1.0, top_p=float(value))


def row_label(row: published.Row) -> str:
    return " ".join(filter(None, (DECODINGS[row["final_sampling"]], row["sampling_param"].replace("=", " = "))))


def middle(settings: Settings) -> int:
    return scaled_layer(PAPER_DEPTH // 2, depth_of(settings, SAMPLED))


def sampled_arm(settings: Settings, row: published.Row) -> Experiment:
    """Decoding of as many examples as the paper's, with the rank of every token at the middle layer."""
    known = 4 if settings.profile == "test" else int(row["n_examples"])
    arm = decoding(settings, row["dataset"], SAMPLED, sampling_of(row), settings.limit or known)
    return arm.replace(probes=(EarlyProbe(layers=(middle(settings),)),))


def _sampled_sections(settings: Settings) -> list[Section]:
    """An arm a cell: a way to choose the final token, and a data set."""
    lines = published.read(PAPER, "table_5")
    return [
        Section(
            {"decoding": sampled_arm(settings, line)},
            (Row(row_label(line), "decoding", line),),
            (_sampled_column(settings, line["dataset"]),),
        )
        for line in lines
    ]


def _sampled_column(settings: Settings, dataset: str) -> Column:
    def rate(known: Known, row: Row) -> Result:
        return match_rate(known["decoding"][1], row.key["trained"], middle(settings), int(row.key["early_top_k_hat"]))

    return Column(dataset, rate, "%", published="match_rate_pct", remark=lambda known, row: remark(*known["decoding"]))


def _sampled_notes(settings: Settings) -> list[str]:
    rows = published.read(PAPER, "table_5")
    k_hat, head, names = rows[0]["early_top_k_hat"], rows[0]["trained"], {row["dataset"] for row in rows}
    like = {"k": k_hat, "trained": head, "layer": str(PAPER_DEPTH // 2)}
    vicuna = [row for row in published.read(PAPER, "table_2") if row["dataset"] in names and like.items() <= row.items()]
    near = ", ".join(f"{row['dataset']} {row['match_rate_pct']} %" for row in vicuna)
    return [
        f"Percent of emitted tokens, however drawn, that are among the {k_hat} likeliest of an early layer by the model's own "
        "norm and head. Tokens are pooled, intervals resample examples; n counts examples.",
        f"The paper prints no layer here. Taken is the middle one, as in its Algorithm 1 (layer {middle(settings)} of "
        f"{depth_of(settings, SAMPLED)}); Table 2's rates at that depth are the nearest to the greedy row ({near}). Nor does "
        "it print the temperature of sampling, taken as 1, or the length of the outputs, taken from its Table 1.",
        *length_notes(settings),
        *model_notes(settings, [SAMPLED]),
    ]


SAMPLING = table(
    number=3,
    paper=PAPER,
    paper_number=5,
    title="match rate where the final token is sampled",
    row_heads=("final token",),
    columns=[Column(name) for name in dict.fromkeys(line["dataset"] for line in published.read(PAPER, "table_5"))],
    sections=_sampled_sections,
    first_notes=_sampled_notes,
    findings=(
        order(
            by_head(None, 0, "Greedy", "Top-p sampling p = 0.95"),
            "the match rate",
            "for greedy tokens",
            "for tokens drawn with top-p",
            "data sets",
        ),
        against("the match rate"),
    ),
)
