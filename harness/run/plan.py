"""What a plan of comparisons would take; and its run, with notes for tables and figures (harness.core.notes)."""

import json
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from harness.core import plugins
from harness.core.errors import Unavailable
from harness.core.experiment import Comparison, Experiment, ModelSpec
from harness.core.jobs import run_apart
from harness.core.notes import Notes
from harness.core.record_files import RecordFile
from harness.measures.pairing import succeeded
from harness.measures.statistics import Missing
from harness.models.files import weights_of
from harness.models.fit import estimate
from harness.models.names import is_ngram_table
from harness.run.build import heads_of, specs_of
from harness.run.prompts import examples_of
from harness.run.runner import Runner, ensure_models, fetch_models, note_facts, pin
from harness.zoo.cache import is_complete, model_folder
from harness.zoo.recipes import recipe_hash, scale_of
from tasks.base import DataError

BYTES_PER_TOKEN = 60  # of a record with steps and overlap, as measured on the zoo
MEGABYTE = 1e6
COMMAND = "comet-score"
CHECKPOINT = "Unbabel/wmt20-comet-da"  # the paper's, under the name that the Hub has it by


def pin_arms(comparison: Comparison) -> Comparison:
    return Comparison(tuple(pin(arm) for arm in comparison.arms))


def known_arms(plan: Iterable[Comparison]) -> list[Comparison]:
    """Pin the comparisons whose models are at hand; of others it is printed which model they wait for."""
    found, waiting = list[Comparison](), dict[str, int]()
    for comparison in plan:
        try:
            found.append(pin_arms(comparison))
        except Unavailable as error:
            waiting[str(error)] = waiting.get(str(error), 0) + sum(arm.num_runs for arm in comparison.arms)
    for why, runs in waiting.items():
        print(f"{runs} runs wait for {why}; --reproduce does it, too")
    return found


def run_plan(plan: Sequence[Comparison], runner: Runner, scores: Sequence[str] = ()) -> None:
    """Run every comparison that is not complete, then let models score outputs (``scores``: "comet").

    Replicas run after what has none, each in a process of its own. A complete comparison costs a look at its records. A model
    or data set that cannot be had from the Hub stops its own comparison only, and the reason is noted.
    """
    notes, missing = Notes(runner.folder), []
    fetch_models(arm for comparison in plan for arm in comparison.arms)
    for comparison in plan:
        with _reason_noted(notes, comparison):
            pinned = pin_arms(comparison)
            for arm, known in zip(comparison.arms, pinned.arms, strict=True):
                notes.note_pin(arm, known)
            if runner.is_complete(pinned):
                first = pinned.arms[0]
                note_facts(notes, pinned, [] if notes.text_file(first).exists() else examples_of(first))
                _score(notes, pinned, runner, scores)
            else:
                missing.append((comparison, pinned))
    if not missing:
        return
    ensure_models(arm for _, pinned in missing for arm in pinned.arms)
    for replica in sorted(
        {comparison.replica for comparison, _ in missing}, key=lambda number: -1 if number is None else number
    ):
        own = [pair for pair in missing if pair[0].replica == replica]
        if replica is None or not runner.starts_processes:
            _run_all(own, runner, scores)
        else:
            run_apart(f"replica {replica}", partial(_run_all, own, runner, scores, tuple(plugins.files())))


def _run_all(
    missing: Sequence[tuple[Comparison, Comparison]], runner: Runner, scores: Sequence[str], files: Sequence[str] = ()
) -> None:
    """Run comparisons, each as planned and as pinned; ``files`` are those of plug-ins that a new process must load."""
    plugins.load(files)
    notes = Notes(runner.folder)
    for number, (comparison, pinned) in enumerate(missing, start=1):
        first = pinned.arms[0]
        part = "" if first.replica is None else f" replica {first.replica + 1} of {first.replicas}"
        with _reason_noted(notes, comparison):
            runner.run(pinned, f"[{number}/{len(missing)}]{part} {first.task} t={first.sampling.temperature:g}")
            _score(notes, pinned, runner, scores)


@contextmanager
def _reason_noted(notes: Notes, comparison: Comparison) -> Iterator[None]:
    """Note why a comparison cannot be run, and go on with the next one."""
    try:
        yield
    except Unavailable as error:
        notes.note_unavailable(comparison.arms, str(error))
    except DataError as error:
        if comparison.arms[0].source != "hub":
            raise
        notes.note_unavailable(comparison.arms, str(error))


def _score(notes: Notes, pinned: Comparison, runner: Runner, scores: Sequence[str]) -> None:
    """Score outputs by the models that are installed."""
    for arm in pinned.arms if "comet" in scores and is_comet_installed() else ():
        _score_by_comet(notes, arm, runner)


def _score_by_comet(notes: Notes, arm: Experiment, runner: Runner) -> None:
    """Score the outputs of an experiment's first repeat by COMET, unless these very outputs are scored."""
    outputs = {record.example: record.text or "" for record in succeeded(runner.records(arm)) if record.repeat == 0}
    if set(notes.scores(arm, "comet").get("scores", ())) == set(outputs):
        return
    examples = [example for example in examples_of(arm) if example.id in outputs]
    scores = comet_scores(
        tuple(one.inputs["source"] for one in examples),
        tuple(outputs[one.id] for one in examples),
        tuple(one.references[0] for one in examples),
    )
    found: Mapping[str, Any] = (
        {"scores": {one.id: score for one, score in zip(examples, scores, strict=True)}}
        if isinstance(scores, list)
        else {"failed": scores.why}
    )
    notes.note_scores(arm, "comet", {"model": CHECKPOINT, **found})


def is_comet_installed() -> bool:
    return shutil.which(COMMAND) is not None


def comet_scores(sources: tuple[str, ...], outputs: tuple[str, ...], references: tuple[str, ...]) -> list[float] | Missing:
    """Score sentences by COMET (Rei et al. 2020); refused with the command's last line where it fails.

    unbabel-comet 2.2 needs transformers below 5, numpy below 2 and huggingface-hub below 1, so it cannot be installed beside
    this project and is no extra of it: what is called is its command ``comet-score``, wherever the PATH has it.
    """
    with TemporaryDirectory() as folder:
        names = {"source": sources, "output": outputs, "reference": references}
        files = {name: _write(Path(folder) / name, texts) for name, texts in names.items()}
        scores = Path(folder) / "scores.json"
        command = [COMMAND, "-s", files["source"], "-t", files["output"], "-r", files["reference"], "--model", CHECKPOINT]
        done = subprocess.run(
            [*command, "--gpus", "0", "--only_system", "--quiet", "--to_json", str(scores)], capture_output=True, text=True
        )
        if done.returncode != 0 or not scores.is_file():
            lines = (done.stderr or done.stdout).strip().splitlines()
            return Missing(f"{COMMAND} failed: {lines[-1].strip() if lines else f'exit status {done.returncode}'}")
        return [float(row["COMET"]) for row in json.loads(scores.read_text(encoding="utf8"))[files["output"]]]


def _write(path: Path, texts: Sequence[str]) -> str:
    """Write one sentence a line."""
    path.write_text("".join(" ".join(text.split()) + "\n" for text in texts), encoding="utf8")
    return str(path)


def print_plan(comparisons: Iterable[Comparison], folder: Path) -> None:
    """One line a comparison and a model; what cannot be known without running prints as unknown."""
    arms = [arm for comparison in comparisons for arm in comparison.arms]
    tokens = 0
    for arm in arms:
        stored = RecordFile(folder, arm).read()
        runs = arm.num_runs
        tokens += max(runs - len(stored), 0) * arm.max_new_tokens
        print(f"{arm.signature}  {_line(arm)}: {len(stored)} of {runs} runs recorded")
    named = {spec: arm for arm in arms for spec in specs_of(arm)}
    for spec, arm in named.items():
        print(_model_line(spec, arm))
    print(f"to generate: at most {tokens} tokens; records: about {tokens * BYTES_PER_TOKEN / MEGABYTE:.1f} MB in {folder}")
    print(f"time: {_time(arms, folder, tokens)}")


def _line(arm: Experiment) -> str:
    method = arm.method.name if arm.method.drafter is None else f"{arm.method.name} with {arm.method.drafter.label}"
    return f"{arm.task} on {arm.source}, {arm.target.name}, {method}, temperature {arm.sampling.temperature:g}"


def _model_line(spec: ModelSpec, arm: Experiment) -> str:
    if spec.zoo_name is not None:
        name, scale = spec.zoo_name, scale_of(arm.profile)
        cached = is_complete(model_folder(name, recipe_hash(name, scale, arm.source)))
        state = "cached" if cached else "to be trained here, seconds to minutes"
    elif is_ngram_table(spec):
        state = "local"
    else:
        state = weights_of(spec) or ""
    if is_ngram_table(spec):
        return f"model {spec.name}: counted n-grams, {state}"
    if spec in heads_of(arm):
        return f"heads {spec.name}: trained heads of {arm.target.name}, {state or 'local'}"
    size = estimate(spec, arm.dtype, scale_of(arm.profile), arm.source)
    gated = ", gated: set HF_TOKEN" if size.gated else ""
    parameters = "unknown" if size.num_parameters is None else f"{size.num_parameters / 1e6:.1f} M"
    return (
        f"model {spec.name}: {parameters} parameters, memory {_megabytes(size.memory_bytes)}, "
        f"download {_megabytes(size.download_bytes)}{gated}{', ' + state if state else ''}"
    )


def _megabytes(count: int | None) -> str:
    return "unknown" if count is None else f"{count / MEGABYTE:.1f} MB"


def _time(arms: list[Experiment], folder: Path, tokens: int) -> str:
    """Estimate the time from records of the same target on this disk, if there are any."""
    if tokens == 0:
        return "nothing is left to run"
    seconds, counted = 0.0, 0
    for arm in arms:
        for record in RecordFile(folder, arm).read():
            seconds += record.wall_s or 0.0
            counted += len(record.tokens or ())
    if counted == 0:
        return "unknown until something of it has been recorded"
    return f"about {seconds / counted * tokens / 60:.1f} minutes, from {counted} recorded tokens"
