"""The verdict on captures: one for each way of sampling that they hold, as lines for readers and JSON for programs."""

from collections.abc import Sequence
from typing import Any

from harness.exact.captured.capture import Capture
from harness.exact.captured.greedy import judge_greedy
from harness.exact.captured.matched import ARMS, PLAIN, SPECULATIVE, Group, groups_of
from harness.exact.captured.replayed import LocalTarget, explain_arms, refusal
from harness.exact.captured.sampled import judge_sampled
from harness.exact.checks import Finding
from harness.measures.verdicts import GREEN, NOT_TESTED

IDS, TEXTS = "token ids", "texts"  # what of outputs is compared
PROMPTS, CHATS = "texts or token ids", "chat messages"  # how prompts were given
UNTOLD = "the server tells no token ids of prompts, so it is unknown whether both models read the same"
FALSE_ALARM = 0.01  # the chance that a check calls two deployments of one law different


def judge_captures(captures: Sequence[Capture], target: LocalTarget | None) -> dict[str, Any]:
    """Judge a plain and a speculative capture, perhaps with a control, perhaps with the target; return a JSON object.

    Raises:
        UsageError: they cannot be compared, or the target cannot read them.
    """
    groups = groups_of(captures)
    findings = [_judge(group, captures, target) for group in groups]
    stated = {captures[arm].dtype for arm in (PLAIN, SPECULATIVE)} - {None}
    return {
        "audit": "captured",
        "passed": all(finding.verdict in GREEN for finding in findings),
        "arms": [
            {"arm": arm, "file": capture.name, "outputs": len(capture.outputs), **capture.facts}
            for arm, capture in zip(ARMS, captures, strict=False)
        ],
        "stated_dtypes_differ": len(stated) > 1,
        "compared": IDS if all(group.by_ids for group in groups) else TEXTS,
        "prompts": _prompts(captures),
        "without_ids": [capture.name for capture in captures if any(one.ids is None for one in capture.outputs)],
        "false_alarm": FALSE_ALARM,
        "settings": [
            {
                "name": group.name,
                "prompts": group.num_prompts,
                "outputs": len(group.rows),
                "verdict": one.verdict,
                "note": one.note,
            }
            | dict(one.evidence)
            for group, one in zip(groups, findings, strict=True)
        ],
    }


def _prompts(captures: Sequence[Capture]) -> str:
    """Say how prompts were given, and whether it is known what the engine made of messages."""
    chats = [one for capture in captures for one in capture.outputs if one.is_chat]
    if not chats:
        return PROMPTS
    return CHATS if all(one.prompt_ids is not None for one in chats) else f"{CHATS}; {UNTOLD}"


def _judge(group: Group, captures: Sequence[Capture], target: LocalTarget | None) -> Finding:
    if not any(group.said(row[arm]) for row in group.rows for arm in (PLAIN, SPECULATIVE)):
        return Finding(NOT_TESTED, "all outputs of both arms are empty; see that the engine was asked for tokens")
    judge = judge_greedy if group.sampling.greedy else judge_sampled
    if target is None:
        return judge(group, FALSE_ALARM, None, None)
    if (why := refusal(group)) is not None:
        found = judge(group, FALSE_ALARM, None, None)
        return Finding(found.verdict, f"{found.note}; not replayed: {why}", found.evidence)
    read = explain_arms(group, target, [capture.dtype for capture in captures])
    return judge(group, FALSE_ALARM, read, target)


def lines_of(document: dict[str, Any]) -> list[str]:
    """Return the lines to print: the arms, the verdict of each way of sampling with where outputs part, and the sum of all."""
    lines = []
    for arm in document["arms"]:
        facts = ", ".join(f"{name} {arm[name]}" for name in ("model", "dtype", "engine") if name in arm)
        lines.append(f"{arm['arm']}: {arm['file']}, {arm['outputs']} outputs" + (f", {facts}" if facts else ""))
    lacking = ", ".join(dict.fromkeys(document["without_ids"]))
    reason = f"; not all outputs of {lacking} have token ids, in which equal texts may differ" if lacking else ""
    lines.append(f"compared: {document['compared']}{reason}")
    if document["prompts"] != PROMPTS:
        lines.append(f"prompts: {document['prompts']}")
    if document["stated_dtypes_differ"]:
        lines.append("stated dtypes of plain and speculative differ, which alone parts greedy outputs at near-ties")
    for one in document["settings"]:
        size = f"{one['prompts']} prompts, {one['outputs']} outputs an arm, {document['compared']}"
        lines.append(f"{one['name']} ({size}): {one['verdict']}: {one['note']}")
        for place in one.get("places", ()):
            lines.append("  " + ", ".join(f"{name} {value}" for name, value in place.items()))
    verdicts = ", ".join(one["verdict"] for one in document["settings"])
    return [*lines, f"{'passed' if document['passed'] else 'FAILED'}, {document['compared']} compared: {verdicts}"]
