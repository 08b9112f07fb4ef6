"""Claims of the SpecDec paper against its own text and its formula of the bifurcation."""

import re

from harness.papers.claim import Claim, Line, against, yes
from harness.tables.published import Row, read

PAPER = "specdec"
MIB = 2**20


def _text(model: str, setting: str) -> Row:
    return next(row for row in read(PAPER, "text_claims") if row["model"] == model and row["setting"].startswith(setting))


def headline() -> Claim:
    abstract = _text("SpecDec++", "abstract")["value"].lstrip("~")
    given = [row for row in read(PAPER, "text_claims") if row["setting"] == "WMT14 EN-DE base"]
    best = max(given, key=lambda row: float(row["value"]))
    return Claim(
        title="The speed-up in the abstract",
        statement=f"The abstract says around {abstract} times; the text gives {best['value']} for the fastest variant.",
        formula="the greatest speed-up that the text gives for WMT14 EN-DE, base",
        lines=(
            Line(best["model"], f"around {abstract}", best["value"], f"{best['value']} of {abstract} = "
                 f"{float(best['value']) / float(abstract):.0%}", against(abstract, float(best["value"]))),
        ),
        tables=(12,),
        sources=("text_claims.csv",),
    )  # fmt: skip


def memory() -> Claim:
    row = _text("intermediate memory example", "")
    sizes = {name: int(value) for name, value in re.findall(r"(\w)=(\d+)", row["setting"])}
    lines = []
    for printed, dtype in re.findall(r"(\d+) fp(\d+)", row["value"]):
        size = sizes["B"] * sizes["S"] * sizes["d"] * int(dtype) // 8
        arithmetic = f"{sizes['B']} x {sizes['S']} x {sizes['d']} x {int(dtype) // 8} bytes = {size} bytes = {size / MIB:g} MiB"
        lines.append(Line(f"fp{dtype}", f"{printed} MB", f"{size / MIB:g} MiB", arithmetic, against(printed, size / MIB)))
    return Claim(
        title="Memory of an intermediate result",
        statement=f"The text's example: {row['setting']} takes {row['value']} MB.",
        formula="B x S x d x bytes a number",
        lines=tuple(lines),
        tables=(24, 25),
        sources=("text_claims.csv",),
    )


def bifurcation() -> Claim:
    """The formula must have its maximum at one place, wherever the first mismatch of a block is, or if there is none."""
    size, lines = 5, []
    for first in (1, 3, size, None):
        wrong = [first is not None and position >= first for position in range(1, size + 1)]
        scores = [float(miss) / position for position, miss in enumerate(wrong, start=1)]
        places = [position for position, score in enumerate(scores, start=1) if score == max(scores)]
        found = "c = " + " or ".join(map(str, places))
        label = f"first mismatch at {first}" if first else "the whole block agrees"
        printed = f"c = {first}" if first else "one c"
        arithmetic = "values " + ", ".join(f"{score:.2f}" for score in scores)
        lines.append(Line(label, printed, found, arithmetic, yes(len(places) == 1 and places[0] == (first or places[0]))))
    return Claim(
        title="Where a block bifurcates",
        statement="The bifurcation is the first position where draft and verifier differ, and c tokens are accepted, at most "
        "k. Where all agree the formula names no position; the authors' code then accepts k + 1.",
        formula=f"c = argmax over i of 1(draft_i differs from the verifier's token) / i, here with k = {size}",
        lines=tuple(lines),
        tables=(12, 13, 29),
    )


CLAIMS = (bifurcation, headline, memory)
