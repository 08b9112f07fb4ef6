"""What the catalogue names and this version cannot make yet."""

from harness.catalogue.base import Planned

_TITLES = {
    "optimized": {
        30: (1, "WER / ROUGE-1 and profiled time"),
        31: (2, "scaling of the logits"),
        32: (3, "wall-clock"),
        33: (4, "time per step"),
        34: (5, "scaling, all pairs"),
    },
}

PLANNED = [
    Planned(number=number, paper=paper, paper_number=paper_number, title=title)
    for paper, tables in _TITLES.items()
    for number, (paper_number, title) in tables.items()
]
PLANNED_FIGURES = {
    f"{paper}-{number}": "not implemented in this version"
    for paper, count in (("optimized", 5),)
    for number in range(1, count + 1)
}
