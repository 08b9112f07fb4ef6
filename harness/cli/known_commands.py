"""Known answers of the command line: which experiments some commands ask for, and what is said of the arms that they record."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from harness.cli.main import parser
from harness.cli.run_experiments import arms_asked_for
from harness.cli.run_judged import rates, status_of, why_refused
from harness.core.experiment import Comparison
from harness.report.baseline import FAILED, OUTPUT, Baseline
from harness.report.holding import judge
from harness.report.known import arms
from harness.report.known.values import hashed, numbers_in, told
from harness.report.pinned import plain_decoding

EXAMPLES, ITS_MACHINE, ANOTHER = 100, "its processor", "another"
DRAFTED = "--method speculative --target zoo:gpt-target --draft zoo:gpt-draft"
PIPED = "--method ppd --target zoo:llama-deep"
COMMANDS = {
    "sampling": f"{DRAFTED} --temperature 0.7 --top-k 7 --top-p 0.9 --seed 9 --repeats 3 --ignore-eos",
    "sizes": f"{DRAFTED} --limit 9 --batch-size 3 --max-new-tokens 33 --max-input-tokens 44 --threads 1 --memory",
    "a place": f"{DRAFTED} --profile test --device cpu --dtype bfloat16 --graphs on --chat-template --data toy",
    "a template": f"{DRAFTED} --gamma 4 --prompt-template a{{prompt}}b",
    "a lenience": f"{DRAFTED} --lenience 0.3 --as-described --schedule heuristic --gamma 3",
    "typical": f"{DRAFTED} --rule typical --epsilon 0.2 --delta 0.4 --schedule optimal --alpha 0.6 --cost 0.2",
    "sigmoids": f"{DRAFTED} --rule sigmoid --scale 20 --half-logits --device-map auto",
    "copies": "--method speculative --target zoo:gpt-target --drafter suffix --match-factor 2.5 --min-share 0.3",
    "own layers": "--method speculative --target zoo:gpt-target --drafter first-layers --draft-layers 2",
    "drafts that are drafted for": f"{DRAFTED} --drafter hierarchical --inner-draft zoo:gpt-draft --inner-gamma 3",
    "other words": f"{DRAFTED} --drafter tli --draft-tokens 300",
    "beams": "--method speculative-beam --target zoo:t5-base --draft zoo:t5-small --num-beams 4 --draft-beams 2",
    "blocks": (
        "--method speculative --target zoo:specdec-verifier --draft zoo:specdec-drafter --drafter block --encoder shared "
        "--rule top-beta --beta 4 --tau 2.5 --score as_described"
    ),
    "a pipeline": f"{PIPED} --early-layer 20 --candidates 3 --execution batched --match-layers 25,30",
    "heads": f"{PIPED} --early-layer 25 --candidates 1 --heads zoo:llama-deep-heads",
}


def answers() -> dict[str, str]:
    """Return hashes of the experiments, the speeds of arms, and exit statuses."""
    found = {f"{name} asked for": hashed(_described(words.split())) for name, words in COMMANDS.items()}
    plain, drafting = arms.plain_arm(1), arms.drafting_arm(1)
    found |= {name: told(one) for name, one in rates([plain, drafting]).items()}
    for many in range(3):
        failed = [replace(one, status="failed", error="RuntimeError: x") for one in plain[:many]]
        broken = [*failed, *plain[many:4]]
        for verdict in ("identical", "bug"):
            statuses = [status_of(both, {"audit": {"verdict": verdict}}) for both in ((plain, broken), (broken, plain))]
            found[f"exit status, {many} of 4 failed, {verdict}"] = str(statuses)
    spoiled = [replace(one, on_processor_frac=0.5) for one in plain]
    for name, first, second in (("neither", plain, plain), ("the first", spoiled, plain), ("the second", plain, spoiled)):
        why = why_refused([first, second, drafting]) or ""
        found[f"no speed where {name} of two baselines was disturbed"] = numbers_in(why)
    return found | _held()


def _held() -> dict[str, str]:
    """Return what is said of a pair beside its baseline: on its own machine, on another, and with a new draft."""
    was = [0.5 + place % 7 / 20 for place in range(EXAMPLES)]
    cases: dict[str, tuple[list[float], int, int]] = {  # alpha now, how many outputs part, how many examples fail
        "nothing moved": (was, 0, 0),
        "an example moved": ([one + 0.1 * (place == 3) for place, one in enumerate(was)], 1, 0),
        "all moved, up as down": ([one + 0.1 * (-1) ** (place // 2) for place, one in enumerate(was)], 0, 0),
        "all moved down": ([one - 0.01 * (1 + place % 3) for place, one in enumerate(was)], 0, 0),
        "outputs parted as by rounding": (was, 8, 0),
        "outputs parted": (was, 16, 0),
        "an example failed": (was, 0, 1),
    }
    before, found = _baseline(was), dict[str, str]()
    for name, given in cases.items():
        here, there = _baseline(*given), _baseline(*given, processor=ANOTHER)
        found[f"held, {name}"] = "; ".join(
            [_judged(before, here), _judged(before, there), _judged(before, here, new_draft=True)]
        )
    for verdict in ("near-tie", "bug"):
        held = [_judged(before, _baseline(was, verdict=verdict, processor=one)) for one in (ITS_MACHINE, ANOTHER)]
        found[f"held, its verdict {verdict}"] = "; ".join(held)
    now = _baseline(was, 1, dtype="float64", processor=ANOTHER)
    found["held, of twice the digits"] = _judged(_baseline(was, dtype="float64"), now)
    return found


def _baseline(
    alpha: Sequence[float],
    parted: int = 0,
    failed: int = 0,
    *,
    processor: str = ITS_MACHINE,
    dtype: str = "float32",
    verdict: str = "identical",
) -> Baseline:
    """Make what was measured of a pair, of whose outputs the first few part or failed."""
    examples = {
        f"{place}": {"alpha": one, FAILED: float(place < failed), OUTPUT: "another" if place < parted else "the same"}
        for place, one in enumerate(alpha)
    }
    metrics = {"alpha": sum(alpha) / len(alpha), FAILED: failed / len(alpha)}
    measured = {"verdict": verdict, "weights": "", "metrics": metrics, "intervals": {}, "examples": examples}
    plain = plain_decoding(0, 1, 1, "text", "llama-target").replace(dtype=dtype)
    return Baseline(comparison=Comparison((plain,)), machine={"processor": processor}, measured=measured)


def _judged(before: Baseline, now: Baseline, new_draft: bool = False) -> str:
    """Return what differs and counts, with differences and chances, and whether any difference is a change."""
    found = judge(Path("known"), before, now, new_draft)
    changes = [f"{one.move.metric} {one.counts} {numbers_in(one.as_text())}" for one in found.changes]
    return f"{found.moved} {'strict' if 'any difference' in found.summary else 'tested'} {changes}"


def _described(words: Iterable[str]) -> list[str]:
    asked = parser("run").parse_args(["run", "--task", "text", *words])
    return [f"{arm.to_json()} {arm.num_threads} {[one.to_json() for one in arm.probes]}" for arm in arms_asked_for(asked).arms]
