"""What the catalogue names and this version cannot make yet."""

from harness.catalogue.base import Planned

_TITLES = {
    "specdec": {
        12: (1, "translation quality and speed"),
        13: (2, "block size"),
        14: (3, "top-beta and tau"),
        15: (4, "big models, blockwise decoding"),
        16: (5, "size of the drafter"),
        17: (6, "summarization"),
        18: (8, "other language pairs"),
        19: (9, "token repetition ratio"),
        20: (10, "one teacher or three"),
        21: (11, "deep encoder, shallow decoder"),
        22: (12, "sacreBLEU and COMET"),
        23: (13, "BLEU and sacreBLEU"),
        24: (14, "peak memory, translation"),
        25: (15, "peak memory, CNN/DM"),
        26: (16, "latency and memory, translation"),
        27: (17, "latency and memory, CNN/DM"),
        28: (18, "profile by module"),
        29: (19, "worked examples"),
    },
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
    for paper, count in (("specdec", 5), ("optimized", 5))
    for number in range(1, count + 1)
}
