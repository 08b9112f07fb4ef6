"""The tasks' metrics as ``evaluate`` modules, for scripts outside this project.

``evaluate.load(path("sacrebleu_corpus"))`` needs no network, and the module combines with any metric of the Hub.
"""

from pathlib import Path

NAMES = ("squad_answers", "sacrebleu_corpus", "rouge_fmeasure")


def path(name: str) -> str:
    """Return the file that ``evaluate.load`` takes; ``name`` is one of ``NAMES``."""
    return str(Path(__file__).with_name(f"{name}.py"))
