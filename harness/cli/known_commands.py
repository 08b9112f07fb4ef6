"""Known answers of the command line: which experiments some commands ask for, and what is said of the arms that they record."""

from collections.abc import Iterable
from dataclasses import replace

from harness.cli.main import parser
from harness.cli.run_experiments import arms_asked_for
from harness.cli.run_judged import rates, status_of
from harness.report.known import arms
from harness.report.known.values import hashed, told

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
    return found


def _described(words: Iterable[str]) -> list[str]:
    asked = parser("run").parse_args(["run", "--task", "text", *words])
    return [f"{arm.to_json()} {arm.num_threads} {[one.to_json() for one in arm.probes]}" for arm in arms_asked_for(asked).arms]
