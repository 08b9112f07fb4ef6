"""PPD, Table 5 (catalogue 3): the match rate where the final token is drawn by greedy, top-k and top-p decoding."""

from harness.catalogue import published
from harness.catalogue.base import Cell, RecordsOf, Settings, Table, cell_of
from harness.catalogue.ppd_setup import (
    LIMITS,
    PAPER,
    decoding,
    depth_of,
    length_notes,
    model_notes,
    remark,
)
from harness.experiment import Comparison, EarlySpec, Experiment
from harness.match_rates import match_rate
from harness.statistics import Estimate
from methods.ppd.match_rate import PAPER_DEPTH, scaled_layer
from methods.sampling import Sampling

ROLE = "llama-2-13b"
NAMES = {"greedy": "Greedy", "top_k": "Top-k sampling", "top_p": "Top-p sampling"}


def sampling_of(row: published.Row) -> Sampling:
    """How the final token is chosen; the paper names no temperature, 1 is taken."""
    if row["final_sampling"] == "greedy":
        return Sampling()
    name, _, value = row["sampling_param"].partition("=")
    return Sampling(temperature=1.0, top_k=int(value)) if name == "k" else Sampling(temperature=1.0, top_p=float(value))


def row_label(row: published.Row) -> str:
    return " ".join(filter(None, (NAMES[row["final_sampling"]], row["sampling_param"].replace("=", " = "))))


def middle(settings: Settings) -> int:
    return scaled_layer(PAPER_DEPTH // 2, depth_of(settings, ROLE))


def arm_of(settings: Settings, row: published.Row) -> Experiment:
    """Decoding of as many examples as the paper's, with the rank of every token at the middle layer."""
    known = LIMITS["test"][row["dataset"]] if settings.profile == "test" else int(row["n_examples"])
    arm = decoding(settings, row["dataset"], ROLE, sampling_of(row), settings.limit or known)
    return arm.replace(early=(EarlySpec(layers=(middle(settings),)),))


def plan(settings: Settings) -> list[Comparison]:
    return [Comparison((arm_of(settings, row),)) for row in published.read(PAPER, "table_5")]


def cells(settings: Settings, records_of: RecordsOf) -> list[Cell]:
    return [_cell(settings, records_of, row) for row in published.read(PAPER, "table_5")]


def _cell(settings: Settings, records_of: RecordsOf, row: published.Row) -> Cell:
    arm = arm_of(settings, row)
    records, rate = records_of(arm), published.value(row, "match_rate_pct")

    def estimate() -> Estimate | None:
        return match_rate(records, row["trained"], middle(settings), int(row["early_top_k_hat"]))

    return cell_of(row_label(row), row["dataset"], rate, [(arm, records)], estimate, unit="%", note=remark(arm, records))


def notes(settings: Settings) -> list[str]:
    rows = published.read(PAPER, "table_5")
    k_hat, head, names = rows[0]["early_top_k_hat"], rows[0]["trained"], {row["dataset"] for row in rows}
    like = {"k": k_hat, "trained": head, "layer": str(PAPER_DEPTH // 2)}
    vicuna = [row for row in published.read(PAPER, "table_2") if row["dataset"] in names and like.items() <= row.items()]
    near = ", ".join(f"{row['dataset']} {row['match_rate_pct']} %" for row in vicuna)
    return [
        f"Percent of emitted tokens, however drawn, that are among the {k_hat} likeliest of an early layer by the model's own "
        "norm and head. Tokens are pooled, intervals resample examples; n counts examples.",
        f"The paper prints no layer here. Taken is the middle one, as in its Algorithm 1 (layer {middle(settings)} of "
        f"{depth_of(settings, ROLE)}); Table 2's rates at that depth are the nearest to the greedy row ({near}). Nor does it "
        "print the temperature of sampling, taken as 1, or the length of the outputs, taken from its Table 1.",
        *length_notes(settings),
        *model_notes(settings, [ROLE]),
    ]


SAMPLING = Table(
    number=3,
    paper=PAPER,
    paper_number=5,
    title="match rate where the final token is sampled",
    row_heads=("final token",),
    blocks=(tuple(dict.fromkeys(row["dataset"] for row in published.read(PAPER, "table_5"))),),
    plan=plan,
    cells=cells,
    notes=notes,
)
