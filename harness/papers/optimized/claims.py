"""Claims of the Optimized speculative sampling paper against its tables and its Equation 5."""

import math
from collections.abc import Sequence

from harness.papers.claim import Claim, Line, against, rounding, yes
from harness.tables.published import Row, claim, read

PAPER = "optimized"
REDUCTION, STEP = "profiling_time_reduction_pct", "avg_ms_per_step"
SUMMARIES = ("CNN/DM", "XSum")
SAME_CALLS = 0.02
LARGEST_LOGIT = 30.0

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


def calls() -> Claim:
    """Total time is calls times time per call, so the two tables give the number of calls."""
    totals, steps = _values("table_1", REDUCTION), _values("table_4", STEP)
    lines = []
    for key, reduction in totals.items():
        base = steps.get((*key[:4], "baseline"))
        if base is None or key not in steps:
            continue
        total, step = 1 - float(reduction) / 100, float(steps[key]) / float(base)
        ratio = total / step
        arithmetic = f"(1 - {float(reduction) / 100:.3f}) / ({steps[key]} / {base}) = {total:.3f} / {step:.3f} = {ratio:.3f}"
        lines.append(Line(_label(key), "1", f"{ratio:.3f}", arithmetic, yes(abs(ratio - 1) <= SAME_CALLS)))
    return Claim(
        title="Faster calls, or fewer of them",
        statement="Table 1 has the total time in the sampling function, Table 4 its time per step. If a method makes calls "
        f"faster and decodes the same way, both fall by the same factor and the calls stay (within {SAME_CALLS:.0%}).",
        formula="calls = (total time, Table 1) / (time per step, Table 4), all as fractions of the baseline's",
        lines=tuple(sorted(lines, key=lambda line: line.label.rsplit(", ", 1)[1])),
        tables=(30, 33),
        sources=("table_1.csv", "table_4.csv"),
    )


def sigmoid_floor() -> Claim:
    """The least acceptance that Equation 5 can give any pair of logits of usual size."""
    lines = []
    for low, high in dict.fromkeys((row["alpha_scale"], row["beta_scale"]) for row in read(PAPER, "table_5")):
        if not low:
            continue
        least, most = float(low), float(high)
        ends = [1 / (1 + math.exp(-(logit - least) / (most - least))) for logit in (-LARGEST_LOGIT, LARGEST_LOGIT)]
        floor = ends[0] / ends[1]
        lines.append(
            Line(
                f"scales {low}, {high}",
                "depends on the models",
                f"at least {floor:.3f}",
                f"sigma(({-LARGEST_LOGIT:g} - {least:g}) / {most - least:g}) / sigma(({LARGEST_LOGIT:g} - {least:g}) / "
                f"{most - least:g}) = {ends[0]:.4f} / {ends[1]:.4f} = {floor:.4f}",
                yes(floor < 0.9),
            )
        )
    return Claim(
        title="What the sigmoid can still reject",
        statement="A draft is kept with the ratio of two sigmoids. Whatever the two models say of a token, between logits of "
        f"-{LARGEST_LOGIT:g} and {LARGEST_LOGIT:g}, the ratio cannot be lower than this; at 0.9 or more nearly all is kept. "
        "(The scales of the rows are unconfirmed: see the source.)",
        formula="Equation 5: sigma((z_p - alpha) / (beta - alpha)) / sigma((z_q - alpha) / (beta - alpha))",
        lines=tuple(lines),
        tables=(31, 34),
        sources=("table_5.csv",),
    )


def which_scale() -> Claim:
    """Table 1's row is one of Table 5's, of the same pair and data."""
    place = ("CV16", "en", "Large V2")
    rows = [row for row in read(PAPER, "table_1") if (row["dataset"], row["subset"], row["target"]) == place]
    found = {row["metric"]: row["value"] for row in rows if row["method"] == "sigmoid"}
    wer, reduction = found["WER"], found[REDUCTION]
    said = claim(PAPER, "alpha,beta ASR")
    lines = []
    for row in (r for r in read(PAPER, "table_5") if r["target"] == "Whisper Large V2" and r["row_kind"] == "scaled"):
        lines.append(_scale_line(row, wer, reduction, said))
    return Claim(
        title="The scale behind Table 1's Large V2 on Common Voice",
        statement=f"The text gives {said} for speech (unconfirmed). Table 1 has WER {wer} and {reduction} % less time.",
        formula="the row of Table 5 with the same numbers is the scale that was used",
        lines=tuple(lines),
        tables=(30, 34),
        sources=("text_claims.csv", "table_1.csv", "table_5.csv"),
    )


def _scale_line(row: Row, wer: str, reduction: str, said: str) -> Line:
    equal = row["value"] == wer and abs(float(row["profiling_time_reduction_pct"]) - float(reduction)) <= 0.1 + 1e-9
    named = [float(end) for end in said.split(",")] == [float(row["alpha_scale"]), float(row["beta_scale"])]
    return Line(
        f"scales {row['alpha_scale']}, {row['beta_scale']}",
        "named in the text" if named else "not named",
        f"WER {row['value']}, {row['profiling_time_reduction_pct']} %",
        f"{'the same as' if equal else 'not'} WER {wer}, {reduction} %",
        yes(equal == named),
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


CLAIMS = (calls, ranges, sigmoid_floor, which_scale, percentages)
