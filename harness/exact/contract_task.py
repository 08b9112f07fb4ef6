"""The contract of a task (tasks/base.py): its examples repeat, its statistics add up, its metrics can be resampled."""

import json
import math
from collections.abc import Sequence
from itertools import islice

import numpy as np

from harness.exact.checks import Contract, expect
from tasks.base import DataError, Example, ReferenceScore, Statistics, Task
from tasks.sources.locate import fingerprint
from tasks.sources.read import read_examples, training_pairs

NUM_EXAMPLES, NUM_ROWS = 12, 60
SCORE = ReferenceScore(log_prob_sum=-12.0, num_tokens=6, num_bytes=24)


def check_task(name: str, task: Task) -> Contract:
    yield "reads generated examples, the same each time", lambda: _check_examples(task)
    yield "says what it is", lambda: _check_name(name, task)
    examples = list(islice(read_examples(task, "toy", "test", NUM_EXAMPLES, 0), NUM_EXAMPLES))
    yield "trains on nothing that it tests", lambda: _check_splits(task)
    yield "refuses a source that is not there", lambda: _check_refusal(task)
    yield "prompts in every style", lambda: _check_prompts(task, examples)
    yield "knows its data by a fingerprint", lambda: _check_fingerprint(task)
    yield "scores any output in numbers", lambda: _check_statistics(task, examples)
    yield "adds statistics up to its metrics", lambda: _check_aggregation(task, examples)
    yield "resamples as it aggregates", lambda: _check_resampling(task, examples)


def _check_name(name: str, task: Task) -> str:
    expect(task.name == name, f"its name is {task.name!r}; expected {name!r}, as it is registered")
    expect(isinstance(task.max_new_tokens, int) and task.max_new_tokens > 0, f"max_new_tokens {task.max_new_tokens!r}")
    expect(bool(task.metrics) and len(set(task.metrics)) == len(task.metrics), f"metrics {task.metrics!r}: expected names")
    return f"metrics {', '.join(task.metrics)}"


def _check_examples(task: Task) -> str:
    first = list(read_examples(task, "toy", "test", NUM_EXAMPLES, 0))
    expect(len(first) == NUM_EXAMPLES, f"{len(first)} examples where {NUM_EXAMPLES} were asked for")
    expect(first == list(read_examples(task, "toy", "test", NUM_EXAMPLES, 0)), "read twice, they differ")
    longer = list(read_examples(task, "toy", "test", NUM_EXAMPLES + 5, 0))
    expect(first == longer[:NUM_EXAMPLES], "the first of them change with the limit")
    expect(len({example.id for example in longer}) == len(longer), "ids are not unique")
    blank = next((example.id for example in longer if not any(text.strip() for text in example.references)), None)
    expect(blank is None, f"example {blank!r} has no reference")
    return f"{NUM_EXAMPLES} examples"


def _check_splits(task: Task) -> str:
    def rows(split: str) -> set[tuple[str, ...]]:
        read = islice(read_examples(task, "toy", split, NUM_ROWS, 0), NUM_ROWS)  # type: ignore[arg-type]
        return {(*example.inputs.values(), *example.references) for example in read}

    shared = rows("test") & rows("train")
    first = next(iter(shared), ("",))[0][:40]
    expect(not shared, f"{len(shared)} of {NUM_ROWS} test rows are trained on, {first!r} for one")
    for prompt, reference in islice(training_pairs(task, "toy", 3, 0), 3):
        expect(isinstance(prompt, str) and bool(reference.strip()), f"training pair {prompt[:20]!r}, {reference[:20]!r}")
    return f"{NUM_ROWS} rows of each split"


def _check_refusal(task: Task) -> None:
    try:
        list(islice(read_examples(task, "/there/is/no/such/folder", "test", 1, 0), 1))
    except DataError:
        return
    expect(False, "reads from a folder that does not exist; expected a DataError")


def _check_prompts(task: Task, examples: Sequence[Example]) -> None:
    for style in ("instruction", "t5"):
        for example in examples:
            prompt = task.prompt(example, style)  # type: ignore[arg-type]
            expect(isinstance(prompt, str), f"style {style}: {type(prompt).__name__}; expected text")
            expect(bool(prompt.strip()) or example.audio is not None, f"style {style}: nothing for example {example.id!r}")
            again = task.prompt(example, style)  # type: ignore[arg-type]
            expect(prompt == again, f"style {style}: differs when asked twice")


def _check_fingerprint(task: Task) -> None:
    expect(fingerprint(task.dataset, "toy") == fingerprint(task.dataset, "toy"), "differs when asked twice")
    expect(bool(fingerprint(task.dataset, "toy")), "is empty")


def _outputs(examples: Sequence[Example]) -> list[str]:
    """Return outputs of four kinds in turn: the right answer, nothing, a wrong answer, several lines."""
    kinds = [lambda one: one.references[0], lambda one: "", lambda one: "something else", lambda one: "\n\n two\nlines "]
    return [kinds[number % len(kinds)](example) for number, example in enumerate(examples)]


def _scored(task: Task, examples: Sequence[Example]) -> list[Statistics]:
    score = SCORE if task.scores_reference else None
    return [task.statistics(one, output, score) for one, output in zip(examples, _outputs(examples), strict=True)]


def _check_statistics(task: Task, examples: Sequence[Example]) -> str:
    found = _scored(task, examples)
    shapes = {tuple((key, np.shape(values)) for key, values in one.items()) for one in found}
    expect(len(shapes) == 1, f"keys or lengths depend on the output: {sorted(map(str, shapes))[:2]}")
    numbers = [value for one in found for values in one.values() for value in np.ravel(values).tolist()]
    expect(all(math.isfinite(value) for value in numbers), "a number is not finite")
    json.dumps([{key: values for key, values in one.items()} for one in found], allow_nan=False)
    return f"{len(numbers) // len(found)} numbers an example: {', '.join(found[0])}"


def _check_aggregation(task: Task, examples: Sequence[Example]) -> str:
    found = task.aggregate(_scored(task, examples))
    expect(set(found) == set(task.metrics), f"gives {', '.join(found)}; expected {', '.join(task.metrics)}")
    expect(all(math.isfinite(metric.value) for metric in found.values()), "a metric is not finite")
    try:
        task.aggregate([])
    except DataError:
        return ", ".join(f"{name} {metric.value:.3g} {metric.unit}" for name, metric in found.items())
    expect(False, "makes metrics of no example; expected a DataError")
    return ""


def _check_resampling(task: Task, examples: Sequence[Example]) -> None:
    """Check two drawings: each example once is the corpus; the first half twice is the corpus of that half, doubled."""
    found, half = _scored(task, examples), len(examples) // 2
    twice = np.array([2.0] * half + [0.0] * (len(examples) - half))
    drawn = task.resample(found, np.stack([np.ones(len(examples)), twice]))
    for corpus, row in ((found, 0), (found[:half] * 2, 1)):
        for name, metric in task.aggregate(corpus).items():
            expect(np.shape(drawn[name]) == (2,), f"{name}: shape {np.shape(drawn[name])} of 2 drawings; expected (2,)")
            close = math.isclose(drawn[name][row], metric.value, rel_tol=1e-9, abs_tol=1e-9)
            expect(close, f"{name}: {drawn[name][row]:.6g}, where aggregating the same examples gives {metric.value:.6g}")
