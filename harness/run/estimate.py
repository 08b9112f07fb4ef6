"""What a run would take, said before it is taken: models, downloads, memory, disk, time."""

from collections.abc import Iterable
from pathlib import Path

from harness.core.experiment import Comparison, Experiment, ModelSpec
from harness.core.record_files import RecordFile
from harness.models.names import estimate, is_ngram_table
from harness.run.build import heads_of, specs_of
from harness.zoo.cache import is_complete, model_folder
from harness.zoo.recipes import ZOO, recipe_hash, scale_of

BYTES_PER_TOKEN = 60  # of a record with steps and overlap, as measured on the zoo
MEGABYTE = 1e6


def print_plan(comparisons: Iterable[Comparison], folder: Path) -> None:
    """One line a comparison and a model; what cannot be known without running prints as unknown."""
    arms = [arm for comparison in comparisons for arm in comparison.arms]
    tokens = 0
    for arm in arms:
        stored = RecordFile(folder, arm).read()
        runs = arm.limit * arm.repeats
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
    if spec.name.startswith(ZOO):
        name, scale = spec.name.removeprefix(ZOO), scale_of(arm.profile)
        cached = is_complete(model_folder(name, recipe_hash(name, scale, arm.source)))
        state = "cached" if cached else "to be trained here, seconds to minutes"
    elif is_ngram_table(spec):
        state = "local"
    else:
        state = ""
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
    """From records of the same target on this disk, if there are any."""
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
