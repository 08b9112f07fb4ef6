"""What records that are written by hand amount to: every definition of acceptance, and of speed."""

from collections.abc import Callable
from dataclasses import replace

from harness.core.experiment import DrafterSpec, MethodSpec
from harness.core.records import Record
from harness.measures.definitions import definitions_of
from harness.measures.logs import Log
from harness.measures.of_run import decode_speedup, ms_per_token, speedup, tokens_per_s
from harness.measures.statistics import Estimate
from harness.report.pinned import plain_decoding
from methods.speculative import acceptance
from methods.steps import Step, Steps

STEPS = (  # drafts, those that stand, tokens that are emitted
    ((7, 8, 9), 3, 4),
    ((7, 8, 9), 1, 2),
    ((5, 6), 0, 1),
    ((), 0, 1),
    ((4, 3, 2), 2, 2),  # the last of them ends the text
)
PROBS = {3: ([0.5, 0.2, 0.9], [0.4, 0.8, 0.9]), 2: ([0.3, 0.8], [0.6, 0.4]), 0: ([], [])}  # target's and draft's, by drafts
DEFINITIONS: dict[str, Callable[[list[Step]], acceptance.Statistic]] = {
    one.__name__: one
    for one in (
        acceptance.alpha_ratio, acceptance.alpha_point_mass, acceptance.accepted_over_verified,
        acceptance.accepted_over_drafted, acceptance.accepted_per_step, acceptance.tokens_per_step,
        acceptance.expected_token_wise, acceptance.expected_blocks, acceptance.accepted_over_all_drafted,
        acceptance.accepted_per_drafting_step, acceptance.matches_per_step,
    )
} | {
    f"{one.__name__}({place})": one(place)
    for one in (acceptance.position_joint, acceptance.position_conditional)
    for place in (1, 2, 3)
}  # fmt: skip


def counted() -> dict[str, float | str]:
    """Return what records written by hand amount to: every definition of acceptance, and of speed."""
    steps = [
        Step(
            list(drafted), stand, emitted, *PROBS[len(drafted)],
            stop_reason="eos" if emitted == stand else None,
        )
        for drafted, stand, emitted in STEPS
    ]  # fmt: skip
    found: dict[str, float | str] = {name: top / below for name, one in DEFINITIONS.items() for top, below in [one(steps)]}
    plain = [_timed(f"{number}", [Step([], 0, 1, round_s=0.1) for _ in range(10)], 0.3 + 0.1 * number) for number in range(4)]
    drafted = [replace(one, round_s=0.15) for one in steps]
    drafting = [_timed(f"{number}", drafted, 0.5) for number in range(4)]
    times = {
        "speedup": speedup(plain, drafting), "decode_speedup": decode_speedup(plain, drafting),
        "tokens_per_s": tokens_per_s(drafting), "ms_per_token": ms_per_token(drafting),
        "tokens_per_s of two rows": tokens_per_s(_together(drafting)),
    }  # fmt: skip
    found |= {name: one.value if isinstance(one, Estimate) else str(one) for name, one in times.items()}
    return found | _defined([_timed("0", drafted, 0.5), _timed("1", drafted[:2], 0.5), _timed("2", drafted[2:], 0.5)])


def _defined(records: list[Record]) -> dict[str, float | str]:
    """Return what every definition in the literature gives of examples that differ, or why it gives nothing."""
    method = MethodSpec.of("speculative", drafter=DrafterSpec(kind="copy"), gamma=3)
    log = Log(plain_decoding(0, 1, 3, "text", "llama-target").replace(method=method), records)
    found: dict[str, float | str] = {}
    for one in definitions_of([log]):
        estimate = one.estimate(log)
        found[f"definition {one.name}"] = one.reason(log) if estimate is None else estimate.value
    return found


def _timed(example: str, steps: list[Step], encode_s: float) -> Record:
    """Make a record whose rounds and prompt take all of its time but a twentieth of a second."""
    rounds_s = sum(float(step.round_s) for step in steps)
    return Record(
        signature="known",
        example=example,
        repeat=0,
        status="ok",
        tokens=[1] * sum(step.emitted for step in steps),
        stop_reason="length",
        num_rows=1,
        encode_s=encode_s,
        wall_s=rounds_s + encode_s + 0.05,
        steps=Steps.of(steps),
        run="one",
    )


def _together(records: list[Record]) -> list[Record]:
    """Make the same records rows of batches of two."""
    return [Record(**(vars(record) | {"num_rows": 2, "wall_s": (record.wall_s or 0.0) / 2})) for record in records]
