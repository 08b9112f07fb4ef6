"""Part 7: the exactness audit on the device, pair by pair: what claims to be exact is, and what is wrong on purpose is caught.

Models as in part 5. The pairs' findings are kept one by one, so that an audit that was cut off goes on behind them.
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

SOURCE = "toy"
DTYPE = "float32"
SECONDS = 180  # of a pair with some fifty subjects, and of the controls, whose number is like it; of other pairs a third


def items(place: Place) -> Sequence[Item]:
    """The audited pairs, and the controls behind the first of them, whose models and plain texts they take."""
    subjects, sizes = subjects_of(place)
    groups = {
        name: [one for one in subjects if name in (one.pair, method_of(one), f"{one.pair}: {method_of(one)}")]
        for name in place.sizes.audited
    }
    groups = {name: chosen for name, chosen in groups.items() if chosen}
    items = [
        Item(
            name=f"{name}, {DTYPE}",
            seconds=SECONDS if number == 0 else SECONDS / 3,
            measure=partial(audit_some, place, chosen, sizes),
        )
        for number, (name, chosen) in enumerate(groups.items())
    ]
    if place.scale != "smallest":
        first = next(iter(groups.values()))
        items.insert(1, Item(name=f"controls, {DTYPE}", seconds=SECONDS, measure=partial(audit_controls, place, first, sizes)))
    return items


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


def audit_some(place: Place, subjects: Sequence[Subject], sizes: Sizes) -> Measured:
    """Audit some subjects, in this process."""
    document = _audited(place, subjects, sizes, with_controls=False)
    rows: list[dict[str, Any]] = [
        {"subject": row["name"], "declared": row["declared"], "verdict": row["verdict"], "error": row.get("error")}
        for row in document["subjects"]
    ]
    return {"facts": {"summary": summarise(document), "subjects": len(rows)}, "rows": rows, "passed": not document["red"]}


def audit_controls(place: Place, subjects: Sequence[Subject], sizes: Sizes) -> Measured:
    """See whether the controls, which are wrong on purpose, are caught. ``subjects``: of the pair that was audited first."""
    document = _audited(place, subjects, sizes, with_controls=True)
    rows = [
        {"subject": f"control: {row['name']}", "verdict": "caught" if row["caught"] else "MISSED"}
        for row in document["controls"]
    ]
    few = place.sizes.samples is not None  # samples: of a rehearsal, too few to find every fault
    note = f"{sizes.samples} samples, a rehearsal's, are too few to find every control's fault"
    missed = sum(row["verdict"] == "MISSED" for row in rows)
    facts = {"controls": len(rows), "caught": len(rows) - missed}
    return {"facts": facts, "rows": rows, "passed": few or not missed, "notes": [note] if few else []}


def _audited(place: Place, subjects: Sequence[Subject], sizes: Sizes, *, with_controls: bool) -> dict[str, Any]:
    folder = place.records / f"audit-{place.scale}-{place.code}"
    found, controls = audit(subjects, sizes, folder, quiet=True, workers=0, with_controls=with_controls)
    return build_document("gpu", subjects, found, controls, sizes, {"models": models_of(subjects)})
