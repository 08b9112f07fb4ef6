"""Corpus BLEU from counts per sentence that add up.

Three kinds, all over sacrebleu's own counting, case-sensitive but for the second:
``sacrebleu``: its defaults (13a tokenisation, exponential smoothing), the number that papers since 2018 compare.
``sacrebleu_lc``: the same of lower-cased text, as sacrebleu's option -lc.
``bleu``: "tokenised BLEU" as the papers before and Leviathan and SpecDec print it: multi-bleu.perl over tokenised text, which
knows no smoothing. Differs from the paper: Moses is not available offline and its tokens cannot be recovered, so both sides
are tokenised with mteval-v14's international tokeniser, which cuts like Moses except that it also parts hyphens and
apostrophes. By how much the two differ was not measured here.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, Literal

import numpy as np

Kind = Literal["sacrebleu", "sacrebleu_lc", "bleu"]
ORDER = 4
SETTINGS: dict[Kind, dict[str, Any]] = {
    "sacrebleu": {"tokenize": "13a", "smooth_method": "exp"},
    "sacrebleu_lc": {"tokenize": "13a", "smooth_method": "exp", "lowercase": True},
    "bleu": {"tokenize": "intl", "smooth_method": "none"},
}


@cache
def _counter(kind: Kind) -> Any:
    """Make sacrebleu's counter. ``effective_order`` changes no count and silences a warning about single sentences."""
    from sacrebleu.metrics import BLEU

    return BLEU(**SETTINGS[kind], effective_order=True)


@cache
def signature(kind: Kind, num_references: int = 1) -> str:
    """Return sacrebleu's own signature of these settings."""
    from sacrebleu.metrics import BLEU

    metric = BLEU(**SETTINGS[kind])
    metric.corpus_score(["a"], [["a"]] * num_references)
    return str(metric.get_signature())


def bleu_counts(kind: Kind, prediction: str, references: Sequence[str]) -> list[float]:
    """Count [length, closest reference length, matches of order 1..4, n-grams of order 1..4] of one sentence."""
    score = _counter(kind).sentence_score(prediction, list(references))
    return [float(score.sys_len), float(score.ref_len), *map(float, score.counts), *map(float, score.totals)]


def bleu_from_sums(kind: Kind, sums: np.ndarray) -> np.ndarray:
    """Compute BLEU, 0 to 100 [...], from summed counts [..., 10] by sacrebleu's formula, for many corpora at once.

    Papineni et al. 2002 with smoothing "exp" (Chen and Cherry 2014, method 3) or none, at order 4.
    """
    length, reference_length = sums[..., 0], sums[..., 1]
    correct, total = sums[..., 2 : 2 + ORDER], sums[..., 2 + ORDER : 2 + 2 * ORDER]
    precision = correct / np.maximum(total, 1.0)
    if SETTINGS[kind]["smooth_method"] == "exp":
        missing = (correct == 0) & (total > 0)
        precision = np.where(missing, 0.5 ** np.cumsum(missing, axis=-1) / np.maximum(total, 1.0), precision)
    defined = (precision > 0).all(axis=-1) & (correct[..., 0] > 0)
    mean = np.exp(np.log(np.where(precision > 0, precision, 1.0)).mean(axis=-1))
    brevity = np.exp(np.minimum(0.0, 1.0 - reference_length / np.maximum(length, 1.0)))
    return np.where(defined, 100.0 * brevity * mean, 0.0)
