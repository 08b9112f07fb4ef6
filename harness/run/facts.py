"""Notes facts of a comparison that tables and figures need beside its records: of models, tokenizers and source sentences."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from harness.core.experiment import Comparison, Experiment, ModelSpec
from harness.core.files import replace_file
from harness.core.notes import Notes
from harness.models.files import zoo_model_folder
from harness.models.fit import estimate
from harness.models.loading import load_tokenizer
from harness.models.names import is_ngram_table, recipe_named
from harness.run.build import heads_of
from harness.zoo.cache import DONE, is_complete, model_folder
from harness.zoo.descriptions import PairRecipe
from harness.zoo.recipes import ZOO, folder_of, scale_of
from tasks.base import Example


def note_facts(notes: Notes, pinned: Comparison, examples: Sequence[Example]) -> None:
    """Note facts of the models and the source sentences of a comparison, as far as they are not noted yet."""
    for arm in pinned.arms:
        drafter = arm.method.drafter
        if _is_here(arm.target) and "tokenizer" not in notes.model(arm.target):
            tokenizer = keep_tokenizer(load_tokenizer(arm.target), notes)
            notes.note_model(arm.target, {**model_facts(arm.target, arm), "tokenizer": tokenizer})
        if drafter is not None and drafter.model is not None and not notes.model(drafter.model):
            notes.note_model(drafter.model, model_facts(drafter.model, arm))
    notes.note_texts(pinned.arms[0], {one.id: str(one.inputs["source"]) for one in examples if "source" in one.inputs})


def _is_here(spec: ModelSpec) -> bool:
    """Say whether a model's files can be read; those of the zoo may have been deleted since records were made."""
    return not spec.name.startswith(ZOO) or is_complete(model_folder(spec.name.removeprefix(ZOO), spec.revision or ""))


def model_facts(spec: ModelSpec, arm: Experiment) -> dict[str, Any]:
    """Look up a model's parameters, and the rows that a pair of the zoo was trained on where its data is a folder.

    Parameters are None where they cannot be known without loading. Rows held out to watch the training do not count.
    """
    facts: dict[str, Any] = {"num_parameters": _num_parameters(spec, arm)}
    recipe = recipe_named(spec, arm.profile, arm.source)
    if isinstance(recipe, PairRecipe) and arm.source not in ("toy", "hub"):
        done = folder_of(recipe.corpus, arm.source) / DONE
        if done.is_file():
            num_rows = json.loads(done.read_text(encoding="utf8"))["num_rows"]
            facts["training_rows"] = num_rows - recipe.corpus.num_held_out
    return facts


def _num_parameters(spec: ModelSpec, arm: Experiment) -> int | None:
    if spec.name.startswith(ZOO) and _is_here(spec):
        facts = json.loads((zoo_model_folder(spec) / DONE).read_text(encoding="utf8"))
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
        digest = hashlib.sha256(content.encode()).hexdigest()[:16]
        path = notes.tokenizer(digest)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            replace_file(path, content)
        return digest
    digest = hashlib.sha256(f"{kind.__name__} {sorted(tokenizer.get_vocab().items())}".encode()).hexdigest()[:16]
    tokenizer.save_pretrained(notes.tokenizer(digest))
    return digest
