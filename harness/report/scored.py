"""Texts of known scores: outputs written by hand beside references, chosen so that every setting of a metric moves a number.

What toy models say has no hyphen, no other case and seldom a plural, so that a metric without its tokenizer, stemmer or
normaliser gives them the scores that it gave before.
"""

from typing import Any

from harness.core.records import Record
from tasks import get_task
from tasks.base import Example, Task

TEXTS: dict[str, tuple[tuple[str, ...], ...]] = {  # of a task: an output and its references, an example a line
    "multi30k-en-de": (
        ("Das Haus, das er kaufte, ist sehr alt.", "Das Haus, das er kauft, ist sehr alt!"),
        (
            "ein Mann in einem gelb-blauen T-Shirt steht (allein) dort",
            "Ein Mann in einem gelb-blauen T-Shirt steht dort allein.",
        ),
        ("„Ja“, sagt sie – und geht.\nNein.", "„Ja“, sagte sie – und ging."),
        ("", "Zwei Hunde laufen."),
        ("Zwei Hunde laufen. #", "Zwei Hunde laufen."),
        ("\nDrei Katzen schlafen.", "Drei Katzen schlafen."),
        ("Vier Kinder spielen. # \nund mehr", "Vier Kinder spielen."),
    ),
    "cnndm": (
        ("The dogs were running quickly. A man watches.", "A dog ran quickly.\nMen were watching it."),
        ("Prices fell by 3.5 per cent in the cities", "The city's prices have fallen: 3.5% less."),
        ("", "Nothing is said."),
        ("Men ran? Dogs ran! All slept.", "Dogs ran men ran.\nAll slept."),
    ),
    "squad": (
        ("The Eiffel Tower.\n### more", "Eiffel Tower", "the tower"),
        ("an old, old town", "a new town", "old old town"),
        ("in 1990", "1990"),
        ("a dog", "dog"),
        ("", "nobody"),
        ("\nParis", "Paris"),
    ),
    "librispeech-clean": (
        ("Mr. Brown's colour, um, was twenty-one", "MISTER BROWN'S COLOR WAS TWENTY ONE"),
        ("[music] i can't go", "I CANNOT GO AT ALL"),
        ("", "NOTHING WAS HEARD"),
    ),
}


def scored() -> dict[str, tuple[Task, list[Record]]]:
    """Return each task with a record of every text's statistics, by the task's name."""
    found = {}
    for name, rows in TEXTS.items():
        task, records = get_task(name), list[Record]()
        for number, (said, *references) in enumerate(rows):
            example = Example(f"{number}", {}, tuple(references))
            statistics: dict[str, Any] = dict(task.statistics(example, said))
            records.append(Record(signature=name, example=f"{name} {number}", repeat=0, status="ok", statistics=statistics))
        found[name] = task, records
    return found
