"""A booktabs table that stands on its own in a document that loads booktabs."""

from harness.catalogue.base import Cell, Table
from harness.render.layout import Grid, grids
from harness.render.text import title

_ESCAPES = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}


def escape(text: str) -> str:
    return "".join(_ESCAPES.get(character, character) for character in text)


def latex_table(table: Table, cells: list[Cell]) -> str:
    """Row heads left, numbers right, a tabular a block; footnotes follow."""
    blocks = grids(table, cells)
    tabulars = [line for block in blocks for line in (*_tabular(block), r"\par\medskip")][:-1]
    footnotes = [f"{{\\footnotesize ({i}) {escape(text)}\\par}}" for i, text in enumerate(blocks[0].footnotes, start=1)]
    return "\n".join(
        [
            r"% \usepackage{booktabs}",
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{escape(title(table))}}}",
            *tabulars,
            *([r"\par\medskip", *footnotes] if footnotes else []),
            r"\end{table}",
            "",
        ]
    )


def _tabular(block: Grid) -> list[str]:
    shape = "l" * block.num_row_heads + "r" * (len(block.heads) - block.num_row_heads)

    def line(row: list[str]) -> str:
        return " & ".join(map(escape, row)) + r" \\"

    rows = [line(row) for row in block.rows]
    return [
        rf"\begin{{tabular}}{{{shape}}}",
        r"\toprule",
        line(block.heads),
        r"\midrule",
        *rows,
        r"\bottomrule",
        r"\end{tabular}",
    ]
