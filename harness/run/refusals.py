"""What cannot be run is refused here, by names, options and recipes alone: before anything is trained, downloaded or loaded.

And records that cannot be those of what is run.
"""

from collections.abc import Callable, Iterable, Sequence

from harness.core import plugins
from harness.core.errors import UsageError
from harness.core.experiment import ROUNDED, ZOO, DrafterSpec, Experiment, MemoryProbe, MethodSpec, ModelSpec, RuleTimesProbe
from harness.core.records import Key, Record
from harness.models.files import load_config
from harness.models.fit import check_role, foreign_heads, no_block_heads
from harness.models.loading import check_has_attention
from harness.models.names import recipe_named, runs_by_transformers
from harness.zoo.descriptions import BlockwiseRecipe, DrafterRecipe
from harness.zoo.recipes import AnyRecipe
from methods.cores import num_cores
from methods.options import values_of
from methods.parts import DRAFTERS, METHODS, RULES, SCHEDULES
from methods.ppd.pipeline import overload
from methods.transformers_assisted import check_schedule
from tasks.base import Example

LOOKUP, EXIT = "prompt-lookup", "early-exit"
PARTS_OF_OTHERS = {  # by family: what it is, and which flag takes it
    "ngram": ("a table of counted n-grams", "--draft names it"),
    "heads": ("trained early heads", "--heads names them"),
    "blockwise": ("blockwise heads", "they draft with --drafter blockwise"),
}
STATIC = {  # what decodes with graphs, by field: sessions that were built for it, and numbers of drafts that do not grow
    "method": ("autoregressive", "speculative"),
    "drafter": ("model", "copy", "suffix", "random", "unigram", "bigram"),
    "schedule": ("constant", "sweep"),
}
THEIRS = (LOOKUP, EXIT)  # kinds of drafters that only transformers' loop has


def check_names(spec: MethodSpec) -> None:
    """Refuse what no registry knows and what the parts themselves refuse, before anything is trained, downloaded or loaded."""
    plugins.choose("method", spec.name, METHODS)
    for kind, part, registry in (("rule", spec.rule, RULES), ("schedule", spec.schedule, SCHEDULES)):
        if part is not None:
            plugins.choose(kind, part.name, registry)(**values_of(part.options))
    if spec.drafter is not None and spec.drafter.kind == ROUNDED and spec.name in METHODS and spec.name != "speculative":
        raise UsageError(
            f"drafter {ROUNDED!r}: in method {spec.name!r} a draft reads every prompt itself; expected drafter model with "
            "--draft int8:TARGET, or method speculative"
        )
    if spec.name == "transformers":
        check_assisted(spec)
    elif spec.drafter is not None:
        if spec.drafter.kind in THEIRS:
            raise UsageError(
                f"drafter {spec.drafter.kind!r}: transformers' own; expected method transformers, or another drafter"
            )
        plugins.choose("drafter", spec.drafter.kind, DRAFTERS)
        if spec.name == "drafter-alone" and (encoder := spec.values.get("encoder", "own")) != "own":
            raise UsageError(f"encoder {encoder!r}: a drafter that decodes alone has its own only; expected encoder own")


def check_graphs(experiment: Experiment) -> None:
    """UsageError for an experiment with graphs that has no static form."""
    if experiment.graphs and (why := why_not_static(experiment)):
        raise UsageError(f"graphs: {why}")


def check_attention(attention: str | None, dtype: str, models: Iterable[ModelSpec]) -> None:
    """UsageError for a transformers' attention that no model here would run, or that one of those which would does not have."""
    if attention is None:
        return
    named = dict.fromkeys(models)
    reading = [spec for spec in named if runs_by_transformers(spec)]
    if not reading:
        raise UsageError(
            f"attention {attention!r}: {', '.join(spec.short for spec in named)}: decoded by stacks of our own, which have an "
            "attention of their own; leave --attention out, or choose a model of another family"
        )
    for spec in reading:
        check_has_attention(spec, load_config(spec), dtype, attention)


def why_not_static(experiment: Experiment) -> str:
    """Say why an experiment cannot be run with graphs; empty where it can, as far as names tell."""
    values = experiment.method.values
    for name, known in STATIC.items():
        if (chosen := values.get(name, known[0])) not in known:
            return f"{name} {chosen!r} has no static form; expected {', '.join(known)}, or --graphs off"
    if experiment.target.device_map is not None:
        return f"device_map {experiment.target.device_map!r}; expected one device, or --graphs off"
    if MemoryProbe() in experiment.probes:
        return "a static cache is laid out before anything is decoded, no peak has it; leave --memory out"
    if RuleTimesProbe() in experiment.probes:
        return "a captured rule is no call that could be timed; leave the rule's times out, or --graphs off"
    return ""


def check_assisted(spec: MethodSpec) -> None:
    """UsageError for what transformers' assisted generation does not have, or what it would leave unread."""
    kind = None if spec.drafter is None else spec.drafter.kind
    early_layer, num_beams = spec.options.early_layer, spec.options.num_beams
    if early_layer is not None and kind != EXIT:
        raise UsageError(f"early_layer {early_layer}: of method 'transformers' only drafter {EXIT} reads it; leave it out")
    if spec.drafter is None or kind is None:
        return
    if not (spec.drafter.is_model or kind in THEIRS):
        raise UsageError(
            f"drafter {kind!r}: transformers' assisted generation needs a draft model (--draft), {LOOKUP} or {EXIT}"
        )
    if spec.drafter.is_model and spec.drafter.model is None:
        raise UsageError(f"drafter {kind!r}: transformers' assisted generation needs a draft model: give --draft")
    if not spec.drafter.is_model and spec.drafter.model is not None:
        raise UsageError(f"draft {spec.drafter.model.name!r}: drafter {kind} has no model of its own; leave it out")
    if kind == EXIT and early_layer is None:
        raise UsageError(f"drafter {EXIT}: expected the layer behind which the target drafts: give --early-layer")
    if num_beams > 1:
        raise UsageError(f"num_beams {num_beams}: transformers' assisted generation has no beams; expected 1, or no drafter")
    assert spec.schedule is not None
    check_schedule(spec.schedule.name, drafts_by_lookup=kind == LOOKUP)


def check_recipes(experiment: Experiment) -> None:
    """UsageError for a target that drafts blocks, a drafter of another kind than its model, or a gamma beyond its reach."""
    target, method = experiment.target, experiment.method
    _check_language_model("target", target, experiment)
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


def check_rounded(draft: ModelSpec | None, target: ModelSpec) -> None:
    """UsageError unless the draft of drafter "rounded" is the target with narrower weights, of a target on one device."""
    if target.device_map is not None:
        raise UsageError(
            f"device_map {target.device_map!r}: drafter {ROUNDED!r} drafts on one device; leave it out or take another drafter"
        )
    if not target.narrower:
        raise UsageError(f"target {target.name}: drafter {ROUNDED!r} has no narrower weights; expected {target.base}")
    if draft not in target.narrower:
        named = "none" if draft is None else " at ".join(filter(None, (draft.name, draft.revision)))
        at = "" if target.revision is None else f" at {target.revision}"
        names = " or ".join(one.name for one in target.narrower)
        raise UsageError(f"draft {named}: drafter {ROUNDED!r} drafts with the target's own weights; expected {names}{at}")


def _check_drafter(drafter: DrafterSpec, experiment: Experiment) -> None:
    if drafter.inner is not None:
        _check_drafter(drafter.inner, experiment)
    if drafter.kind == ROUNDED:
        check_rounded(drafter.model, experiment.target)
    recipe = None if drafter.model is None else _recipe_of(drafter.model, experiment)
    if drafter.model is None or recipe is None:
        return
    if drafter.model_kind != "heads":
        if recipe.family != "ngram":
            _check_language_model("draft", drafter.model, experiment)
        is_block, drafts_blocks = isinstance(recipe, DrafterRecipe), drafter.model_kind == "block"
        check_role(drafter.model.name, is_block=is_block, drafts_blocks=drafts_blocks)
    elif not isinstance(recipe, BlockwiseRecipe):
        raise no_block_heads(drafter.model.name)
    elif _recipe_of(experiment.target, experiment) not in (None, recipe.verifier):
        raise foreign_heads(drafter.model.name, experiment.target.name, ZOO + recipe.verifier.name)


def _check_language_model(role: str, spec: ModelSpec, experiment: Experiment) -> None:
    """UsageError for trained heads or counted n-grams of the zoo, which are no language models; before anything is trained."""
    family = getattr(_recipe_of(spec, experiment), "family", None)
    if family in PARTS_OF_OTHERS:
        raise UsageError(
            f"{role} {spec.name}: it is {PARTS_OF_OTHERS[family][0]}; expected a language model ({PARTS_OF_OTHERS[family][1]})"
        )


def _recipe_of(spec: ModelSpec, experiment: Experiment) -> AnyRecipe | None:
    return recipe_named(spec, experiment.profile, experiment.source)


def check_reach(spec: MethodSpec, most: int, what: str) -> None:
    """A drafter of blocks drafts no more than its block; a schedule that only begins at gamma may grow past it."""
    if spec.gamma > most and spec.has_constant_gamma and spec.drafter is not None:
        raise UsageError(
            f"gamma {spec.gamma}: drafter {spec.drafter.name} drafts {what} {most} tokens; expected 1 to {most}, or a "
            "drafter that was trained for more"
        )


def overload_of(spec: MethodSpec) -> str | None:
    """Return what it will cost that a pipeline has more processes than there are cores; None where it has not."""
    if not spec.is_pipeline or spec.options.candidates is None:
        return None
    return overload(spec.options.execution, spec.options.candidates, num_cores())


def check_tokens(records: Iterable[Record], target: str, vocab_size: int) -> None:
    """UsageError for a record with a token that its target does not have."""
    for record in records:
        if odd := [token for token in record.tokens or () if token >= vocab_size]:
            raise UsageError(
                f"record {record.signature}, example {record.example!r}: token {odd[0]}; target {target} has 0 to "
                f"{vocab_size - 1}: remove that line from its file, and it is run again"
            )


def check_alike(plain: Iterable[Record], records: Iterable[Record]) -> None:
    """UsageError for a text that is not plain decoding's, must be, and of which no divergence is noted: a run notes each.

    So it is for one whose prompt had other tokens: two texts were asked for.
    """
    good = {record.key: record for record in plain if record.status == "ok"}
    texts = {key: record.tokens for key, record in good.items()}
    for record in records:
        other = good.get(record.key, record).prompt_tokens
        if record.status == "ok" and other != record.prompt_tokens:
            raise UsageError(
                f"record {record.signature}, example {record.example!r}: its prompt has {record.prompt_tokens} tokens, plain "
                f"decoding's {other}; expected the same: does the tokenizer cut a text otherwise each time?"
            )
        if record.status == "ok" and record.divergence is None and texts.get(record.key, record.tokens) != record.tokens:
            raise UsageError(
                f"record {record.signature}, example {record.example!r}: its text is not plain decoding's, and no divergence "
                "is noted; expected either: remove that line from its file, and it is run again"
            )


def check_planned(experiment: Experiment, stored: Iterable[Key], planned: Callable[[Experiment], Sequence[Example]]) -> None:
    """UsageError for a record of an example that the experiment's data do not have; a larger limit may have been run before."""
    recorded = dict.fromkeys(example for example, _ in stored)
    foreign = recorded.keys() - {example.id for example in planned(experiment)}
    if foreign:
        longer = experiment.replace(limit=max(experiment.limit, len(recorded)))
        foreign -= {example.id for example in planned(longer)}
    if foreign:
        raise UsageError(
            f"records of {experiment.signature}: example {min(foreign)!r} is none of task {experiment.task!r} in "
            f"{experiment.source!r}; remove that line from their file"
        )
