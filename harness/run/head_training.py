"""Trains early heads for a model of the user's, or for one of the zoo on other data (`foretoken heads`).

They learn a task's texts, or what the model itself answers to the task's prompts.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast, get_args

import torch

import tasks
from harness.core.errors import UsageError
from harness.core.experiment import ModelSpec
from harness.core.files import readable, short_hash
from harness.models.loading import LoadedModel, load_model
from harness.models.names import decoder_depth
from harness.run.draft_material import Material, Reading, collect
from harness.zoo.build import ensure
from harness.zoo.cache import DONE, locked, read_facts
from harness.zoo.descriptions import HeadTraining, Labels
from harness.zoo.early_heads import Document, HeadData, paper_layers, save_trained, table, train_heads
from harness.zoo.recipes import HEAD_TRAINING
from harness.zoo.state import CHECKPOINT
from methods.options import EARLY_HEADS
from tasks.base import Task
from tasks.sources.read import read_examples, training_pairs
from tasks.sources.rows import Rows
from tasks.text import Text

HELD_OUT_FRAC, MOST_HELD_OUT = 0.1, 128
OURS = {EARLY_HEADS, DONE, CHECKPOINT}


@dataclass(frozen=True, kw_only=True)
class TaskTexts:
    """The prompts and references of a task's training part."""

    task: str
    source: str

    @property
    def identity(self) -> tuple[dict[str, Any], Any]:
        return asdict(self), tasks.fingerprint(self.task, self.source)

    @property
    def learned(self) -> list[dict[str, Any]]:
        return tasks.training_files([self.task], self.source)

    def rows(self, training: HeadTraining, seed: int) -> dict[str, Any]:
        """Return, as JSON, hashes of the rows that are read, those held out too."""
        task = tasks.get_training_task(self.task)
        examples = read_examples(task, self.source, "train", training.max_documents, seed)
        return Rows.of((task, example) for example in examples).as_dict()

    def read(self, model: LoadedModel, training: HeadTraining, seed: int) -> HeadData:
        """Return the documents to learn from and those held out, the first ones."""
        texts = _texts(tasks.get_training_task(self.task), self.source, training, seed)
        documents = [_document(model, *pair) for pair in texts]
        documents = [document for document in documents if document.first < len(document.tokens)]
        if len(documents) < 2:
            raise UsageError(f"data {self.source!r}: {len(documents)} documents of task {self.task!r}; expected at least 2")
        num_held_out = _num_held_out(len(documents))
        return documents[num_held_out:], documents[:num_held_out]


@dataclass(frozen=True, kw_only=True)
class OwnAnswers:
    """The first ``num_texts`` answers of the target to prompts of some tasks' training parts, greedy and sampled ones."""

    material: Material
    num_texts: int

    @property
    def identity(self) -> tuple[dict[str, Any], Any]:
        return {"num_texts": self.num_texts, "material": self.material.identity}, None

    @property
    def learned(self) -> list[dict[str, Any]]:
        return tasks.training_files(self.material.tasks, self.material.source)

    def rows(self, training: HeadTraining, seed: int) -> dict[str, Any]:
        """Return, as JSON, hashes of the rows that were answered, those held out too."""
        return self.material.rows(self.num_texts)

    def read(self, model: LoadedModel, training: HeadTraining, seed: int) -> HeadData:
        """Return the documents to learn from and those held out, the first ones; no group of rows has documents of both."""
        readings = collect(self.material, model, self.num_texts, lambda: False)
        readings = [one for one in readings if one.num_prompt < len(one.tokens)]
        groups = {one.group for one in readings[: _num_held_out(len(readings))]}
        parts = [[_answered(one) for one in readings if (one.group in groups) is held_out] for held_out in (False, True)]
        if not all(parts):
            raise UsageError(f"answers {self.num_texts}: {len(readings)} were written, none of which is left to learn from")
        return parts[0], parts[1]


@dataclass(frozen=True, kw_only=True)
class Job:
    """Everything that decides the heads, but for the processor. ``target`` is pinned."""

    target: ModelSpec
    texts: TaskTexts | OwnAnswers
    layers: tuple[int, ...]
    training: HeadTraining
    seed: int
    dtype: str

    @property
    def identity(self) -> str:
        said, data = self.texts.identity
        return short_hash(json.dumps([_own(self) | said, data], sort_keys=True))


def _own(job: Job) -> dict[str, Any]:
    """Return a job's fields but for its texts."""
    return {name: value for name, value in asdict(job).items() if name != "texts"}


def training_for(profile: str, labels: str | None, limit: int | None, source: str) -> HeadTraining:
    """Return a profile's hyper-parameters with what the user set. Generated data are endless, so they always have a limit."""
    training = HEAD_TRAINING[profile]
    if labels is not None and labels not in get_args(Labels):
        raise UsageError(f"labels {labels!r}: expected one of {', '.join(get_args(Labels))}")
    most = limit or training.max_documents or (HEAD_TRAINING["toy"].max_documents if source == "toy" else None)
    chosen = training.labels if labels is None else cast(Labels, labels)
    return replace(training, labels=chosen, max_documents=most)


def checked_layers(target: ModelSpec, profile: str, layers: Sequence[int] | None) -> tuple[int, ...]:
    """Return the layers asked for, or the paper's, judged by recipe or config alone.

    Raises:
        UsageError: a target that is not a decoder-only network, or a layer that is not one of its intermediate ones.
    """
    num_layers = decoder_depth(target, profile)
    for layer in layers or ():
        if not 1 <= layer < num_layers:
            raise UsageError(f"layer {layer}: expected one from 1 to {num_layers - 1}, {target.name} has {num_layers} layers")
    chosen = tuple(layers) if layers else paper_layers(num_layers)
    if not chosen:
        raise UsageError(f"target {target.name}: it has {num_layers} layer, so none is intermediate; choose a deeper model")
    return chosen


def check_output(folder: Path, job: Job) -> None:
    """UsageError unless the folder is new, empty, or holds this very job's heads, whole or unfinished."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"output {folder}: it is a file; expected a folder")
    found = {path.name for path in folder.iterdir()} - OURS if folder.is_dir() else set()
    foreign = sorted(name for name in found if not name.startswith("."))  # the lock, and files that a kill left half written
    if foreign:
        raise UsageError(f"output {folder}: it holds {foreign[0]!r}, which is not of trained heads; choose another folder")
    if (folder / DONE).is_file() and read_facts(folder).get("identity") != job.identity:
        raise UsageError(f"output {folder}: it holds heads of another training; choose another folder or delete it")


def train(job: Job, folder: Path, device: str = "cpu") -> str:
    """Train, unless that has been done, and say what came of it, layer by layer.

    Raises:
        UsageError: a model or folder that cannot be used.
        DataError: data that cannot be used.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / ".lock"):
        check_output(folder, job)
        if (folder / DONE).is_file():
            with readable(f"{folder / DONE}", f"delete {folder} and run the command again"):
                return table(read_facts(folder)["evaluations"])
        if job.target.zoo_name is not None:
            texts = job.texts
            source = texts.source if isinstance(texts, TaskTexts) else texts.material.source
            ensure([job.target.zoo_name], "toy", source, workers=0)
        model = load_model(job.target, device=device, dtype=job.dtype)
        data, rows = job.texts.read(model, job.training, job.seed), job.texts.rows(job.training, job.seed)
        heads, evaluations, spent = train_heads(
            model.stack, job.layers, job.training, data, folder, identity=job.identity, seed=job.seed
        )
        save_trained(folder, heads, evaluations, _facts(job, data, rows, device), spent)
        return table(evaluations)


def _facts(job: Job, data: HeadData, rows: dict[str, Any], device: str) -> dict[str, Any]:
    return {
        "identity": job.identity,
        "learned": job.texts.learned,
        "rows": rows,
        "base": {"name": job.target.name, "revision": job.target.revision},
        **{name: value for name, value in (_own(job) | asdict(job.texts)).items() if name != "target"},
        "num_documents": len(data[0]),
        "num_held_out": len(data[1]),
        "device": device,
    }


def _num_held_out(count: int) -> int:
    return min(MOST_HELD_OUT, max(1, round(HELD_OUT_FRAC * count)))


def _texts(task: Task, source: str, training: HeadTraining, seed: int) -> list[tuple[str, str]]:
    if isinstance(task, Text):
        return list(training_pairs(task, source, training.max_documents, seed))
    examples = read_examples(task, source, "train", training.max_documents, seed)
    return [(task.prompt(example, "instruction"), f" {example.references[0].strip()}") for example in examples]


def _answered(reading: Reading) -> Document:
    """Heads learn answers, not the prompts before them."""
    return Document(reading.tokens, reading.num_prompt)


def _document(model: LoadedModel, prompt: str, answer: str) -> Document:
    """The end of the text belongs to the answer. Heads learn answers, not the prompts before them."""
    before = model.encode(prompt) if prompt else model.encode("")[:1]
    tokens = (*before, *model.encode_continuation(answer), *model.eos_token_ids[:1])
    return Document(torch.tensor(tokens), max(1, len(before)))
