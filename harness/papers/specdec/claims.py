"""Claims of the SpecDec paper against its own text and its formula of the bifurcation."""

import re

from harness.papers.claim import Claim, Line, against
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


CLAIMS = (headline, memory)
