"""What two arms of records amount to: replicas, repeats, batches and failures; and what makes times or outputs incomparable.

The records are written by hand. Their numbers follow from their places, so that no two examples are alike.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

from harness.advise import predict
from harness.advise.rounds import budget_of, empty_share
from harness.core.experiment import Comparison, DrafterSpec, MemoryProbe, MethodSpec, OverlapProbe
from harness.core.records import Divergence, EarlyRanks, Overlap, Record
from harness.measures import frames, of_run, pairing, pipelines
from harness.measures.logs import Log
from harness.measures.statistics import Estimate, Missing
from harness.report import bench
from harness.report.known.values import hashed, numbers_in
from harness.report.known.values import told as with_interval
from harness.report.pinned import drafted, drafted_by, plain_decoding
from harness.run import peers
from methods.steps import PARTS, Step, Steps
from tasks import get_task
from tasks.base import Example

REPLICAS, REPEATS, EXAMPLES, LAYERS = ("one", "two", "three"), 2, 12, 8
REFERENCE, SAID = "two old dogs ran home", ("an old dog ran home", "two old dogs ran home", "two old dogs ran away", "dogs")
SCORED = ("squad", "librispeech-clean", "multi30k-en-de")
OVERLAPS = (0.5, 0.7, 0.9, 0.8, 0.6, 1.0)
Number = Estimate | Missing | str | None


def _written(part: Callable[[], dict[str, Number]]) -> dict[str, str]:
    return {name: _as_text(one) for name, one in part().items()}


def _measured() -> dict[str, Number]:
    """Return speeds, lengths and acceptance of examples that were decoded alone, and in batches of two."""
    found: dict[str, Number] = {}
    for case, rows in (("alone", 1), ("in twos", 2)):
        plain, drafting = plain_arm(rows), drafting_arm(rows)
        numbers: dict[str, Number] = {
            "speed-up": of_run.speedup(plain, drafting),
            "best speed-up of five": of_run.speedup(plain, drafting, 5),
            "speed-up of rounds": of_run.decode_speedup(plain, drafting),
            "tokens a second": of_run.tokens_per_s(drafting),
            "milliseconds a token": of_run.ms_per_token(drafting),
            "memory access": of_run.memory_access_factor(plain, drafting),
            "outputs that are equal": of_run.equal_frac(plain, _partly(drafting, plain)),
            "MiB": of_run.peak_mib(drafting, rows),
            "rows decoded together": str([len(batch) for batch in of_run.decoded_together(drafting, rows)]),
        }
        found |= {f"{name}, {case}": one for name, one in numbers.items()}
    arm, task = drafting_arm(1), get_task("text")
    return found | {
        "outputs that equal themselves": of_run.equal_frac(arm, arm),
        "operations": of_run.operations_factor(arm),
        "tokens of an arm": str(of_run.num_tokens(arm)),
        "repetition": of_run.repetition_frac(arm),
        "matches of tokens 2 to 4": pipelines.match_rate(arm, "N", 3, 2, range(1, 4)),
        **{f"all of an arm: {name}": one for name, one in of_run.all_metrics(task, arm).items()},
        **{f"all of one example: {name}": one for name, one in of_run.all_metrics(task, arm[:1]).items()},
    }


def _run() -> dict[str, Number]:
    """Return what a run prints of an arm beside its plain one, of which two drafters' overlaps were measured."""
    base = plain_decoding(0, 1, 1, "text", "llama-target", 1.0)
    plain, method = drafted(base, drafted_by("llama-draft"), rule="lenience", lenience=0.3).arms
    probes = (OverlapProbe(drafter=DrafterSpec(kind="copy")), *plain.probes, MemoryProbe())
    told = peers.measured(
        (plain, plain_arm(1)), drafting_arm(1), {"it": (method, _slower(drafting_arm(1), 1.2))}, lambda *_: {}
    )
    labels = [probe.drafter.label for probe in probes if isinstance(probe, OverlapProbe)]
    measured = [replace(one, overlap=[_overlap(label, one) for label in labels]) for one in plain_arm(1)]
    arms = (plain.replace(probes=probes), method.replace(probes=(MemoryProbe(),)))
    made = of_run.measure_run(Comparison(arms), [measured, drafting_arm(1)])
    found: dict[str, Number] = {f"a run: {name.replace(labels[-1], 'its draft')}": one for name, one in made.items()}
    found |= {"a peer over plain decoding": told[0].over_plain, "an arm over a peer": told[0].ours_over_it}
    for execution in ("simulated", "batched"):
        piped = base.replace(method=MethodSpec.of("ppd", early_layer=4, execution=execution))
        made = of_run.measure_run(Comparison((base, piped)), [plain_arm(1), _pipeline()])
        found |= {f"a run, {execution}: {name}": made[name] for name in ("latency_s", "speedup", "slower_layers_ms")}
    return found


def _scored() -> dict[str, Number]:
    """Return scores and their intervals of examples that were repeated and of replicas, and of a single example."""
    found: dict[str, Number] = {}
    for name in SCORED:
        task = get_task(name)
        scores: list[dict[str, Any]] = [dict(task.statistics(Example("", {}, (REFERENCE,)), one)) for one in SAID]
        arm = [replace(one, statistics=scores[place * place % 4]) for place, one in enumerate(plain_arm(1))]
        for case, part in (("all", arm), ("one replica", arm[: REPEATS * EXAMPLES]), ("two", arm[:2]), ("one", arm[:1])):
            found |= {f"{metric} of {name}, {case}": one for metric, one in of_run.of_task(task, part).items()}
    return found


def _piped() -> dict[str, Number]:
    """Return the account of a pipeline beside plain arms of two threads and of one, by the clock and simulated."""
    found: dict[str, Number] = {}
    for case, simulated in (("", False), (", simulated", True)):
        account = pipelines.account([plain_arm(1), _slower(plain_arm(1), 1.3)], _pipeline(), LAYERS, simulated)
        assert isinstance(account, pipelines.Account), account
        found |= {f"a pipeline's {name}{case}": one for name, one in account.estimates.items()}
    for case, arm in (("", _pipeline()), (", all right", _pipeline(always=True))):
        found |= {f"untimed {name}{case}": one for name, one in pipelines.untimed(arm, LAYERS).items()}
    return found


def _refused() -> dict[str, Number]:
    """Return why times are not compared, on either side of each border."""
    plain, drafting = plain_arm(1)[: REPEATS * EXAMPLES], drafting_arm(1)[: REPEATS * EXAMPLES]
    half = len(plain) // 2
    spoiled: dict[str, Callable[[int, Record], Record]] = {
        "a bug": lambda place, one: replace(one, divergence=_parted("bug")) if place == 3 else one,
        "near-ties": lambda _, one: replace(one, divergence=_parted("near-tie")),
        "two unresolved": lambda place, one: replace(one, divergence=_parted("unresolved")) if place < 2 else one,
        "three unresolved": lambda place, one: replace(one, divergence=_parted("unresolved")) if place < 3 else one,
        "a drift of 35 %": lambda place, one: _with_times(one, 1.35 if place >= half else 1.0),
        "a drift of 60 %": lambda place, one: _with_times(one, 1.6 if place >= half else 1.0),
        "slow examples": lambda place, one: _with_times(one, 3.0 if place % 4 == 0 else 1.0),
        "a process that grows quicker": lambda place, one: replace(
            _with_times(one, 0.3 if half // 2 <= place < half else 1.0), run=f"{place >= half}"
        ),
        "slow examples of one of two processes": lambda place, one: replace(
            _with_times(one, 3.0 if place % 4 == 0 and place < half else 1.0), run=f"{place >= half}"
        ),
        "a processor for 65 %": lambda _, one: replace(one, on_processor_frac=0.65),
        "a processor for 75 %": lambda _, one: replace(one, on_processor_frac=0.75),
        "another process": lambda _, one: replace(one, run="another"),
        "a stop": lambda place, one: replace(one, run="later" if place > half else one.run),
        "two processes by turns": lambda place, one: replace(one, run="later" if place % 2 else one.run),
    }
    found: dict[str, Number] = {}
    for name, spoil in spoiled.items():
        odd = [spoil(place, one) for place, one in enumerate(drafting)]
        found[f"{name} in an arm"] = pairing.incomparable(plain, odd)
        if len({one.run for one in odd}) == 2:
            found[f"{name} in both"] = pairing.disturbed(odd)
        found[f"{name} in the plain one"] = pairing.incomparable([spoil(*one) for one in enumerate(plain)], drafting)
    for torn in (1, 2):
        cuts = (half, half + torn)
        stopped, further = ([replace(one, run=f"{place >= cut}") for place, one in enumerate(plain)] for cut in cuts)
        found[f"{torn} torn by a stop"] = pairing.torn(stopped, further)
    return found


def _viewed() -> dict[str, Number]:
    """Return what frames, logs, advice and benches read off an arm, and a peer beside plain times that are refused."""
    arm = [replace(one, overlap=[_overlap("copy", one)]) for one in drafting_arm(1)]
    undrafted = replace(arm[0], steps=Steps.of([Step([], 0, 1), Step([5, 6], 1, 2), Step([7], 0, 1), Step([], 0, 1)]))
    plain, method = drafted(plain_decoding(0, 1, 1, "text", "llama-target", 1.0), drafted_by("llama-draft")).arms
    spoiled = [replace(one, on_processor_frac=0.5) for one in plain_arm(1)]
    [peer] = peers.measured((plain, spoiled), arm, {"it": (method, _slower(drafting_arm(1), 1.2))}, lambda *_: {})
    stands, empty = [True, True, False, True, True, True], [False, False, False, False, True, False]
    return {
        **{f"rows of {name}": hashed(list(frames.ROWS[name][1](arm[0]))) for name in ("overlap", "drafts", "steps")},
        "histograms of a log": str(Log(method, [undrafted]).histograms),
        "rounds of a text by advice": str([predict.replayed(stands, empty, 3, budget) for budget in (9, 6, 4)]),
        "a text's budget by advice": str([budget_of(replace(undrafted, stop_reason=why), 9) for why in ("length", "eos")]),
        "rounds without a draft to advice": f"{empty_share([undrafted]):.6f}",
        "rounds of a bench": str(bench.num_rounds(arm)),
        "ours over a peer beside refused times": "refused" if isinstance(peer.ours_over_it, Missing) else "shown",
    }


def plain_arm(rows: int) -> list[Record]:
    """Return plain decoding's records, decoded ``rows`` at a time."""
    found = []
    for replica, repeat, number in product(range(len(REPLICAS)), range(REPEATS), range(EXAMPLES)):
        place = number + 3 * repeat + 5 * replica
        steps = [Step([], 0, 1, round_s=0.1 + 0.004 * (place % 5))] * (8 + place % 4)
        found.append(_record(replica, repeat, number, rows, steps))
    return found


def drafting_arm(rows: int) -> list[Record]:
    """Return those of an arm that drafts, of which one example failed."""
    found = []
    for replica, repeat, number in product(range(len(REPLICAS)), range(REPEATS), range(EXAMPLES)):
        place = number + 2 * repeat + 3 * replica
        steps = [
            Step(
                [5, 6, 7], stand, stand + 1, target_probs=[0.4, 0.2, 0.9], draft_probs=[0.5, 0.1, 0.9], draft_s=0.02,
                verify_s=0.12, round_s=0.15 + 0.005 * (place % 7),
            )
            for stand in ((place + turn) % 4 for turn in range(8 + place % 3))
        ]  # fmt: skip
        one = _record(replica, repeat, number, rows, steps)
        one = replace(one, early=[EarlyRanks(head="N", layer=3, ranks=[(place * turn) % 5 for turn in range(2 + place % 4)])])
        failed = Record(signature=one.signature, example=one.example, repeat=repeat, status="failed", error="why", run=one.run)
        found.append(failed if (replica, repeat, number) == (1, 0, 7) else one)
    return found


def _pipeline(always: bool = False) -> list[Record]:
    """Return those of a pipeline, which guesses in all rounds but each text's last; ``always``: and is always right."""
    found = []
    for replica, repeat, number in product(range(len(REPLICAS)), range(REPEATS), range(EXAMPLES)):
        place, steps = number + 3 * repeat + 5 * replica, list[Step]()
        for turn in range(9 + place % 4):
            spared = bool(steps) and steps[-1].matched is True
            hit = None if turn == 8 + place % 4 else always or (place + turn) % 3 != 0
            spent = dict.fromkeys(PARTS, 0.002 + 0.0001 * (place % 5)) | {
                "early_layers": 0.0 if spared else 0.04, "early_head": 0.01 + 0.001 * (place % 3), "late_layers": 0.05,
                "head": 0.02,
            }  # fmt: skip
            parts = [spent[name] for name in PARTS]
            guesses = [] if hit is None else [1]
            steps.append(Step([], 0, 1, round_s=sum(parts), early_layer=4, parts=parts, matched=hit, candidates=guesses))
        found.append(_record(replica, repeat, number, 1, steps))
    return found


def _record(replica: int, repeat: int, number: int, rows: int, steps: list[Step]) -> Record:
    """Make a record whose batch took the time of its first example's rounds, of prompts, and a twentieth of a second."""
    first = number - number % rows
    encode_s, rounds_s = 0.3 + 0.02 * (first % 5) + 0.05 * repeat, sum(float(one.round_s) for one in steps)
    tokens = [(number + 3 * place + replica) % 4 for place in range(sum(step.emitted for step in steps))]
    return Record(
        signature=REPLICAS[replica],
        example=f"{len(REPLICAS) * number + replica}",
        repeat=repeat,
        status="ok",
        tokens=tokens,
        stop_reason="length",
        num_rows=rows,
        wall_s=rounds_s + encode_s if rows == 1 else (1.2 + 0.01 * (first % 7) + encode_s) / rows,
        encode_s=encode_s / rows,
        peak_bytes=2**20 * (3 + first % 4),
        nats=0.5 * len(tokens) + 0.1 * (number % 5),
        steps=Steps.of(steps),
        run=f"process {replica}",
    )


def _overlap(label: str, one: Record) -> Overlap:
    own = [OVERLAPS[(place + int(one.example)) % len(OVERLAPS)] for place in range(len(one.tokens or ()))]
    own = [1 - value / 2 for value in own] if label == "copy" else own
    return Overlap(drafter=label, by_lenience={"1.0": own, "0.3": [min(1.0, 1.2 * value) for value in own]})


def _with_times(one: Record, factor: float) -> Record:
    """Return a record all of whose times are as many times as long."""
    assert one.steps is not None or one.status == "failed"
    longer = None if one.steps is None else replace(one.steps, round_s=[factor * seconds for seconds in one.steps.round_s])
    return replace(one, steps=longer, wall_s=None if one.wall_s is None else factor * one.wall_s)


def _slower(arm: list[Record], factor: float) -> list[Record]:
    return [_with_times(one, factor) for one in arm]


def _partly(arm: list[Record], plain: list[Record]) -> list[Record]:
    """Return an arm of which every fifth output is plain decoding's."""
    outputs = {one.key: one.tokens for one in plain}
    return [replace(one, tokens=outputs[one.key]) if place % 5 == 0 else one for place, one in enumerate(arm)]


def _parted(kind: Any) -> Divergence:
    return Divergence(position=0, margin=1.0, bound=0.1, replays_agree=True, kind=kind)


def _as_text(one: Number) -> str:
    if isinstance(one, Missing):
        return f"refused: {numbers_in(one.why)}"
    return one if isinstance(one, str) else with_interval(one)


GROUPS = tuple(partial(_written, part) for part in (_measured, _run, _scored, _piped, _refused, _viewed))
