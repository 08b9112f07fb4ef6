"""Regression of metrics: run a small pinned set on the test zoo and compare its intervals with committed baselines.

The metrics are acceptance, match counts, quality, steps and exactness verdicts, never wall-clock. A number moved if its
interval and the baseline's do not overlap; a verdict moved if it differs at all.

Training rounds differently from processor to processor, so the same recipe gives other weights there. A baseline says which
weights it was measured on. On weights that have one, numbers are compared with it alone; on others a number moved if it
parts from every baseline.
"""

import json
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from harness.core.errors import UsageError
from harness.core.experiment import Comparison, DrafterSpec, EarlyProbe, Experiment, MethodSpec, ModelSpec, OverlapProbe
from harness.core.files import parsed
from harness.exact.run_verdict import judge_run
from harness.measures import pipelines
from harness.measures.of_run import measure_run
from harness.models.files import files_hash, zoo_model_folder
from harness.run.build import specs_of
from harness.run.runner import Runner, pin
from kernels.inputs import SamplingSpec

ROUNDING_FRAC = 1e-3
Baselines = dict[str, list[dict]]
TIMED = frozenset(pipelines.UNITS) - frozenset(pipelines.UNTIMED)


@dataclass(frozen=True)
class Move:
    """One number or verdict that differs from the baseline."""

    comparison: str
    metric: str
    baseline: str
    now: str


def pinned_set() -> dict[str, Comparison]:
    """The pinned comparisons: both families, greedy and sampled, several drafters, lossless and lenient; PPD; SpecDec."""
    t5 = _pair("wmt-en-de", "t5-xxl", "t5-small", "t5")
    gpt = _pair("text", "gpt-target", "gpt-draft", "instruction")
    ngram = DrafterSpec(kind="bigram", model=ModelSpec(name="zoo:ngram-gpt"))
    return {
        "t5-greedy": _comparison(t5, 0.0, t5.overlap[0]),
        "t5-sampled": _comparison(t5, 1.0, t5.overlap[0]),
        "gpt-greedy": _comparison(gpt, 0.0, gpt.overlap[0], schedule="heuristic"),
        "gpt-sampled-batch": _comparison(gpt.replace(batch_size=4), 1.0, gpt.overlap[0]),
        "gpt-bigram": _comparison(gpt, 1.0, ngram),
        "gpt-copy": _comparison(gpt, 0.0, DrafterSpec(kind="copy")),
        "gpt-lenient": _comparison(gpt, 1.0, gpt.overlap[0], rule="lenience", lenience=0.3),
        "ppd-greedy": _pipeline(0.0, candidates=1, execution="process"),
        "ppd-sampled-heads": _pipeline(1.0, candidates=3, execution="batched", heads=ModelSpec(name="zoo:llama-deep-heads")),
        "specdec-strict": _blocks(rule="top-1"),
        "specdec-relaxed-batch": _blocks(batch_size=4, rule="top-beta", beta=3, tau=1.0),
    }


def _pair(task: str, target: str, draft: str, style: str) -> Experiment:
    drafter = DrafterSpec(kind="model", model=ModelSpec(name=f"zoo:{draft}"))
    return Experiment(
        task=task,
        profile="test",
        target=ModelSpec(name=f"zoo:{target}"),
        method=MethodSpec(name="autoregressive"),
        limit=12,
        max_new_tokens=24,
        max_input_tokens=64,
        prompt_style=style,
        probes=(OverlapProbe(drafter=drafter),),
        num_threads=1,
    )


def _comparison(base: Experiment, temperature: float, drafter: DrafterSpec, **method: object) -> Comparison:
    plain = base.replace(sampling=SamplingSpec(temperature=temperature), probes=(OverlapProbe(drafter=drafter),))
    spec = MethodSpec.of("speculative", drafter=drafter, gamma=3, **method)  # type: ignore[arg-type]
    return Comparison((plain, plain.replace(method=spec, probes=())))


def _blocks(batch_size: int = 1, **rule: object) -> Comparison:
    base = _pair("wmt-en-de", "specdec-verifier", "specdec-drafter", "t5").replace(batch_size=batch_size, probes=())
    drafter = DrafterSpec(kind="block", model=ModelSpec(name="zoo:specdec-drafter"))
    spec = MethodSpec.of("speculative", drafter=drafter, gamma=6, **rule)  # type: ignore[arg-type]
    return Comparison((base, base.replace(method=spec)))


def _pipeline(temperature: float, **method: object) -> Comparison:
    """Plain decoding with the early ranks of both heads, and the pipeline at half the depth."""
    layers = (10, 20, 30, 35, 37)
    plain = Experiment(
        task="squad",
        profile="test",
        target=ModelSpec(name="zoo:llama-deep"),
        method=MethodSpec(name="autoregressive"),
        sampling=SamplingSpec(temperature=temperature),
        limit=6,
        max_new_tokens=24,
        max_input_tokens=160,
        ignore_eos=True,
        probes=(EarlyProbe(layers=layers), EarlyProbe(layers=layers, heads=ModelSpec(name="zoo:llama-deep-heads"))),
        num_threads=1,
    )
    spec = MethodSpec.of("ppd", early_layer=20, **method)  # type: ignore[arg-type]
    return Comparison((plain, plain.replace(method=spec, probes=())))


def measure(runner: Runner) -> dict[str, dict]:
    """Run what is missing of the pinned set: comparison -> {"verdict", "weights", "metrics": name -> estimate}."""
    measured = {}
    for name, comparison in pinned_set().items():
        comparison = Comparison(tuple(pin(arm) for arm in comparison.arms))
        runner.run(comparison, name)
        records = [runner.records(arm) for arm in comparison.arms]
        metrics = {
            metric: estimate.as_dict() for metric, estimate in measure_run(comparison, records).items() if metric not in TIMED
        }
        verdict = judge_run(comparison, records, runner.with_models)["verdict"]
        measured[name] = {"verdict": verdict, "weights": weights_hash(comparison), "metrics": metrics}
    return measured


def weights_hash(comparison: Comparison) -> str:
    """sha256 (16 digits) over the weights of the zoo's models in a comparison."""
    folders = {zoo_model_folder(spec) for arm in comparison.arms for spec in specs_of(arm)}
    return files_hash(sorted(file for folder in folders for file in folder.glob("*.safetensors")))


def moves(baselines: Baselines, measured: dict[str, dict]) -> list[Move]:
    """List what is new, gone or moved."""
    found = []
    for name in sorted(baselines.keys() | measured.keys()):
        old, new = baselines.get(name), measured.get(name)
        if old is None or new is None:
            found.append(Move(name, "all", "absent" if old is None else "present", "absent" if new is None else "present"))
        else:
            found += _moves_of(name, [one for one in old if one["weights"] == new["weights"]] or old, new)
    return found


def _moves_of(name: str, olds: list[dict], new: dict) -> list[Move]:
    """List the verdict and the numbers of a comparison that part from each of its baselines."""
    found = []
    if all(old["verdict"] != new["verdict"] for old in olds):
        found.append(Move(name, "verdict", olds[0]["verdict"], new["verdict"]))
    for metric in sorted({*new["metrics"], *(known for old in olds for known in old["metrics"])}):
        before, after = [old["metrics"].get(metric) for old in olds], new["metrics"].get(metric)
        if after is None or not any(one is not None and _overlap(one, after) for one in before):
            found.append(Move(name, metric, " or ".join(map(_text, before)), _text(after)))
    return found


def _overlap(before: dict, after: dict) -> bool:
    low = max(_bound(before, "low", -1), _bound(after, "low", -1))
    high = min(_bound(before, "high", 1), _bound(after, "high", 1))
    return low <= high + 1e-9 and before["n"] == after["n"]


def _bound(estimate: dict, side: str, sign: int) -> float:
    """A bound of an estimate. One without an interval is derived from another: a processor's rounding moves its last digits."""
    if estimate[side] is not None:
        return estimate[side]
    return estimate["value"] + sign * ROUNDING_FRAC * abs(estimate["value"])


def _text(estimate: dict | None) -> str:
    if estimate is None:
        return "absent"
    spread = "" if estimate["low"] is None else f" [{estimate['low']:.4g}, {estimate['high']:.4g}]"
    return f"{estimate['value']:.4g}{spread} n={estimate['n']}"


def read_baseline(folder: Path) -> Baselines:
    """Read every comparison's baselines, one for each set of weights that it was measured on."""
    files = sorted(folder.glob("*.json"))
    if not files:
        raise UsageError(f"baselines {folder}: none there; expected *.json as `foretoken regress --update REASON` writes")
    return {file.stem: _baseline(file) for file in files}


def _baseline(file: Path) -> list[dict[str, Any]]:
    try:
        found = [dict(one) for one in parsed(file.read_text(encoding="utf8"))]
        if not all({"verdict", "weights", "metrics"} <= one.keys() for one in found):
            raise ValueError("no list of verdict, weights and metrics")
        return found
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise UsageError(f"baseline {file}: cannot be read ({error}); expected JSON, as --update writes it") from error


def update_baseline(folder: Path, measured: dict[str, dict], changed: list[Move], reason: str, changelog: Path) -> None:
    """Rewrite the baselines, and note the moved numbers and the reason in the changelog.

    A baseline of other weights is kept, unless numbers moved from the one of these weights: then it is of code that is gone.
    """
    folder.mkdir(parents=True, exist_ok=True)
    kept = read_baseline(folder) if any(folder.glob("*.json")) else {}
    known = {
        name for name, values in measured.items() if any(one["weights"] == values["weights"] for one in kept.get(name, []))
    }
    stale = known & {move.comparison for move in changed}
    for file in folder.glob("*.json"):
        if file.stem not in measured:
            file.unlink()
    for name, values in measured.items():
        others = [one for one in kept.get(name, []) if name not in stale and one["weights"] != values["weights"]]
        text = json.dumps([values, *others], indent=1, sort_keys=True) + "\n"
        (folder / f"{name}.json").write_text(text, encoding="utf8")
    lines = "".join(f"  - {move.comparison}, {move.metric}: {move.baseline} became {move.now}\n" for move in changed)
    entry = f"- {date.today().isoformat()} regression baselines: {reason}\n{lines}"
    text = changelog.read_text(encoding="utf8") if changelog.exists() else "# Changelog\n"
    marker = "## Numbers that moved\n"
    if marker not in text:
        text = text.rstrip("\n") + f"\n\n{marker}\n"
    changelog.write_text(text.replace(marker + "\n", f"{marker}\n{entry}", 1), encoding="utf8")
