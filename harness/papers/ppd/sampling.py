"""PPD, Table 5 (catalogue 3): the match rate where the final token is drawn by greedy, top-k and top-p decoding."""

from harness.core.experiment import EarlyProbe, Experiment
from harness.core.settings import Settings
from harness.measures.pipelines import match_rate
from harness.papers.ppd.setup import PAPER, decoding, depth_of, length_notes, model_notes, remark
from harness.tables import published
from harness.tables.engine import Column, Known, Result, Row, Section, table
from kernels.inputs import SamplingSpec
from methods.ppd.theory import PAPER_DEPTH, scaled_layer

ROLE = "llama-2-13b"
NAME = "decoding"  # of the one arm of a section
NAMES = {"greedy": "Greedy", "top_k": "Top-k sampling", "top_p": "Top-p sampling"}


def sampling_of(row: published.Row) -> SamplingSpec:
    """The sampling of the final token. The paper names no temperature; 1 is taken."""
    if row["final_sampling"] == "greedy":
        return SamplingSpec()
    name, _, value = row["sampling_param"].partition("=")
    return SamplingSpec(temperature=1.0, top_k=int(value)) if name == "k" else SamplingSpec(temperature=1.0, top_p=float(value))


def row_label(row: published.Row) -> str:
    return " ".join(filter(None, (NAMES[row["final_sampling"]], row["sampling_param"].replace("=", " = "))))


def middle(settings: Settings) -> int:
    return scaled_layer(PAPER_DEPTH // 2, depth_of(settings, ROLE))


def arm_of(settings: Settings, row: published.Row) -> Experiment:
    """Decoding of as many examples as the paper's, with the rank of every token at the middle layer."""
    known = 4 if settings.profile == "test" else int(row["n_examples"])
    arm = decoding(settings, row["dataset"], ROLE, sampling_of(row), settings.limit or known)
    return arm.replace(probes=(EarlyProbe(layers=(middle(settings),)),))


def sections(settings: Settings) -> list[Section]:
    """An arm a cell: a way to choose the final token, and a data set."""
    lines = published.read(PAPER, "table_5")
    return [
        Section({NAME: arm_of(settings, line)}, (Row(row_label(line), NAME, line),), (_column(settings, line["dataset"]),))
        for line in lines
    ]


def _column(settings: Settings, dataset: str) -> Column:
    def rate(known: Known, row: Row) -> Result:
        return match_rate(known[NAME][1], row.key["trained"], middle(settings), int(row.key["early_top_k_hat"]))

    return Column(dataset, rate, "%", published="match_rate_pct", remark=lambda known, row: remark(*known[NAME]))


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


SAMPLING = table(
    number=3,
    paper=PAPER,
    paper_number=5,
    title="match rate where the final token is sampled",
    row_heads=("final token",),
    columns=[Column(name) for name in dict.fromkeys(line["dataset"] for line in published.read(PAPER, "table_5"))],
    sections=sections,
    first_notes=notes,
)
