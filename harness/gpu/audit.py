"""Part 7: the exactness audit on the device: what claims to be exact is, and what is wrong on purpose is caught.

Models as in part 5. Pairs, ways to sample and the controls are audited side by side, in processes that share the device: most
of an audit's time is the host's.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from harness.core.experiment import Comparison
from harness.core.settings import Settings
from harness.exact.document import build_document, summarise
from harness.exact.run import audit, models_of
from harness.exact.subjects import SIZES, Sizes, Subject, own_subjects, zoo_subjects
from harness.gpu.place import Item, Measured, Place
from harness.gpu.tables import CHECKPOINTS, are_cached
from methods.cores import num_cores

SOURCE = "toy"
DTYPE = "float32"
MOST_WORKERS = 8  # that share a device: each has its own models and handles there
NAME = "all pairs and the controls"


def items(place: Place) -> Sequence[Item]:
    """The audit is one item: its parts run side by side, and the controls take the first pair's models."""
    return [Item(name=f"{NAME}, {DTYPE}", seconds=150, measure=partial(audit_all, place))]


def method_of(subject: Subject) -> str:
    """A subject's method, rule and drafter, without its sampling."""
    return subject.name.partition(": ")[2].partition(",")[0]


def subjects_of(place: Place) -> tuple[list[Subject], Sizes]:
    """All subjects: of the zoo, toy or the tests', or in the smallest rehearsal of two committed checkpoints."""
    where = {"device": place.device, "dtype": DTYPE}
    scale = "test" if place.is_rehearsal else "toy"
    sizes = replace(SIZES[scale], **({} if place.sizes.samples is None else {"samples": place.sizes.samples}))
    if place.scale == "smallest":
        target, draft = (str(CHECKPOINTS / name) for name in ("llama-target", "llama-draft"))
        subjects = own_subjects(target, draft, "text", SOURCE, sizes)
    else:
        subjects = zoo_subjects(scale, SOURCE, sizes)
        if scale == "toy" and not are_cached([Comparison((one.experiment,)) for one in subjects], Settings()):
            subjects = zoo_subjects("test", SOURCE, sizes)
    return [replace(one, plain=one.plain.replace(**where)) for one in subjects], sizes


def audit_all(place: Place) -> Measured:
    """Audit the subjects and, but in the smallest rehearsal, see whether the controls, wrong on purpose, are caught."""
    subjects, sizes = subjects_of(place)
    chosen = [one for one in subjects if {one.pair, method_of(one), f"{one.pair}: {method_of(one)}"} & {*place.sizes.audited}]
    smallest = place.scale == "smallest"
    workers = 0 if smallest else min(MOST_WORKERS, max(1, num_cores() // 2))
    folder = place.records / f"audit-{place.scale}-{place.code}"
    found, controls = audit(chosen, sizes, folder, quiet=True, workers=workers, controls_on=() if smallest else None)
    document = build_document("gpu", chosen, found, controls, sizes, {"models": models_of(chosen)})
    rows: list[dict[str, Any]] = [
        {"subject": row["name"], "declared": row["declared"], "verdict": row["verdict"], "error": row.get("error")}
        for row in document["subjects"]
    ]
    caught = [row["caught"] for row in document["controls"]]
    rows += [
        {"subject": f"control: {row['name']}", "verdict": "caught" if row["caught"] else "MISSED"}
        for row in document["controls"]
    ]
    few = place.sizes.samples is not None  # samples: of a rehearsal, too few to find every fault
    notes = [f"{sizes.samples} samples, a rehearsal's, are too few to find every control's fault"] if few else []
    facts = {"summary": summarise(document), "subjects": len(chosen), "controls": len(caught), "caught": sum(caught)}
    passed = not document["red"] and (few or all(caught))
    return {"facts": facts | {"processes": workers}, "rows": rows, "passed": passed, "notes": notes}
