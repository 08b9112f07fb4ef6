"""SpecDec (Xia et al.): setups, tables, figures, worked examples, claims."""

from harness.papers.specdec.claims import CLAIMS
from harness.papers.specdec.cost import COST_TABLES
from harness.papers.specdec.figures import BATCHES, DISTRIBUTION, QUALITY
from harness.papers.specdec.profile import PROFILE
from harness.papers.specdec.quality import QUALITY_TABLES
from harness.papers.specdec.rounds import ITERATION, RELAXED_ITERATION
from harness.papers.specdec.setup import TITLE
from harness.papers.specdec.traces import TRACES
from harness.tables.published import InputTable

__all__ = ["CLAIMS", "FIGURES", "INPUTS", "SHORT", "TABLES", "TITLE"]

SHORT = "SpecDec"
FIGURES = (ITERATION, QUALITY, RELAXED_ITERATION, DISTRIBUTION, BATCHES)
TABLES = (*QUALITY_TABLES, *COST_TABLES, PROFILE, TRACES)
INPUTS = (
    InputTable(
        paper="specdec",
        paper_number=7,
        title="training of drafter and verifier (the defaults of the zoo's recipes, where they are known)",
        label="metric",
        value="value",
        details=("model", "setting"),
    ),
)
