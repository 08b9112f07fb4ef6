"""The models that ran, as a row of a table or a panel of a figure names them: family, parameters, layers.

The paper's names stay in the rows; what ran under them is often another model, and much smaller.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from harness.core.experiment import POCKET, DrafterSpec, Experiment, ModelSpec
from harness.zoo.descriptions import BlockwiseRecipe, HeadRecipe, Recipe
from harness.zoo.recipes import AnyRecipe, recipes_of, scale_of

Facts = Mapping[str, Mapping[str, Any]]
NOTE = "ran: the target that ran, then the draft: family (if it is another), parameters, layers (encoder + decoder)."
FAMILIES = {
    "llama": "Llama", "gpt2": "GPT-2", "t5": "T5", "marian": "Marian", "bart": "BART", "whisper": "Whisper",
    "block": "block drafter", "bart-block": "BART block drafter", "blockwise": "heads", "ngram": "counts",
}  # fmt: skip


def recipe_of(spec: ModelSpec, arm: Experiment) -> AnyRecipe | None:
    """The recipe of one of the zoo's models; None of others."""
    if spec.zoo_name is None:
        return None
    return recipes_of(scale_of(arm.profile), arm.source).get(spec.zoo_name.partition("@")[0])


def models_that_ran(arms: Iterable[Experiment], facts: Facts, drafter: DrafterSpec | None = None) -> str:
    """Name the target of ``arms`` and the draft: ``drafter``, else the one that they all have. Empty without arms.

    ``facts`` are what runs noted of the models, by name; without them the numbers of parameters are left out.
    """
    arms = list(arms)
    if not arms:
        return ""
    drafters = dict.fromkeys(arm.method.drafter for arm in arms if arm.method.drafter is not None)
    one = drafter or (next(iter(drafters)) if len(drafters) == 1 else None)
    specs = [arms[0].target, *([one.model] if one is not None and one.model is not None else [])]
    names = [_name(spec, arms[0]) for spec in specs]
    if names[0] == names[-1]:
        names[1:] = [""] * len(names[1:])  # a draft of the target's family
    return "; ".join(f"{name}{_size(spec, arms[0], facts)}".strip(" ,") for name, spec in zip(names, specs, strict=True))


def _name(spec: ModelSpec, arm: Experiment) -> str:
    """The family of one of the zoo's models, else the model's own name."""
    recipe = recipe_of(spec, arm)
    own = spec.base.removeprefix(POCKET).rstrip("/").rsplit("/", 1)[-1]
    family = own if recipe is None else FAMILIES.get(recipe.family, recipe.family)
    return family if spec.rounding is None else f"{spec.rounding} {family}"


def _size(spec: ModelSpec, arm: Experiment, facts: Facts) -> str:
    known, recipe = facts.get(spec.name, {}), recipe_of(spec, arm)
    count, weights = known.get("num_parameters"), known.get("weights")
    layers = f", {known['layers']}" if "layers" in known else _layers(recipe)
    return (f" {_rounded(count)}" if count else "") + layers + (f", {weights}" if weights else "")


def _layers(recipe: AnyRecipe | None) -> str:
    if isinstance(recipe, BlockwiseRecipe):
        return f", {recipe.num_drafts} heads"
    if recipe is None or isinstance(recipe, HeadRecipe) or not recipe.num_layers:
        return ""
    return f", {_encoder(recipe)}{recipe.num_layers}"


def _encoder(recipe: Recipe) -> str:
    return f"{recipe.num_encoder_layers}+" if recipe.corpus.is_encoder_decoder else ""


def _rounded(count: int) -> str:
    if count < 1e5:
        return f"{count / 1e3:.0f} K"
    return f"{count / 1e9:.1f} B" if count >= 1e9 else f"{count / 1e6:.1f} M"
