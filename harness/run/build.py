"""From descriptions to objects: models are loaded once, methods are assembled from their parts by name."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from harness.core import plugins
from harness.core.errors import UsageError
from harness.core.experiment import (
    TRANSLATED,
    DrafterSpec,
    EarlyProbe,
    Experiment,
    MethodSpec,
    ModelSpec,
    RuleSpec,
    ScheduleSpec,
)
from harness.models.fit import Models, kept_tokens, load_block_heads, load_early_heads, load_ngrams
from harness.models.loading import LoadedModel
from harness.models.names import is_ngram_table
from harness.models.translation import fewer
from harness.run.refusals import check_assisted, check_reach
from methods.autoregressive import Autoregressive
from methods.beam import BeamSearch
from methods.options import Part, values_of
from methods.parts import DRAFTERS, METHODS, RULES, SCHEDULES
from methods.ppd.heads import EarlyHead, OwnHead, check_layers
from methods.ppd.pipeline import PredictivePipelinedDecoding
from methods.ppd.plans import Adaptive, Plan, Planner
from methods.session import ModelSession
from methods.specdec.blockwise import BlockwiseDrafter
from methods.specdec.drafter import BlockDrafter, DrafterAlone
from methods.specdec.stack import BlockStack
from methods.speculative.beam import SpeculativeBeamSearch
from methods.speculative.decode import DraftAndVerify
from methods.speculative.drafters import DraftParts
from methods.speculative.model import ModelDrafter
from methods.speculative.translation import UNSEEN, TranslatedSession, Translation
from methods.transformers_assisted import Assistance, check_early_exit, lend_early_exit, lend_lookup, lend_model
from methods.transformers_generate import TransformersGenerate
from methods.types import Drafter, Method, Schedule, TakesBack, VerifyRule

ON_ONE_DEVICE = ("ppd", "transformers")  # methods with caches of their own


def build_drafter(spec: DrafterSpec, target: LoadedModel, models: Models) -> Drafter:
    """Give a drafter what its description names: a model, in whatever form it reads one, and what drafts for it."""
    inner = None if spec.inner is None else _taking_back(spec.inner, target, models)
    read = {} if spec.model is None else _read_model(spec, spec.model, target, models)
    parts = DraftParts(vocab_size=target.vocab_size, target=target.stack, inner=inner, **read)
    return plugins.choose("drafter", spec.kind, DRAFTERS)(parts, **values_of(spec.options))


def _taking_back(spec: DrafterSpec, target: LoadedModel, models: Models) -> TakesBack:
    drafter = build_drafter(spec, target, models)
    if not isinstance(drafter, TakesBack):
        raise UsageError(f"drafter {spec.kind!r}: inside another it must take drafts back; expected model")
    return drafter


def _read_model(spec: DrafterSpec, model: ModelSpec, target: LoadedModel, models: Models) -> dict[str, Any]:
    """Load a drafter's model as trained heads, a counted table, a network of blocks, or a language model's session."""
    if spec.model_kind == "heads":
        return {"heads": load_block_heads(model, target)}
    if is_ngram_table(model):
        return {"table": load_ngrams(model, target)}
    translated = spec.kind in TRANSLATED
    draft = models.draft(model, target, drafts_blocks=spec.model_kind == "block", translated=translated)
    if spec.kind == "slem" and target.listener is not None:
        raise UsageError(f"drafter slem: {target.name} hears, and a text alone does not say what; expected tli")
    if kept_tokens(draft) and models.room is not None:
        raise UsageError(
            f"graphs: draft {draft.name} knows a part of the vocabulary alone, and reads other tokens in pieces; expected a "
            "draft that knows all, or --graphs off"
        )
    if translated or kept_tokens(draft):
        translation = _translation(spec, target, draft, models)
        return {
            "session": _translated_session(spec, draft, translation),
            "new_session": draft.session,
            "translation": translation,
        }
    return {"block": draft.stack} if isinstance(draft.stack, BlockStack) else {"session": models.session(draft, UNSEEN)}


def _translation(spec: DrafterSpec, target: LoadedModel, draft: LoadedModel, models: Models) -> Translation:
    """Return what both know, or as much of it as is drafted."""
    whole, count = models.translation(target, draft), _draft_tokens(spec)
    return whole if count is None else fewer(whole, count, target.eos_token_ids)


def _translated_session(spec: DrafterSpec, draft: LoadedModel, translation: Translation) -> TranslatedSession:
    """Return the draft's session in the target's tokens; where some alone are drafted, its head knows no others."""
    if _draft_tokens(spec) is None:
        return TranslatedSession(draft.session(), translation)
    places = torch.arange(len(translation.draft_ids))
    return TranslatedSession(ModelSession(draft.stack.over(translation.draft_ids)), replace(translation, draft_ids=places))


def _draft_tokens(spec: DrafterSpec) -> int | None:
    return getattr(spec.options, "draft_tokens", None)


def shared_tokens(experiment: Experiment, models: Models) -> str:
    """Say how many of the target's tokens its draft, of another vocabulary, has too, and how many it drafts."""
    drafter = _drafter_of(experiment.method)
    assert drafter.model is not None
    target = models.get(experiment.target)
    draft = models.draft(drafter.model, target, translated=True)
    shared = len(models.translation(target, draft).target_ids)
    drafted = len(_translation(drafter, target, draft, models).target_ids)
    alone = "these" if drafted == shared else f"{drafted:,} of these"
    return f"{shared:,} of {target.vocab_size:,} tokens of {target.name} are {draft.name}'s too: it drafts {alone} alone"


def build_rule(spec: RuleSpec | None) -> VerifyRule:
    spec = spec or RuleSpec()
    return plugins.choose("rule", spec.name, RULES)(**values_of(spec.options))


def build_schedule(spec: ScheduleSpec | None) -> Callable[[], Schedule]:
    """Return a factory, since every row of every generation has a schedule of its own."""
    spec = spec or ScheduleSpec()
    return partial(plugins.choose("schedule", spec.name, SCHEDULES), **values_of(spec.options))


def _speculative(spec: MethodSpec, target: LoadedModel, models: Models) -> Method:
    drafter = build_drafter(_drafter_of(spec), target, models)
    _check_gamma(spec, drafter)
    return DraftAndVerify(drafter, build_rule(spec.rule), build_schedule(spec.schedule))


def _alone(spec: MethodSpec, target: LoadedModel, models: Models) -> Method:
    drafter = build_drafter(_drafter_of(spec), target, models)
    if not isinstance(drafter, BlockDrafter):
        raise UsageError(f"drafter {_drafter_of(spec).kind!r}: only a block drafter decodes alone; expected drafter block")
    _check_gamma(spec, drafter)
    return DrafterAlone(drafter, spec.gamma)


def _check_gamma(spec: MethodSpec, drafter: Drafter) -> None:
    if isinstance(drafter, BlockDrafter):
        check_reach(spec, drafter.stack.block_size, "blocks of")
    elif isinstance(drafter, BlockwiseDrafter):
        check_reach(spec, drafter.heads.num_heads, "with as many heads as")


def _speculative_beam(spec: MethodSpec, target: LoadedModel, models: Models) -> Method:
    drafter = build_drafter(_drafter_of(spec), target, models)
    if not isinstance(drafter, ModelDrafter):
        raise UsageError(f"drafter {_drafter_of(spec).kind!r}: speculative beam search needs a draft model: give --draft")
    width = _checked_beams("draft_beams", spec.options.draft_width, target)
    return SpeculativeBeamSearch(drafter.session, spec.num_beams, width, spec.gamma)


def _checked_beams(name: str, count: int, target: LoadedModel) -> int:
    """Return the width. UsageError for one above the vocabulary: a search begins with a token a beam."""
    if count > target.vocab_size:
        raise UsageError(f"{name} {count}: expected at most the vocabulary's {target.vocab_size} tokens; lower it")
    return count


def early_reader(spec: EarlyProbe, target: LoadedModel) -> EarlyHead:
    """Return what reads a match rate; refused where the model or the heads do not have one of its layers."""
    target.stack.check_layers_alone()
    head = early_head(spec.heads, target)
    check_layers(spec.layers, target.stack.num_layers)
    for layer in spec.layers:
        head.weight(layer)
    return head


def early_head(spec: ModelSpec | None, target: LoadedModel) -> EarlyHead:
    """Return the model's own head ("N"), or trained ones ("Y") from the zoo or a folder."""
    return OwnHead() if spec is None else load_early_heads(spec, target)


def build_ppd(spec: MethodSpec, target: LoadedModel, models: Models) -> PredictivePipelinedDecoding:
    """Make a pipeline; what the specification leaves open is chosen from measurements as it runs."""
    head, execution = early_head(spec.heads, target), spec.options.execution
    planner: Planner
    early_layer, candidates = spec.options.early_layer, spec.options.candidates
    if early_layer is not None and candidates is not None:
        planner = Plan(early_layer=early_layer, num_candidates=candidates)
    else:
        planner = Adaptive(head, early_layer, candidates, execution)
    return PredictivePipelinedDecoding(target.stack, head, planner, execution)


def _transformers(spec: MethodSpec, target: LoadedModel, models: Models) -> Method:
    """Make transformers' own loop; with a drafter it is assisted generation."""
    check_assisted(spec)
    assistance = None if spec.drafter is None else _assistance(spec, spec.drafter, target, models)
    return TransformersGenerate(_checked_beams("num_beams", spec.num_beams, target), assistance)


def _assistance(spec: MethodSpec, drafter: DrafterSpec, target: LoadedModel, models: Models) -> Assistance:
    assert spec.schedule is not None
    if drafter.model is not None:
        translated = drafter.kind in TRANSLATED
        draft = models.draft(drafter.model, target, drafts_blocks=False, translated=translated)
        if kept_tokens(draft):
            raise UsageError(
                f"draft {draft.name}: it knows a part of the vocabulary alone, which transformers cannot draft with"
            )
        tokenizers = {"tokenizer": target.tokenizer, "assistant_tokenizer": draft.tokenizer} if translated else {}
        return partial(lend_model, draft=draft.stack, gamma=spec.gamma, schedule=spec.schedule.name, tokenizers=tokenizers)
    layer = spec.options.early_layer
    if layer is None:
        return partial(lend_lookup, gamma=spec.gamma)
    check_early_exit(target.stack, layer)
    return partial(lend_early_exit, layer=layer, gamma=spec.gamma, schedule=spec.schedule.name)


BUILDERS: dict[str, Callable[[MethodSpec, LoadedModel, Models], Method]] = {
    "autoregressive": lambda spec, target, models: Autoregressive(),
    "beam": lambda spec, target, models: BeamSearch(_checked_beams("num_beams", spec.num_beams, target)),
    "drafter-alone": _alone,
    "ppd": build_ppd,
    "speculative": _speculative,
    "speculative-beam": _speculative_beam,
    "transformers": _transformers,
}


def build_method(spec: MethodSpec, target: LoadedModel, models: Models) -> Method:
    if target.stack.parts and spec.name in ON_ONE_DEVICE:
        raise UsageError(
            f"method {spec.name!r}: {target.name} lies on several devices, which its own sessions cannot read; "
            "expected a target on one device, or another method"
        )
    entry = plugins.choose("method", spec.name, METHODS)
    return BUILDERS[spec.name](spec, target, models) if isinstance(entry, Part) else entry(spec, target, models)


def specs_of(experiment: Experiment) -> list[ModelSpec]:
    """Return every model, table and set of heads that an experiment names, the target first."""
    drafters = [one for one in (experiment.method.drafter, *experiment.overlap) if one is not None]
    drafting = [model for drafter in drafters for model in drafter.models]
    return list(dict.fromkeys([experiment.target, *drafting, *heads_of(experiment)]))


def heads_of(experiment: Experiment) -> list[ModelSpec]:
    """Return the trained heads that an experiment names: early ones, and those that a drafter has."""
    drafters = (experiment.method.drafter, *experiment.overlap)
    blockwise = [drafter.model for drafter in drafters if drafter is not None and drafter.model_kind == "heads"]
    early = [experiment.method.heads, *(early.heads for early in experiment.early)]
    return [spec for spec in (*early, *blockwise) if spec is not None]


def _drafter_of(spec: MethodSpec) -> DrafterSpec:
    if spec.drafter is None:
        raise UsageError(f"method {spec.name!r}: expected a drafter; name a model with --draft or a kind with --drafter")
    return spec.drafter
