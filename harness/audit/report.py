"""What an audit found, as JSON for programs and as Markdown for readers. Nothing in it depends on the clock."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.audit.sampling import MAX_TESTS, TEST_LEVEL, THEIR_SHARE
from harness.audit.subjects import Sizes, Subject, key_of
from harness.audit.verdicts import GREEN, is_red, summary_of
from harness.render.files import write_whole
from methods.goodness import FALSE_ALARM, POWER

Findings = Mapping[str, Mapping[str, Any]]


def document_of(
    name: str, subjects: Sequence[Subject], found: Findings, controls: Findings, sizes: Sizes, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Everything, one entry a subject. ``facts``: command, code, environment, models, seed."""
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
    tests = sum(bool(test.get("samples")) for row in rows for test in row.get("tests", {}).values())
    red = [row["name"] for row in rows if is_red(row)]
    missed = [control for control, finding in controls.items() if not finding["caught"]]
    return {
        "audit": name,
        "passed": not red and not missed,
        "red": red,
        "controls_missed": missed,
        **facts,
        "sizes": asdict(sizes),
        "tests_of_samples": tests,
        "subjects": rows,
        "controls": [{"name": control, **finding} for control, finding in controls.items()],
    }


def write(document: Mapping[str, Any], folder: Path) -> list[Path]:
    """``<folder>/<audit>.json`` and ``.md``, each whole or not at all."""
    texts = {"json": json.dumps(document, indent=1, ensure_ascii=False) + "\n", "md": markdown(document)}
    return [write_whole(folder / f"{document['audit']}.{ending}", text) for ending, text in texts.items()]


def outcome(document: Mapping[str, Any]) -> str:
    """One line: how many subjects by verdict, how many controls were caught, and whether that is a pass."""
    rows, controls = document["subjects"], document["controls"]
    counts = Counter(row["verdict"] for row in rows)
    verdicts = ", ".join(f"{counts[verdict]} {verdict}" for verdict in sorted(counts, key=lambda one: (one not in GREEN, one)))
    caught = sum(control["caught"] for control in controls)
    passed = "passed" if document["passed"] else "FAILED"
    return f"{passed}: {len(rows)} subjects ({verdicts}); {caught} of {len(controls)} controls caught"


def markdown(document: Mapping[str, Any]) -> str:
    lines = [f"# Exactness audit: {document['audit']}", "", outcome(document), ""]
    lines += [f"- {title}: {_fact(document[title])}" for title in ("command", "code", "seed", "environment", "models")]
    lines += [f"- red: {name}" for name in document["red"]]
    lines += [f"- control missed: {name}" for name in document["controls_missed"]]
    for pair in dict.fromkeys(row["pair"] for row in document["subjects"]):
        rows = [row for row in document["subjects"] if row["pair"] == pair]
        lines += ["", f"## {pair} ({rows[0]['session']}, {Path(rows[0]['target']).name})", ""]
        cells = [(row["name"].removeprefix(f"{pair}: "), row["declared"], row["verdict"], summary_of(row)) for row in rows]
        lines += _table(("subject", "declared", "verdict", "evidence"), cells)
    lines += ["", "## Controls: wrong on purpose, to be caught", ""]
    heads = ("control", "what is wrong", "check", "caught", "by")
    controls = document["controls"]
    lines += _table(
        heads, [(one["name"], one["what"], one["check"], "yes" if one["caught"] else "NO", _caught_by(one)) for one in controls]
    )
    return "\n".join([*lines, "", *_how(document), ""])


def _fact(value: Any) -> str:
    return ", ".join(f"{name} {one}" for name, one in value.items()) if isinstance(value, Mapping) else str(value)


def _caught_by(control: Mapping[str, Any]) -> str:
    if control["check"] == "law":
        return f"law off by {max(control['largest_deviation'].values(), default=0.0):.1e}"
    if control["check"] == "samples":
        return ", ".join(control["failed"]) or "nothing"
    return f"{control['bugs']} of {control['prompts']} outputs"


def _how(document: Mapping[str, Any]) -> list[str]:
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
        f"which are slow and have no law to integrate, one in {THEIR_SHARE}); every position, place of the "
        f"first round and its bonus tested apart at {TEST_LEVEL:g}: Bonferroni for {MAX_TESTS} tests "
        f"({document['tests_of_samples']} were made), so that all together raise a false alarm with a chance of at most "
        f"{FALSE_ALARM:g}. p bounds a chance, for any sample size (Chernoff). tv: a sampler whose law is this far off (total "
        f"variation, in whatever way) is found with a chance of {POWER:g}.",
        "",
        "Lossy, sampled: total variation and KL (nats) of a round's emitted law from the target's, mean over places. Lossy, "
        "greedy: share of emitted tokens that are not the target's first choice behind the same text, and log-probability "
        "given up (nats a token, temperature 1). Intervals: 95 %, bootstrap over examples.",
    ]


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[index]) for row in [heads, *rows]) for index in range(len(heads))]

    def line(row: Sequence[str]) -> str:
        return "| " + " | ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() + " |"

    return [line(heads), line(["-" * width for width in widths]), *map(line, rows)]
