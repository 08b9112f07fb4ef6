"""What is generated and how it is scored.

``TASKS`` names every task; a new one is a file that subclasses :class:`~tasks.additive.AdditiveTask` and one line here.
"""

from tasks.additive import AdditiveTask
from tasks.errors import DataError
from tasks.squad import Squad
from tasks.summarization import CNNDM, XSUM, Summarization
from tasks.text import Text
from tasks.translation import Translation

TASKS: dict[str, AdditiveTask] = {
    "squad": Squad(),
    "wmt-en-de": Translation("en", "de"),
    "wmt-de-en": Translation("de", "en"),
    "wmt-en-fr": Translation("en", "fr"),
    "wmt-en-ro": Translation("en", "ro"),
    "wmt-ro-en": Translation("ro", "en"),
    "cnndm": Summarization(CNNDM, ("rouge1", "rouge2", "rougeL", "rougeLsum")),
    "xsum": Summarization(XSUM, ("rouge1", "rouge2", "rougeL")),
    "text": Text(),
}


def get_task(name: str) -> AdditiveTask:
    """Raises DataError that lists the known names."""
    if name not in TASKS:
        raise DataError(f"task '{name}': unknown; expected one of {', '.join(TASKS)}")
    return TASKS[name]


def fingerprint(name: str, source: str) -> str:
    """A stable short hash of a task's data, for cache keys and signatures."""
    return get_task(name).fingerprint(source)


__all__ = ["TASKS", "AdditiveTask", "fingerprint", "get_task"]
