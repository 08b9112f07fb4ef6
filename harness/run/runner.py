"""Runs comparisons: what is missing, interleaved, one record at a time.

Arms take turns example by example (the order rotates), so that a machine whose speed drifts slows them all alike. What
is recorded already is not run again; what fails is recorded as failed. Facts that tables and figures need beside the records
are noted: of models, tokenizers and source sentences.
"""

import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from itertools import product
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from tqdm import tqdm
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from harness.core import plugins
from harness.core.errors import Unavailable
from harness.core.experiment import POCKET, Comparison, Experiment, ModelSpec
from harness.core.files import replace_file, short_hash
from harness.core.notes import Notes, vocabulary_hash
from harness.core.record_files import RecordFile
from harness.core.records import Record
from harness.measures.pairing import out_of_turn, torn
from harness.models.fetch import fetch
from harness.models.files import layers_of, load_config, weights_of, zoo_model_folder
from harness.models.fit import Models, estimate
from harness.models.loading import check_rounding, load_tokenizer
from harness.models.names import is_ngram_table, pin_heads, pin_model, recipe_named
from harness.models.pocket import TRAINED
from harness.run.build import heads_of, specs_of
from harness.run.comparison import Chunk, Prepared, Replay, chunks_of, stages_of
from harness.run.instruments import quick_collection
from harness.run.patience import Patience
from harness.run.pocket_recipes import trained
from harness.run.prompts import examples_of
from harness.run.refusals import check_graphs, check_names, check_planned, check_recipes
from harness.zoo.build import ensure
from harness.zoo.cache import is_complete, model_folder, read_facts
from harness.zoo.descriptions import PairRecipe
from harness.zoo.recipes import Scale, folder_of, scale_of
from tasks import fingerprint, get_task
from tasks.base import Example

Value = TypeVar("Value")


def pin(experiment: Experiment) -> Experiment:
    """Fill in what the names mean today: the data's fingerprint, every model's revision, plug-ins. Loads no model."""
    plugins.load()
    task = get_task(experiment.task)
    check_names(experiment.method)
    check_recipes(experiment)
    check_graphs(experiment)
    heads, where = heads_of(experiment), (experiment.profile, experiment.source)
    for spec in specs_of(experiment):
        check_rounding(spec, experiment.dtype)
    revisions = {spec: (pin_heads if spec in heads else pin_model)(spec, *where) for spec in specs_of(experiment)}

    return experiment.with_models(revisions.__getitem__).replace(
        source_fingerprint=fingerprint(task.name, experiment.source),
        plugins=plugins.used_by(experiment),
    )


def ensure_models(experiments: Iterable[Experiment], workers: int | None = None) -> None:
    """Train what the zoo lacks for these experiments, several models at once (``workers`` as in ``ensure``)."""
    wanted: dict[tuple[Scale, str], dict[str, None]] = {}
    for experiment in experiments:
        for spec in specs_of(experiment):
            if spec.zoo_name is not None:
                group = wanted.setdefault((scale_of(experiment.profile), experiment.source), {})
                group[spec.zoo_name] = None
    for (scale, source), names in wanted.items():
        ensure(list(names), scale, source, workers=workers)


def fetch_models(experiments: Iterable[Experiment]) -> None:
    """Fetch the public models that these experiments need and this machine lacks, and train the drafts and heads for them.

    What cannot be had is said on stderr; planning its experiments says so again.
    """
    wanted = [(spec.base, experiment.source) for experiment in experiments for spec in specs_of(experiment)]
    for name, source in dict.fromkeys(pair for pair in wanted if pair[0].startswith(POCKET)):
        try:
            trained(name, source) if name.removeprefix(POCKET) in TRAINED else fetch(name)
        except Unavailable as error:
            print(f"foretoken: note: {error}", file=sys.stderr)


class Runner:
    """Runs comparisons in one process; models stay loaded between them while device, dtype and attention stay the same.

    ``replay``: which outputs are replayed when they are recorded (harness.run.replay): all, a sample of every arm, or none.
    ``again``: records anew, all arms together, a comparison whose times are refused for how the machine was. One that is sent
    to another process begins there anew. ``patience``: how long to wait for other programs before a replica is timed; every
    process has its own. ``starts_processes``: replicas may run in processes of their own.
    """

    starts_processes = True

    def __init__(
        self,
        folder: Path,
        quiet: bool = False,
        again: bool = False,
        replay: Replay = "sample",
        patience: Patience | None = None,
    ) -> None:
        self.folder, self.quiet, self.again, self.replay = folder, quiet, again, replay
        self.patience = patience or Patience()
        self._id = uuid4().hex[:12]
        self._noted: set[str] = set()
        self._models: Models | None = None

    def __reduce__(self) -> tuple[type["Runner"], tuple[Path, bool, bool, Replay, Patience]]:
        return Runner, (self.folder, self.quiet, self.again, self.replay, self.patience)

    def path(self, experiment: Experiment) -> Path:
        return RecordFile(self.folder, experiment).path

    def records(self, experiment: Experiment) -> list[Record]:
        """Return what is stored for an experiment (which must be pinned), in the order it was made."""
        return RecordFile(self.folder, experiment).read()

    def is_complete(self, comparison: Comparison) -> bool:
        """Say whether nothing is left to record, judged by count so that neither data nor model is touched."""
        recorded = all(len(self.records(arm)) >= arm.num_runs for arm in comparison.arms)
        return recorded and not self._begins_again(comparison)

    def _begins_again(self, comparison: Comparison) -> bool:
        """Say whether recording all arms anew may mend times that are refused.

        Arms that ran in different processes are recorded anew in any case where their times are compared; what disturbed the
        machine only where ``again`` asks for it, since it may be there still.
        """
        if not (self.again or comparison.arms[0].comparison):
            return False
        recorded = [self.records(arm) for arm in comparison.arms]
        plain = [records for arm, records in zip(comparison.arms, recorded, strict=True) if arm.method.drafter is None]
        refusal = out_of_turn if self.again else torn
        return any(refusal(*pair) for pair in product(plain, recorded))

    def models(self, experiment: Experiment) -> Models:
        known, asked = self._models, (experiment.device, experiment.dtype, experiment.attention)
        if known is None or (known.device, known.dtype, known.attention) != asked:
            self._models = known = Models(*asked)
        return known

    def with_models(self, experiment: Experiment, function: Callable[[Models], Value]) -> Value:
        """Return what a function makes of an experiment's models, wherever an engine has them."""
        return function(self.models(experiment))

    def run(self, comparison: Comparison, description: str = "") -> None:
        """Record what is missing: what is generated with what is read off it, then what probes find that decode again.

        Raises:
            UsageError: nothing can work with these settings. Failures of single examples are records.
        """
        if self._begins_again(comparison):
            files = [RecordFile(self.folder, arm) for arm in comparison.arms]
            for arm, file in zip(comparison.arms, files, strict=True):
                check_planned(arm, file.stored(), examples_of)
            for file in files:
                file.set_aside()
        if any([self._run(stage, description) for stage in stages_of(comparison)]):
            note_facts(Notes(self.folder), comparison, examples_of(comparison.arms[0]))

    def _run(self, stage: Comparison, description: str) -> bool:
        """Say whether anything was missing."""
        first, files = stage.arms[0], [RecordFile(self.folder, arm) for arm in stage.arms]
        known = tuple(file.stored() for file in files)
        for arm, recorded in zip(stage.arms, known, strict=True):
            check_planned(arm, recorded, examples_of)
        chunks = [chunk for chunk in chunks_of(stage, examples_of(first), known) if any(chunk.lacking)]
        if not chunks:
            return False
        ensure_models(stage.arms)
        total = sum(len(chunk.keys) * sum(chunk.lacking) for chunk in chunks)
        bar = tqdm(total=total, desc=description or first.task, unit="ex", disable=self.quiet, delay=2, dynamic_ncols=True)
        with ExitStack() as stack:
            stack.enter_context(bar)
            writers = [stack.enter_context(file.open(own)) for file, own in zip(files, known, strict=True)]
            for chunk, new in zip(chunks, stack.enter_context(closing(self.made(stage, chunks))), strict=True):
                for writer, records in zip(writers, new, strict=True):
                    for record in records:
                        writer.append(record)
                bar.update(len(chunk.keys) * sum(chunk.lacking))
        return True

    def made(self, comparison: Comparison, chunks: Sequence[Chunk]) -> Generator[list[list[Record]]]:
        """Return the new records of each chunk's arms, in the order of the chunks. What an engine does in its own way."""
        with self.prepared(comparison) as ready:
            for chunk in chunks:
                yield ready.run(chunk)

    @contextmanager
    def prepared(self, comparison: Comparison) -> Iterator[Prepared]:
        first = comparison.arms[0]
        watched = first.replica is not None and first.device == "cpu" and comparison.is_timed
        with quick_collection() if comparison.holds_memory else nullcontext():
            models, patience = self.models(first), self.patience if watched else None
            yield Prepared(comparison, models, self.folder, self._id, self._noted, self.replay, patience)


def note_facts(notes: Notes, pinned: Comparison, examples: Sequence[Example]) -> None:
    """Note facts of the models and the source sentences of a comparison, as far as they are not noted yet."""
    for arm in pinned.arms:
        if _is_here(arm.target) and "tokenizer" not in notes.model(arm.target):
            tokenizer = keep_tokenizer(load_tokenizer(arm.target), notes)
            notes.note_model(arm.target, {**model_facts(arm.target, arm), "tokenizer": tokenizer})
        for model in arm.draft_models:
            if not notes.model(model):
                notes.note_model(model, model_facts(model, arm))
    notes.note_texts(pinned.arms[0], {one.id: str(one.inputs["source"]) for one in examples if "source" in one.inputs})


def _is_here(spec: ModelSpec) -> bool:
    """Say whether a model's files can be read; those of the zoo may have been deleted since records were made."""
    return spec.zoo_name is None or is_complete(model_folder(spec.zoo_name, spec.revision or ""))


def model_facts(spec: ModelSpec, arm: Experiment) -> dict[str, Any]:
    """Look up a model's parameters, and the rows that a pair of the zoo was trained on where its data is a folder.

    Parameters are None where they cannot be known without loading. Rows held out to watch the training do not count. Of a
    model that was fetched or converted also its layers, and what its weights were made of.
    """
    facts: dict[str, Any] = {"num_parameters": _num_parameters(spec, arm)}
    if (weights := weights_of(spec)) is not None:
        facts |= {"weights": weights, "layers": layers_of(load_config(spec))}
    recipe = recipe_named(spec, arm.profile, arm.source)
    if isinstance(recipe, PairRecipe) and arm.source not in ("toy", "hub"):
        folder = folder_of(recipe.corpus, arm.source)
        if is_complete(folder):
            facts["training_rows"] = read_facts(folder)["num_rows"] - recipe.corpus.num_held_out
    return facts


def _num_parameters(spec: ModelSpec, arm: Experiment) -> int | None:
    if spec.zoo_name is not None and _is_here(spec):
        facts = read_facts(zoo_model_folder(spec))
        if "num_parameters" in facts:
            return int(facts["num_parameters"])
    elif is_ngram_table(spec) or spec in heads_of(arm):
        return None
    return estimate(spec, arm.dtype, scale_of(arm.profile), arm.source).num_parameters


def keep_tokenizer(tokenizer: PreTrainedTokenizerBase, notes: Notes) -> str:
    """Keep a tokenizer and return its digest: a file that the light library reads, or a folder where a class does more."""
    kind = type(tokenizer)
    is_light = (
        isinstance(tokenizer, PreTrainedTokenizerFast)
        and (kind.decode, kind._decode) == (PreTrainedTokenizerFast.decode, PreTrainedTokenizerFast._decode)
        and not tokenizer.clean_up_tokenization_spaces
    )
    if is_light:
        content = tokenizer.backend_tokenizer.to_str()
        digest = short_hash(content)
        path = notes.tokenizer(digest)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            replace_file(path, content)
        return digest
    digest = vocabulary_hash(tokenizer)
    tokenizer.save_pretrained(notes.tokenizer(digest))
    return digest
