"""The meaning of a model's name, found without loading weights: its revision, kind and depth.

A name of the zoo is looked up in the recipes; of others the files' headers, the configuration or the Hub are asked.
"""

from dataclasses import replace

from harness.core.errors import UsageError
from harness.core.experiment import POCKET, ModelSpec
from harness.models.files import (
    converted_revision,
    files_hash,
    folder_hash,
    heads_file,
    hub_commit,
    load_config,
    local_folder,
    ngram_file,
)
from harness.models.pocket import TRAINED, PocketHeads
from harness.zoo.descriptions import HeadRecipe
from harness.zoo.recipes import RECIPES, AnyRecipe, recipe_for, recipe_hash, scale_of


def pin_model(spec: ModelSpec, profile: str, source: str) -> ModelSpec:
    """Fill in ``revision``: the recipe's hash (zoo), the files' (folder, GGUF, counted table), the origin's (pocket), or the
    commit (Hub). Loads no weights.

    ``profile`` chooses the zoo's sizes and ``source`` what they train on. A Hub id whose
    commit cannot be looked up (no network) keeps the revision it was given, or "main". UsageError for counted n-grams that are
    to be rounded.
    """
    if spec.rounding is not None and is_ngram_table(spec):
        raise _not_rounded("n-gram table", spec)
    if spec.zoo_name is not None:
        return replace(spec, revision=recipe_hash(spec.zoo_name, scale_of(profile), source))
    if (file := ngram_file(spec.base)) is not None:
        return replace(spec, revision=files_hash([file]))
    if (revision := converted_revision(spec)) is not None:
        return replace(spec, revision=revision)
    if (folder := local_folder(spec.base)) is not None:
        return replace(spec, revision=folder_hash(folder))
    return replace(spec, revision=hub_commit(spec))


def pin_heads(spec: ModelSpec, profile: str, source: str) -> ModelSpec:
    """Fill in ``revision`` of trained heads, early or blockwise. UsageError for a folder that holds none, and for rounding."""
    if spec.rounding is not None:
        raise _not_rounded("heads", spec)
    if spec.zoo_name is not None or is_pocket_heads(spec):
        return pin_model(spec, profile, source)
    if (file := heads_file(spec.base)) is None:
        raise UsageError(
            f"heads {spec.name!r}: no heads there; expected a folder of early heads (as `foretoken heads` writes) or of "
            "blockwise ones, zoo:NAME or one of pocket:NAME that is heads"
        )
    return replace(spec, revision=files_hash([file]))


def is_pocket_heads(spec: ModelSpec) -> bool:
    """Tell early heads of the profile pocket by their name."""
    return isinstance(TRAINED.get(spec.base.removeprefix(POCKET)), PocketHeads) and spec.base.startswith(POCKET)


def _not_rounded(what: str, spec: ModelSpec) -> UsageError:
    return UsageError(f"{what} {spec.name!r}: only weights of whole models are rounded; leave {spec.rounding}: out")


def recipe_named(spec: ModelSpec, profile: str, source: str) -> AnyRecipe | None:
    """The recipe that a name of the zoo means; None for other names."""
    return recipe_for(spec.zoo_name, scale_of(profile), source) if spec.zoo_name is not None else None


def is_encoder_decoder(spec: ModelSpec, profile: str, source: str) -> bool:
    """Tell an encoder-decoder by its recipe or config alone."""
    recipe = recipe_named(spec, profile, source)
    return bool(load_config(spec).is_encoder_decoder) if recipe is None else recipe.corpus.is_encoder_decoder


def hears(spec: ModelSpec) -> bool:
    """Tell a model of recordings by its config alone; not for names of the zoo."""
    return spec.zoo_name is None and load_config(spec).model_type == "whisper"


def runs_by_transformers(spec: ModelSpec) -> bool:
    """Tell a model of a family without a stack of its own, whose passes are transformers', by its config alone."""
    from methods.models import STACKS  # here: its stacks import transformers

    parts = (ngram_file(spec.base), heads_file(spec.base))
    if spec.zoo_name is not None or is_pocket_heads(spec) or any(parts):
        return False
    return load_config(spec).model_type not in STACKS


def is_ngram_table(spec: ModelSpec) -> bool:
    """Tell counted n-grams from a network by the name, without loading it."""
    if spec.zoo_name is not None:
        name = spec.zoo_name.partition("@")[0]
        return any(recipes[name].family == "ngram" for recipes in RECIPES.values() if name in recipes)
    return ngram_file(spec.base) is not None


def num_layers(spec: ModelSpec, profile: str) -> int:
    """A decoder-only model's depth, from the recipe or the config alone; the zoo's is one whatever the data."""
    recipe = recipe_named(spec, profile, "toy")
    if isinstance(recipe, HeadRecipe):
        raise UsageError(f"model {spec.name}: trained heads, no model of their own; name their base, {recipe.teacher.name}")
    return int(load_config(spec).num_hidden_layers) if recipe is None else recipe.num_layers


def decoder_depth(spec: ModelSpec, profile: str) -> int:
    """The depth of a model that heads can be trained for. UsageError unless it is a decoder-only network."""
    recipe = recipe_named(spec, profile, "toy")
    if recipe is not None and (recipe.family in ("heads", "ngram") or recipe.corpus.is_encoder_decoder):
        raise UsageError(f"target {spec.name} is of family {recipe.family}: expected a decoder-only model")
    if recipe is None and load_config(spec).is_encoder_decoder:
        raise UsageError(f"target {spec.name}: it is an encoder-decoder; expected a decoder-only model")
    return num_layers(spec, profile)
