"""Claims of the PPD paper against its Equations 3 and 5, Theorem 4.1 and its own tables."""

from collections import defaultdict
from statistics import mean

from harness.papers.claim import Claim, Line, against, line_of, yes
from harness.tables.published import Row, claim, read
from methods.ppd import theory
from methods.ppd.theory import PAPER_DEPTH

PAPER = "ppd"
HALF = str(PAPER_DEPTH // 2)
POSITIONS = {"table_6": 4, "table_7": 5, "table_8": 6}


def _rate(row: Row) -> float:
    return float(row["match_rate_pct"]) / 100


def _key(row: Row) -> tuple[str, ...]:
    return row["dataset"], row["layer"], row["k"], row["trained"]


def _half_depth() -> list[Row]:
    return [row for row in read(PAPER, "table_2") if row["layer"] == HALF]


def caption() -> Claim:
    row = next(row for row in _half_depth() if (row["dataset"], row["trained"], row["k"]) == ("SQUAD", "Y", "3"))
    rate = _rate(row)
    saved = 100 * (1 - float(theory.half_depth_latency_per_token(rate)))
    busy = float(theory.half_depth_compute_per_time_unit(rate, 3))
    reduction, compute = (claim(PAPER, f"Fig 3 caption: SQUAD tr k=3 {what}") for what in ("latency", "compute"))
    return Claim(
        title="The caption of Figure 3",
        statement=f"SQuAD, trained head, k = 3: {reduction} % less latency at {compute} times the compute.",
        formula="Equation 3: latency = 1 - p/2; Equation 5: compute = (k + 2 - p) / (2 - p)",
        lines=(
            Line("latency reduction", f"{reduction} %", f"{saved:.1f} %", f"100 x {rate:.4f} / 2 = {saved:.2f}",
                 against(reduction, saved)),
            line_of("compute factor", compute, busy, f"(3 + 2 - {rate:.4f}) / (2 - {rate:.4f}) = {busy:.3f}"),
        ),
        tables=(1,),
        sources=("text_claims.csv", "table_2.csv"),
    )  # fmt: skip


def extremes() -> Claim:
    rows = _half_depth()
    latency = [float(theory.half_depth_latency_per_token(_rate(row))) for row in rows]
    compute = [float(theory.half_depth_compute_per_time_unit(_rate(row), int(row["k"]))) for row in rows]
    asked = (
        ("min normalized latency", min(latency), "1 - p/2 at the greatest p"),
        ("max normalized latency", max(latency), "1 - p/2 at the least p"),
        ("min compute factor", min(compute), "(k + 2 - p) / (2 - p), least of all rows"),
        ("max compute factor", max(compute), "(k + 2 - p) / (2 - p), greatest of all rows"),
    )
    lines = [
        Line(name, claim(PAPER, name), f"{value:.4f}", f"{how} of Table 2 at layer {HALF}", against(claim(PAPER, name), value))
        for name, value, how in asked
    ]
    return Claim(
        title="The range of latency and compute",
        statement="The text names the least and greatest latency and compute of Figure 3.",
        formula="Equations 3 and 5 at the match rates of Table 2",
        lines=tuple(lines),
        tables=(1,),
        sources=("text_claims.csv", "table_2.csv"),
    )


def layers() -> Claim:
    said = claim(PAPER, "layers probed")
    probed = sorted({int(row["layer"]) for row in read(PAPER, "table_2")})
    named = [int(layer) for layer in said.split(",")]
    lines = [
        Line(
            f"layer {layer}",
            "named in the text" if layer in named else "not named",
            "in the tables" if layer in probed else "not in the tables",
            f"text: {said}; Table 2: {', '.join(map(str, probed))}",
            yes(layer in named and layer in probed),
        )
        for layer in sorted({*named, *probed})
    ]
    return Claim(
        title="Which layers were probed",
        statement=f"Section 4.3 names layers {said}.",
        formula="the layers of Table 2",
        lines=tuple(lines),
        tables=(1, 4, 5, 6),
        sources=("text_claims.csv", "table_2.csv"),
    )


def throughput() -> Claim:
    lines = []
    for row in read(PAPER, "table_3"):
        tokens, seconds = int(row["tokens_generated"]), float(row["latency_s"])
        value, printed = tokens / seconds, row["throughput_tok_per_s"]
        low, high = tokens / (seconds + 0.0005), tokens / (seconds - 0.0005)
        label = f"{row['dataset']}, {row['method']}{', k = ' + row['k'] if row['k'] else ''}"
        lines.append(line_of(label, printed, value, f"{tokens} / {seconds} = {value:.4f}", low, high))
    return Claim(
        title="Throughput is tokens over latency",
        statement="Table 3 prints both.",
        formula="throughput = generated tokens / latency",
        lines=tuple(lines),
        tables=(2,),
        sources=("table_3.csv",),
    )


def totals() -> Claim:
    whole = {_key(row): float(row["match_rate_pct"]) for row in read(PAPER, "table_2")}
    lines = []
    for name in POSITIONS:
        groups: dict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
        for row in read(PAPER, name):
            groups[_key(row)][row["token_position"]] = float(row["match_rate_pct"])
        equal = sum(abs(bins["total"] - whole[key]) < 5e-3 for key, bins in groups.items())
        worst = max(abs(bins["total"] - mean(v for k, v in bins.items() if k != "total")) for bins in groups.values())
        number = name.removeprefix("table_")
        lines += [
            Line(f"Table {number}: totals", f"{len(groups)} totals", f"{equal} equal Table 2's", "Total - Table 2 = 0.00",
                 yes(equal == len(groups))),
            Line(f"Table {number}: means", f"{len(groups)} totals", f"within {worst:.3f} points",
                 "greatest |Total - mean of the printed positions|", yes(worst <= 0.01 + 1e-9)),
        ]  # fmt: skip
    return Claim(
        title="Match rates by position add up",
        statement='Row "Total" of Tables 6 to 8 is Table 2\'s number, and the mean of the positions.',
        formula="Total = Table 2 = mean over positions",
        lines=tuple(lines),
        tables=(1, 4, 5, 6),
        sources=("table_2.csv", *(f"{name}.csv" for name in POSITIONS)),
    )


CLAIMS = (caption, layers, extremes, throughput, totals)
