"""Metrics as ``evaluate`` modules: ``evaluate.load(path("sacrebleu"))`` needs no network, and combines with any Hub metric."""

from pathlib import Path

NAMES = ("squad_answers", "sacrebleu_corpus", "rouge_fmeasure")


def path(name: str) -> str:
    """Where ``evaluate.load`` finds the module; ``name`` is one of ``NAMES``."""
    return str(Path(__file__).with_name(f"{name}.py"))
