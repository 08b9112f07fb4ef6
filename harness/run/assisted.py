"""transformers' own loop as a method: which of its ways to draft a description names, and what it cannot follow."""

from collections.abc import Callable

from harness.core.errors import UsageError
from harness.core.experiment import MethodSpec, ModelSpec
from harness.models.loading import LoadedModel
from methods.transformers_assisted import Assistance, Assistant, EarlyExit, PromptLookup, check_schedule

LOOKUP, EXIT = "prompt-lookup", "early-exit"
THEIRS = (LOOKUP, EXIT)  # kinds of drafters that only transformers' loop has


def check_assisted(spec: MethodSpec) -> None:
    """UsageError for what transformers' assisted generation does not have, or what it would leave unread."""
    kind = None if spec.drafter is None else spec.drafter.kind
    early_layer, num_beams = spec.options.early_layer, spec.options.num_beams
    if early_layer is not None and kind != EXIT:
        raise UsageError(f"early_layer {early_layer}: of method 'transformers' only drafter {EXIT} reads it; leave it out")
    if spec.drafter is None or kind is None:
        return
    if kind not in ("model", *THEIRS):
        raise UsageError(
            f"drafter {kind!r}: transformers' assisted generation needs a draft model (--draft), {LOOKUP} or {EXIT}"
        )
    if kind == "model" and spec.drafter.model is None:
        raise UsageError(f"drafter {kind!r}: transformers' assisted generation needs a draft model: give --draft")
    if kind != "model" and spec.drafter.model is not None:
        raise UsageError(f"draft {spec.drafter.model.name!r}: drafter {kind} has no model of its own; leave it out")
    if kind == EXIT and early_layer is None:
        raise UsageError(f"drafter {EXIT}: expected the layer behind which the target drafts: give --early-layer")
    if num_beams > 1:
        raise UsageError(f"num_beams {num_beams}: transformers' assisted generation has no beams; expected 1, or no drafter")
    assert spec.schedule is not None
    check_schedule(spec.schedule.name, drafts_by_lookup=kind == LOOKUP)


def assistance_of(spec: MethodSpec, target: LoadedModel, draft: Callable[[ModelSpec], LoadedModel]) -> Assistance | None:
    """Who drafts; None for a loop without drafts. ``draft`` loads a draft model, which must fit the target."""
    check_assisted(spec)
    if spec.drafter is None:
        return None
    assert spec.schedule is not None
    if spec.drafter.model is not None:
        return Assistant(draft(spec.drafter.model).stack, spec.gamma, spec.schedule.name)
    if spec.options.early_layer is None:
        return PromptLookup(spec.gamma)
    early = EarlyExit(spec.options.early_layer, spec.gamma, spec.schedule.name)
    early.check(target.stack)
    return early
