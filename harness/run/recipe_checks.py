"""What the zoo's recipes alone refuse, in the words of the checks of loaded models: before anything is trained."""

from harness.core.experiment import DrafterSpec, Experiment, ModelSpec
from harness.models.fit import check_role, foreign_heads, no_block_heads
from harness.models.names import recipe_named
from harness.run.build import check_reach
from harness.zoo.descriptions import BlockwiseRecipe, DrafterRecipe
from harness.zoo.recipes import ZOO, AnyRecipe


def check_recipes(experiment: Experiment) -> None:
    """UsageError for a target that drafts blocks, a drafter of another kind than its model, or a gamma beyond its reach."""
    target, method = experiment.target, experiment.method
    check_role(target.name, is_block=isinstance(_recipe_of(target, experiment), DrafterRecipe), drafts_blocks=False)
    for drafter in (method.drafter, *experiment.overlap):
        if drafter is not None:
            _check_drafter(drafter, experiment)
    if method.drafter is None or method.drafter.model is None:
        return
    recipe = _recipe_of(method.drafter.model, experiment)
    if isinstance(recipe, DrafterRecipe):
        check_reach(method, recipe.block_size, "blocks of")
    elif isinstance(recipe, BlockwiseRecipe):
        check_reach(method, recipe.num_drafts, "with as many heads as")


def _check_drafter(drafter: DrafterSpec, experiment: Experiment) -> None:
    if drafter.inner is not None:
        _check_drafter(drafter.inner, experiment)
    recipe = None if drafter.model is None else _recipe_of(drafter.model, experiment)
    if drafter.model is None or recipe is None:
        return
    if drafter.kind != "blockwise":
        check_role(drafter.model.name, is_block=isinstance(recipe, DrafterRecipe), drafts_blocks=drafter.kind == "block")
    elif not isinstance(recipe, BlockwiseRecipe):
        raise no_block_heads(drafter.model.name)
    elif _recipe_of(experiment.target, experiment) not in (None, recipe.verifier):
        raise foreign_heads(drafter.model.name, experiment.target.name, ZOO + recipe.verifier.name)


def _recipe_of(spec: ModelSpec, experiment: Experiment) -> AnyRecipe | None:
    return recipe_named(spec, experiment.profile, experiment.source)
