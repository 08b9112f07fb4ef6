"""What is compared of two runs' outputs: first tokens, all tokens, neighbours, lengths and repetition."""

import re
from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import pairwise

import numpy as np

from harness.exact.captured.capture import Output
from harness.exact.captured.two_samples import Feature

CELLS = 256  # the most frequent kinds that are counted apart; others are one cell
_WORDS = re.compile(r"\w+|[^\w\s]")
Said = Sequence[Hashable]
Counted = list[tuple[list[Hashable], list[Hashable]]]  # of each pair what is counted in the first and second output


def units_of(output: Output, by_ids: bool) -> Said:
    """Return an output's token ids, or the words and signs of its text."""
    return (output.ids or ()) if by_ids else _WORDS.findall(output.text or "")


def features_of(pairs: Sequence[tuple[Output, Output]], by_ids: bool, prompts: Sequence[int]) -> dict[str, Feature]:
    """Return what can be compared of pairs of outputs, the pairs' prompts numbered by ``prompts``."""
    noun = "token" if by_ids else "word"
    said = [(units_of(first, by_ids), units_of(second, by_ids)) for first, second in pairs]
    found = {
        f"first {noun}s": _counts([(list(a[:1]), list(b[:1])) for a, b in said]),
        f"{noun}s": _counts([(list(a), list(b)) for a, b in said]),
        f"neighbouring {noun}s": _counts([(list(pairwise(a)), list(pairwise(b))) for a, b in said]),
        "lengths": _numbers([(len(a), len(b)) for a, b in said]),
        f"share of different {noun}s": _numbers([(_variety(a), _variety(b)) for a, b in said]),
    }
    if 1 < len(set(prompts)) < len(prompts):
        both = zip(said, prompts, strict=True)
        firsts: Counted = [([(prompt, one) for one in a[:1]], [(prompt, one) for one in b[:1]]) for (a, b), prompt in both]
        found[f"first {noun}s by prompt"] = _counts(firsts)
    return {name: feature for name, feature in found.items() if feature is not None}


def _variety(said: Said) -> float:
    return len(set(said)) / len(said) if said else 1.0


def _numbers(pairs: Sequence[tuple[float, float]]) -> Feature:
    return Feature(np.array([[second - first] for first, second in pairs], float))


def _counts(pairs: Counted) -> Feature | None:
    """Count the kinds of things in each pair; None where there is nothing to count."""
    total: Counter[Hashable] = Counter(one for pair in pairs for side in pair for one in side)
    if not total:
        return None
    cells = {kind: number for number, (kind, _) in enumerate(total.most_common(CELLS))}
    differences = np.zeros((len(pairs), len(cells) + 1))
    totals = np.zeros(len(cells) + 1)
    for row, pair in zip(differences, pairs, strict=True):
        for sign, side in zip((-1, 1), pair, strict=True):
            for one in side:
                cell = cells.get(one, len(cells))
                row[cell] += sign
                totals[cell] += 1
    return Feature(differences, totals)
