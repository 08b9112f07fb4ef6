"""Claims of the Optimized speculative sampling paper against its tables and its Equation 5."""

from collections.abc import Sequence

from harness.papers.claim import Claim, Line, against, rounding, yes
from harness.tables.published import claim, read

PAPER = "optimized"
REDUCTION, STEP = "profiling_time_reduction_pct", "avg_ms_per_step"
SUMMARIES = ("CNN/DM", "XSum")

RANGES = (
    ("exact: profiling-time reduction", "exact", None),
    ("sigmoid: all tasks", "sigmoid", None),
    ("exact ASR", "exact", False),
    ("sigmoid ASR", "sigmoid", False),
    ("exact summarization", "exact", True),
    ("sigmoid summarization max", "sigmoid", True),
)


def _values(table: str, metric: str) -> dict[tuple[str, ...], str]:
    rows = (row for row in read(PAPER, table) if row["metric"] == metric)
    return {(row["dataset"], row["subset"], row["target"], row["draft"], row["method"]): row["value"] for row in rows}


def _label(key: Sequence[str]) -> str:
    dataset, subset, target, _, method = key
    return f"{dataset}{' ' + subset if subset else ''}, {target}, {method}"


def ranges() -> Claim:
    found = _values("table_1", REDUCTION)
    lines = []
    for name, method, summarizes in RANGES:
        values = [float(v) for k, v in found.items() if k[4] == method and summarizes in (None, k[0] in SUMMARIES)]
        said = claim(PAPER, name)
        ends = said.split("-")
        computed = (min(values), max(values))[-len(ends) :]
        verdicts = [against(end, value) for end, value in zip(ends, computed, strict=True)]
        shown = " to ".join(f"{value:g}" for value in computed)
        what = f"{'least and greatest' if len(ends) > 1 else 'greatest'} of {len(values)} reductions in Table 1"
        lines.append(Line(name, f"{said} %", f"{shown} %", what, yes(all(verdict == "holds" for verdict in verdicts))))
    return Claim(
        title="The ranges named in the text",
        statement="The text sums up the reductions of profiled time in Table 1.",
        formula="least and greatest entry of Table 1",
        lines=tuple(lines),
        tables=(30,),
        sources=("text_claims.csv", "table_1.csv"),
    )


def percentages() -> Claim:
    reductions, steps = _values("table_4", REDUCTION), _values("table_4", STEP)
    lines = []
    for key, printed in reductions.items():
        base, mine = steps[(*key[:4], "baseline")], steps[key]
        value = 100 * (1 - float(mine) / float(base))
        (low, high), (base_low, base_high) = rounding(mine), rounding(base)
        verdict = against(printed, value, 100 * (1 - high / base_low), 100 * (1 - low / base_high))
        lines.append(Line(_label(key), f"{printed} %", f"{value:.2f} %", f"100 x (1 - {mine} / {base}) = {value:.2f}", verdict))
    return Claim(
        title="Table 4's percentages follow from its means",
        statement="Table 4 prints times per step and their reductions.",
        formula="reduction = 1 - time per step / the baseline's",
        lines=tuple(lines),
        tables=(33,),
        sources=("table_4.csv",),
    )


CLAIMS = (ranges, percentages)
