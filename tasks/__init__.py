"""Tasks: examples to generate from, prompts, and scores of what was generated.

``TASKS`` names every task; a new one is a file that subclasses :class:`~tasks.base.Task` and one line here.
"""

from collections.abc import Iterable
from typing import Any

from tasks.base import DataError, Task
from tasks.conversations import Conversations
from tasks.sources import locate
from tasks.sources.source import Source
from tasks.speech import CLEAN, COMMON_VOICE, OTHER, TEDLIUM, Speech
from tasks.squad import Squad
from tasks.summarization import CNNDM, XSUM, Summarization
from tasks.text import Text
from tasks.translation import Translation

TASKS: dict[str, Task] = {
    "squad": Squad(),
    "wmt-en-de": Translation("en", "de"),
    "wmt13-en-de": Translation("en", "de", tests="wmt13"),
    "multi30k-en-de": Translation("en", "de", tests="multi30k"),
    "wmt-de-en": Translation("de", "en"),
    "wmt-en-fr": Translation("en", "fr"),
    "wmt-en-ro": Translation("en", "ro"),
    "wmt-ro-en": Translation("ro", "en"),
    "cnndm": Summarization(CNNDM, ("rouge1", "rouge2", "rougeL", "rougeLsum")),
    "xsum": Summarization(XSUM, ("rouge1", "rouge2", "rougeL")),
    "text": Text(),
    "librispeech-clean": Speech(CLEAN),
    "librispeech-other": Speech(OTHER),
    "tedlium": Speech(TEDLIUM),
    "common-voice": Speech(COMMON_VOICE),
}

TRAINING_ONLY: dict[str, Task] = {"conversations": Conversations()}
BROKEN: dict[str, str] = {}  # tasks of broken plug-ins and their errors (harness.core.plugins)


def get_task(name: str) -> Task:
    """Return a task by name; DataError lists the known names."""
    if name in TRAINING_ONLY:
        raise DataError(
            f"task '{name}': it is only trained on (`foretoken heads --task {name}`); expected one of {', '.join(TASKS)}"
        )
    if name not in TASKS:
        raise _unknown(name, TASKS)
    return TASKS[name]


def get_training_task(name: str) -> Task:
    """Return a task by name, those that are only trained on included; DataError lists the known names."""
    known = TASKS | TRAINING_ONLY
    if name not in known:
        raise _unknown(name, known)
    return known[name]


def _unknown(name: str, known: Iterable[str]) -> DataError:
    return DataError(f"task '{name}': " + BROKEN.get(name, f"unknown; expected one of {', '.join(known)}"))


def fingerprint(name: str, source: str) -> str:
    """Return a short hash of a task's data, for cache keys and signatures."""
    return locate.fingerprint(get_training_task(name).dataset, source)


def training_files(names: Iterable[str], source: str) -> list[dict[str, Any]]:
    """Return, as JSON, what training on tasks reads: for each the sha256 of its files, and whether a part of them is tested.

    Nothing of rows that are generated or the Hub's. ``locate.contents`` of a copy is the same.
    """
    found = [locate.contents(get_training_task(name).dataset, Source.of(source)) for name in names]
    return [{"files": sorted(one.train), "undivided": one.undivided} for one in found if one is not None]


__all__ = ["BROKEN", "TASKS", "TRAINING_ONLY", "Task", "fingerprint", "get_task", "get_training_task", "training_files"]
