"""Regression on metrics: a small pinned set, run on the test zoo, held against committed baselines by interval.

Acceptance, match counts, quality, steps and exactness verdicts; never wall-clock. A number moved if its interval and the
baseline's do not overlap, a verdict if it differs at all.
"""

import json
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from harness import pipelines
from harness.audit.of_run import audit
from harness.errors import UsageError
from harness.experiment import Comparison, DrafterSpec, EarlySpec, Experiment, MethodSpec, ModelSpec
from harness.measures import measure_run
from harness.runner import Runner, pin
from harness.typed import parsed
from methods.sampling import Sampling

ROUNDING_FRAC = 1e-3
TIMED = frozenset(pipelines.UNITS) - frozenset(pipelines.UNTIMED)


@dataclass(frozen=True)
class Move:
    """One number or verdict that is not what the baseline has."""

    comparison: str
    metric: str
    baseline: str
    now: str


def pinned_set() -> dict[str, Comparison]:
    """Both families, greedy and sampled, with a model drafter and a counted one, lossless and lenient; pipelines; blocks."""
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
        overlap=(drafter,),
        num_threads=1,
    )


def _comparison(base: Experiment, temperature: float, drafter: DrafterSpec, **method: object) -> Comparison:
    plain = base.replace(sampling=Sampling(temperature=temperature), overlap=(drafter,))
    spec = MethodSpec(name="speculative", drafter=drafter, gamma=3, **method)  # type: ignore[arg-type]
    return Comparison((plain, plain.replace(method=spec, overlap=())))


def _blocks(batch_size: int = 1, **rule: object) -> Comparison:
    base = _pair("wmt-en-de", "specdec-verifier", "specdec-drafter", "t5").replace(batch_size=batch_size, overlap=())
    drafter = DrafterSpec(kind="block", model=ModelSpec(name="zoo:specdec-drafter"))
    spec = MethodSpec(name="speculative", drafter=drafter, gamma=6, **rule)  # type: ignore[arg-type]
    return Comparison((base, base.replace(method=spec)))


def _pipeline(temperature: float, **method: object) -> Comparison:
    """Early ranks of both heads on the plain arm, and the pipeline at half the depth."""
    layers = (10, 20, 30, 35, 37)
    plain = Experiment(
        task="squad",
        profile="test",
        target=ModelSpec(name="zoo:llama-deep"),
        method=MethodSpec(name="autoregressive"),
        sampling=Sampling(temperature=temperature),
        limit=6,
        max_new_tokens=24,
        max_input_tokens=160,
        ignore_eos=True,
        early=(EarlySpec(layers=layers), EarlySpec(layers=layers, heads=ModelSpec(name="zoo:llama-deep-heads"))),
        num_threads=1,
    )
    spec = MethodSpec(name="ppd", early_layer=20, **method)  # type: ignore[arg-type]
    return Comparison((plain, plain.replace(method=spec, early=())))


def measure(runner: Runner) -> dict[str, dict]:
    """Run what is missing of the pinned set: comparison -> {"verdict", "metrics": name -> estimate}."""
    measured = {}
    for name, comparison in pinned_set().items():
        comparison = Comparison(tuple(pin(arm) for arm in comparison.arms))
        runner.run(comparison, name)
        records = [runner.records(arm) for arm in comparison.arms]
        metrics = {
            metric: estimate.as_dict() for metric, estimate in measure_run(comparison, records).items() if metric not in TIMED
        }
        measured[name] = {"verdict": audit(comparison, records, runner)["verdict"], "metrics": metrics}
    return measured


def moves(baseline: dict[str, dict], measured: dict[str, dict]) -> list[Move]:
    """What is new, gone or moved; nothing that is on one side alone passes."""
    found = []
    for name in sorted(baseline.keys() | measured.keys()):
        old, new = baseline.get(name), measured.get(name)
        if old is None or new is None:
            found.append(Move(name, "all", "absent" if old is None else "present", "absent" if new is None else "present"))
            continue
        if old["verdict"] != new["verdict"]:
            found.append(Move(name, "verdict", old["verdict"], new["verdict"]))
        for metric in sorted(old["metrics"].keys() | new["metrics"].keys()):
            before, after = old["metrics"].get(metric), new["metrics"].get(metric)
            if before is None or after is None or not _overlap(before, after):
                found.append(Move(name, metric, _text(before), _text(after)))
    return found


def _overlap(before: dict, after: dict) -> bool:
    low = max(_bound(before, "low", -1), _bound(after, "low", -1))
    high = min(_bound(before, "high", 1), _bound(after, "high", 1))
    return low <= high + 1e-9 and before["n"] == after["n"]


def _bound(estimate: dict, side: str, sign: int) -> float:
    """A number without an interval is arithmetic on one that has one: another processor's rounding moves its last digits."""
    if estimate[side] is not None:
        return estimate[side]
    return estimate["value"] + sign * ROUNDING_FRAC * abs(estimate["value"])


def _text(estimate: dict | None) -> str:
    if estimate is None:
        return "absent"
    spread = "" if estimate["low"] is None else f" [{estimate['low']:.4g}, {estimate['high']:.4g}]"
    return f"{estimate['value']:.4g}{spread} n={estimate['n']}"


def read_baseline(folder: Path) -> dict[str, dict]:
    files = sorted(folder.glob("*.json"))
    if not files:
        raise UsageError(f"baselines {folder}: none there; expected *.json as `foretoken regress --update REASON` writes")
    return {file.stem: _baseline(file) for file in files}


def _baseline(file: Path) -> dict[str, Any]:
    try:
        return dict(parsed(file.read_text(encoding="utf8")))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise UsageError(f"baseline {file}: cannot be read ({error}); expected JSON, as --update writes it") from error


def update_baseline(folder: Path, measured: dict[str, dict], changed: list[Move], reason: str, changelog: Path) -> None:
    """Rewrite the baselines and say why in the changelog."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in folder.glob("*.json"):
        if file.stem not in measured:
            file.unlink()
    for name, values in measured.items():
        (folder / f"{name}.json").write_text(json.dumps(values, indent=1, sort_keys=True) + "\n", encoding="utf8")
    lines = "".join(f"  - {move.comparison}, {move.metric}: {move.baseline} became {move.now}\n" for move in changed)
    entry = f"- {date.today().isoformat()} regression baselines: {reason}\n{lines}"
    text = changelog.read_text(encoding="utf8") if changelog.exists() else "# Changelog\n"
    marker = "## Numbers that moved\n"
    if marker not in text:
        text = text.rstrip("\n") + f"\n\n{marker}\n"
    changelog.write_text(text.replace(marker + "\n", f"{marker}\n{entry}", 1), encoding="utf8")
