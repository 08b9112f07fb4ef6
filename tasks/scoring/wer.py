"""Word error rate from edit counts that add up, after Whisper's English normaliser.

The normaliser is transformers' (Radford et al. 2022, Appendix C), its map of British to American spellings that of OpenAI's
repository, which the package whisper-normalization carries. An empty hypothesis is all deletions: dropping it, as the code
released with Optimized does, would hide the worst outputs.
"""

import json
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import Any

import numpy as np

COUNTS = ("hits", "substitutions", "deletions", "insertions")


@cache
def _normaliser() -> Any:
    from transformers.models.whisper.english_normalizer import EnglishTextNormalizer

    spellings = files("whisper_normalization").joinpath("english.json").read_text(encoding="utf8")
    return EnglishTextNormalizer(json.loads(spellings))


def normalise(text: str) -> str:
    """Lower the case, drop punctuation, fillers and annotations, write numbers as digits, part contractions, spell American."""
    return str(_normaliser()(text)).strip()


def edit_counts(prediction: str, reference: str) -> dict[str, float]:
    """Count hits, substitutions, deletions and insertions of jiwer's alignment of the normalised words."""
    import jiwer

    found = jiwer.process_words(normalise(reference), normalise(prediction))
    return {name: float(getattr(found, name)) for name in COUNTS}


def rate_from_sums(sums: Mapping[str, np.ndarray]) -> np.ndarray:
    """Compute edits per reference word [...] from summed counts [...]; NaN where the references have no words."""
    edits = sums["substitutions"] + sums["deletions"] + sums["insertions"]
    num_words = sums["hits"] + sums["substitutions"] + sums["deletions"]
    return np.where(num_words > 0, edits / np.maximum(num_words, 1.0), np.nan)


@cache
def signature() -> str:
    packages = "|".join(f"{name}:{version(name)}" for name in ("jiwer", "transformers", "whisper-normalization"))
    return f"normaliser:whisper-english|empty hypotheses:deletions|{packages}"
