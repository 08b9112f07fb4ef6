"""The document of an audit: its findings as JSON for programs and as Markdown for readers. It does not depend on the clock."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.core.text import markdown_lines
from harness.exact.checks import TRANSFORMERS_SHARE, Findings
from harness.exact.controls import CONTROLS
from harness.exact.fit import CELLS, FALSE_ALARM, POWER, SIDE
from harness.exact.ground import LONG, MAX_TESTS, TEST_LEVEL
from harness.exact.subjects import Sizes, Subject
from harness.measures.verdicts import (
    GREEN,
    MUST_FIND,
    NOT_TESTED,
    as_earned,
    is_mostly_untested,
    is_red,
    key_of,
    summary_of,
    tests_of,
)
from harness.tables.files import write_whole

FEW_PLACES = "same distribution where tested, at fewer than half of the places and not replayed"


def build_document(
    name: str, subjects: Sequence[Subject], found: Findings, controls: Findings, sizes: Sizes, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Collect all findings, one entry per subject. ``facts`` are command, code, environment, models and seed."""
    rows = [
        {
            "name": subject.name,
            "pair": subject.pair,
            "session": subject.session,
            "target": subject.plain.target.name,
            "key": list(key_of(subject.experiment)),
            **found[subject.name],
        }
        for subject in subjects
    ]
    strong = [tests_of(row) for row in rows]
    red = [row["name"] for row in rows if is_red(row)]
    missed = [control for control, finding in controls.items() if not finding["caught"]]
    return {
        "audit": name,
        "passed": not red and not missed,
        "red": red,
        "not_tested": [row["name"] for row in rows if row["verdict"] == NOT_TESTED],
        "controls_missed": missed,
        "controls_left_out": [control for control in CONTROLS if control not in controls] if controls else [],
        **facts,
        "sizes": asdict(sizes),
        "tests_of_samples": sum(len(tests) for tests, _ in strong),
        "places_not_tested": sum(weak for _, weak in strong),
        "subjects": rows,
        "controls": [{"name": control, **finding} for control, finding in controls.items()],
    }


def write_document(document: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write ``<folder>/<audit>.json`` and ``.md``, each whole or not at all."""
    texts = {"json": json.dumps(document, indent=1, ensure_ascii=False) + "\n", "md": as_markdown(document)}
    return [write_whole(folder / f"{document['audit']}.{ending}", text) for ending, text in texts.items()]


def summarise(document: Mapping[str, Any]) -> str:
    """Say in one line whether the audit passed: subjects by verdict, and how many controls were caught.

    Subjects of which most was neither tested nor replayed are counted apart. Older documents are read by today's rules.
    """
    rows, controls = list(map(as_earned, document["subjects"])), document["controls"]
    counts = Counter(FEW_PLACES if is_mostly_untested(row) else row["verdict"] for row in rows)
    verdicts = ", ".join(
        f"{counts[verdict]} {verdict}" for verdict in sorted(counts, key=lambda one: (one not in (*GREEN, FEW_PLACES), one))
    )
    caught = sum(control["caught"] for control in controls)
    passed = "passed" if document["passed"] else "FAILED"
    left_out = len(document.get("controls_left_out", ()))
    more = f", {left_out} left out, which cannot strike here" if left_out else ""
    return f"{passed}: {len(rows)} subjects ({verdicts}); {caught} of {len(controls)} controls caught{more}"


def as_markdown(document: Mapping[str, Any]) -> str:
    lines = [f"# Exactness audit: {document['audit']}", "", summarise(document), ""]
    lines += [f"- {title}: {_as_text(document[title])}" for title in ("command", "code", "seed", "environment", "models")]
    lines += [f"- red: {name}" for name in document["red"]]
    lines += [f"- control missed: {name}" for name in document["controls_missed"]]
    why = "nothing goes wrong by it on this device, or within this target's positions"
    lines += [f"- control left out: {name}; {why}" for name in document.get("controls_left_out", ())]
    subjects = list(map(as_earned, document["subjects"]))
    lines += [f"- {NOT_TESTED}: {row['name']}" for row in subjects if row["verdict"] == NOT_TESTED]
    for pair in dict.fromkeys(row["pair"] for row in subjects):
        rows = [row for row in subjects if row["pair"] == pair]
        lines += ["", f"## {pair} ({rows[0]['session']}, {Path(rows[0]['target']).name})", ""]
        cells = [(row["name"].removeprefix(f"{pair}: "), row["declared"], row["verdict"], summary_of(row)) for row in rows]
        lines += markdown_lines(("subject", "declared", "verdict", "evidence"), cells)
    lines += ["", "## Controls: wrong on purpose, to be caught", ""]
    heads = ("control", "what is wrong", "check", "caught", "by")
    controls = document["controls"]
    lines += markdown_lines(
        heads, [(one["name"], one["what"], _checks(one), "yes" if one["caught"] else "NO", _caught_by(one)) for one in controls]
    )
    return "\n".join([*lines, "", *_explanation(document), ""])


def _as_text(value: Any) -> str:
    return ", ".join(f"{name} {one}" for name, one in value.items()) if isinstance(value, Mapping) else str(value)


def _checks(control: Mapping[str, Any]) -> str:
    """Name the check of a control, and before it the one that missed it."""
    return f"{control['missed_by']} missed it, {control['check']}" if "missed_by" in control else str(control["check"])


def _caught_by(control: Mapping[str, Any]) -> str:
    if control["check"] == "law":
        return f"law off by {max(control['largest_deviation'].values(), default=0.0):.1e}"
    if control["check"] in ("samples", "streams"):
        return ", ".join(control["failed"]) or "nothing"
    if control["check"] == "replay":
        return ", ".join(control["replayed"]["what"]) or "nothing"
    return f"{control['bugs']} of {control['prompts']} outputs"


def _explanation(document: Mapping[str, Any]) -> list[str]:
    sizes = document["sizes"]
    return [
        f"Greedy: {sizes['prompts']} prompts of up to {sizes['new_tokens']} new tokens beside the plain arm, token by token. "
        "Where outputs part, the top-2 logit margin there and fp64 replays of both arms decide: near-tie (rounding explains "
        "it) or bug.",
        "",
        "Sampling, law: the rule's output law on real target and draft distributions, integrated over its uniforms; the "
        "largest deviation from the target's at any token, place (each draft, the bonus) and window must be at most 1e-6.",
        "",
        f"Sampling, samples: {sizes['samples']} seeded outputs of {sizes['prefixes']} prefixes (of transformers' loops, "
        f"which are slow and have no law to integrate, one in {TRANSFORMERS_SHARE}); every position, place of the "
        f"first round and its bonus tested apart at {TEST_LEVEL:g}: Bonferroni for {MAX_TESTS} tests "
        f"({document['tests_of_samples']} were made), so that all together raise a false alarm with a chance of at most "
        f"{FALSE_ALARM:g}. p bounds a chance, for any sample size (Chernoff). tv: a sampler whose law is this far off (total "
        f"variation) is found with a chance of {POWER:g}. Places whose tests would find none of {MUST_FIND:g} are not tested "
        f"({document['places_not_tested']}): the replay covers them where a subject has one. Tests of contexts see any change, "
        f"those of ranks and of pairs of numbers none within 1 / {CELLS} or 1 / {SIDE} of the law: a subject that has no "
        f"other, no law to integrate and no replay is {NOT_TESTED}. That is no fault and not red, and has no speed-up.",
        "",
        "Random numbers: those of drafts, acceptances and last tokens are tested, as methods read them, for independence at "
        "equal and neighbouring positions, rows and levels; plain sampling's subjects have these tests.",
        "",
        f"Replay: outputs of up to {LONG} tokens of every exact method, greedy and sampled, are read by transformers' own "
        "forward pass; every token, acceptance and recorded probability must be what logits and the seed's numbers give. A "
        "control that samples miss on this pair is replayed, as subjects are.",
        "",
        "Lossy, sampled: total variation and KL (nats) of a round's emitted law from the target's, mean over places. Lossy, "
        "greedy: share of emitted tokens that are not the target's first choice behind the same text, and log-probability "
        "given up (nats a token, temperature 1). Intervals: 95 %, bootstrap over examples.",
    ]
