"""What records that are written by hand amount to: every definition of acceptance, speeds, and the accounts of their parts."""

from dataclasses import replace
from typing import Any

from harness.core.experiment import DrafterSpec, MethodSpec
from harness.core.records import Overlap, Record
from harness.measures import pipelines
from harness.measures.counts import Counted, Counts
from harness.measures.definitions import definitions_of
from harness.measures.logs import Log
from harness.measures.of_run import all_metrics, decode_speedup, failed_frac, ms_per_token, speedup, tokens_per_s
from harness.measures.statistics import Estimate, Missing, ratio_of_examples
from harness.papers.leviathan import speed
from harness.report.known.inputs import loaded
from harness.report.known.values import told
from harness.report.pinned import model, plain_decoding
from methods.ppd.heads import OwnHead
from methods.ppd.plans import MOST_CANDIDATES, Adaptive, measured_costs
from methods.steps import Step, Steps
from tasks import get_task

STEPS = (  # drafts, those that stand, tokens that are emitted
    ((7, 8, 9), 3, 4),
    ((7, 8, 9), 1, 2),
    ((5, 6), 0, 1),
    ((), 0, 1),
    ((4, 3, 2), 2, 2),  # the last of them ends the text
)
PROBS = {3: ([0.5, 0.2, 0.9], [0.4, 0.8, 0.9]), 2: ([0.3, 0.8], [0.6, 0.4]), 0: ([], [])}  # target's and draft's, by drafts
NUM_EXAMPLES, NUM_LAYERS = 4, 8


def _timed() -> dict[str, float | str]:
    """Return speeds, and what they are made of, by a clock that reads the same in every round."""
    plain = [_record(number, [Step([], 0, 1, round_s=0.1)] * 10, 0.3 + 0.1 * number) for number in range(NUM_EXAMPLES)]
    rounds = [replace(one, round_s=0.15, draft_s=0.02, verify_s=0.12) for one in _steps()]
    drafting = [_record(number, rounds, 0.5) for number in range(NUM_EXAMPLES)]
    found: dict[str, Estimate | Missing | float | None] = {
        "speedup": speedup(plain, drafting), "decode_speedup": decode_speedup(plain, drafting),
        "tokens_per_s": tokens_per_s(drafting), "ms_per_token": ms_per_token(drafting),
        "tokens_per_s of two rows": tokens_per_s(_together(drafting)),
        "failed_frac": failed_frac([*drafting, replace(drafting[0], example="9", status="failed", error="why", steps=None)]),
    }  # fmt: skip
    overlap = [Overlap(drafter="copy", by_lenience={"1.0": [0.5, 0.7, 0.9, 0.8, 0.6]})]
    account = speed.account([replace(one, overlap=overlap) for one in plain], drafting, "copy", 3)
    piped = pipelines.account([plain], [_record(number, _piped(), 0.5) for number in range(NUM_EXAMPLES)], NUM_LAYERS)
    found |= {f"drafting: {name}": one for name, one in (account if isinstance(account, dict) else {"": account}).items()}
    found |= {f"pipeline: {name}": one for name, one in getattr(piped, "estimates", {"": piped}).items()}
    found |= {f"cost of a pipeline's {name}": one for name, one in vars(measured_costs(_piped(), NUM_LAYERS, 1)).items()}
    return {
        name: one.value if isinstance(one, Estimate) else one if isinstance(one, float) else str(one)
        for name, one in found.items()
    }


def _defined() -> dict[str, float | str]:
    """Return what every definition in the literature gives of examples that differ, or why it gives nothing."""
    method = MethodSpec.of("speculative", drafter=DrafterSpec(kind="copy"), gamma=3)
    steps = [replace(one, round_s=0.15) for one in _steps()]
    examples = [_record(number, own, 0.5) for number, own in enumerate((steps, steps[:2], steps[2:]))]
    log, found = Log(plain_decoding(0, 1, 3, "text", "llama-target").replace(method=method), examples), dict[str, float | str]()
    for one in definitions_of([log]):
        estimate = one.estimate(log)
        found[f"definition {one.name}"] = one.reason(log) if estimate is None else estimate.value
    return found


def _of_engines() -> dict[str, str]:
    """Return what every definition gives of counts that another engine wrote, of chains and of trees."""
    chains = (
        Counts(request="a", accepted=7, drafted=15, rounds=6, drafting=5, emitted=13, gamma=3, histogram=(1, 2, 1, 1)),
        Counts(request="b", accepted=4, drafted=7, rounds=4, drafting=3, emitted=8, by_length={2: (1, 1), 3: (0, 0, 0, 1)}),
    )
    logs = {"a chain": chains[:1], "chains": chains, "a tree": (replace(chains[0], is_tree=True),)}
    found = dict[str, str]()
    for name, requests in logs.items():
        log = Counted(format="", source="", requests=requests)
        given = {one.name: one.estimate(log) for one in definitions_of([log])}
        found |= {f"{definition} of {name} elsewhere": told(value) for definition, value in given.items() if value is not None}
    return found


def _expected() -> dict[str, float | str]:
    """Return Eq. 1 at the alpha that is each rule's, or that it is not told."""
    alphas = {name: Estimate(alpha, None, None, 40) for name, alpha in (("alpha_overlap", 0.5), ("alpha_overlap_lenient", 0.8))}
    rules: dict[str, dict[str, Any]] = {"speculative-sampling": {}, "lenience": {"lenience": 0.3}, "typical": {}}
    drafters = {name: DrafterSpec(kind=name, model=model("specdec-drafter")) for name in ("block", "blockwise")}
    copies = DrafterSpec(kind="copy")
    cases = [(rule, copies, rule, options) for rule, options in rules.items()]
    cases += [(name, drafter, "speculative-sampling", {}) for name, drafter in drafters.items()]
    found: dict[str, float | str] = {}
    for name, drafter, rule, options in cases:
        method = MethodSpec.of("speculative", drafter=drafter, rule=rule, gamma=3, **options)
        experiment = plain_decoding(0, 1, 1, "text", "llama-target", 1.0).replace(method=method)
        one = speed.memory_access_factor_eq1(experiment, alphas)
        found[f"tokens expected of {name}"] = str(one) if one is None else one.value
    return found


def _repeated() -> dict[str, float | str]:
    """Return the interval of a ratio whose examples were repeated: an example is drawn with all its repeats."""
    found = ratio_of_examples([(f"{number % 40}", 1.0 + number % 7, 2.0 + number % 3) for number in range(80)])
    return {"a ratio of repeats": told(found)}


def _named() -> dict[str, float | str]:
    """Return an arm's overlaps by the names that a run prints, at each lenience that was measured."""
    overlap = [Overlap(drafter="copy", by_lenience={"1.0": [0.5, 0.7, 0.9, 0.8, 0.6], "0.3": [0.8, 0.9, 1.0, 0.9, 0.7]})]
    found = all_metrics(get_task("text"), [replace(_record(number, _steps(), 0.5), overlap=overlap) for number in range(2)])
    return {name: one.value for name, one in found.items() if name.startswith("alpha_overlap")}


def _planned() -> dict[str, str]:
    """Return where a planner predicts early and with how many candidates, by made-up ranks, where more cost more or not."""
    stack, found = loaded("llama-target").stack, {}
    ranks = {3: [3, 3, 1, 3, 4, 2], 4: [0, 0, 1, 0, 4, 0], 5: [0, 0, 0, 0, 0, 0]}
    for each_s in (0.0, 0.01):
        planner = Adaptive(OwnHead(), None, None, "batched")
        planner._ranks, planner._num_observed, planner._num_tokens = ranks, 1, 7
        planner._steps = [
            Step(
                [], 0, 1, early_layer=3, parts=[0.04, 0.01, each_s * count, 0.05, 0.02, 0.01, 0.002],
                candidates=[1] * count, matched=True, units=[0.02, 0.07 + each_s * count],
            )
            for count in (1, MOST_CANDIDATES)
        ]  # fmt: skip
        found[f"plan where a candidate more takes {each_s} s"] = str(planner._best(stack))
    return found


def _steps() -> list[Step]:
    return [
        Step(list(drafted), stand, emitted, *PROBS[len(drafted)], stop_reason="eos" if emitted == stand else None)
        for drafted, stand, emitted in STEPS
    ]


def _piped() -> list[Step]:
    """Return ten rounds of a pipeline, of which every third guess fails; the last guesses nothing."""
    hits, found = [number % 3 != 2 for number in range(9)], []
    for before, hit in zip((False, *hits), (*hits, None), strict=True):
        parts = [0.0 if before else 0.04, 0.01, 0.005, 0.05, 0.02, 0.01 if hit else 0.0, 0.002]
        step = Step([], 0, 1, round_s=sum(parts), early_layer=NUM_LAYERS // 2, parts=parts)
        found.append(step if hit is None else replace(step, candidates=[1 if hit else 2], matched=hit, units=[0.02, 0.07]))
    return found


def _record(number: int, steps: list[Step], encode_s: float) -> Record:
    """Make a record whose rounds and prompt take all of its time but a twentieth of a second."""
    return Record(
        signature="known",
        example=f"{number}",
        repeat=0,
        status="ok",
        tokens=[1] * sum(step.emitted for step in steps),
        stop_reason="length",
        num_rows=1,
        encode_s=encode_s,
        wall_s=sum(float(step.round_s) for step in steps) + encode_s + 0.05,
        steps=Steps.of(steps),
        run="one",
    )


def _together(records: list[Record]) -> list[Record]:
    """Make the same records rows of batches of two."""
    return [Record(**(vars(record) | {"num_rows": 2, "wall_s": (record.wall_s or 0.0) / 2})) for record in records]


GROUPS = (_defined, _of_engines, _expected, _repeated, _named, _planned, _timed)
