"""Deliberately wrong variants, sent through the audit's checks on its own models: a check that misses one is worth nothing."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from harness.audit import wrong
from harness.audit.ground import NUM_DRAFT, Ground
from harness.audit.laws import LAW_BOUND
from harness.audit.sampling import KEPT, TEST_LEVEL, WINDOWS, deviations, fits_at, shown
from harness.decode import generate
from harness.divergence import first_difference, margin_at
from harness.experiment import DrafterSpec
from harness.models import LoadedModel
from methods.autoregressive import Autoregressive
from methods.sampling import Uniforms
from methods.session import ModelSession
from methods.speculative.decode import DraftAndVerify
from methods.speculative.model import ModelDrafter
from methods.speculative.rules import SpeculativeSampling
from methods.speculative.schedules import Constant
from methods.types import Drafter, Method, Session, VerifyRule

Finding = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Control:
    """What is wrong in words, the check that must find it, and the parts that stand in the place of the right ones.

    With ``stops`` outputs end at a token that plain decoding emits, and the target drafts for itself, so that it falls inside
    of accepted blocks.
    """

    what: str
    check: Literal["law", "samples", "greedy"]
    rule: Callable[[], VerifyRule] = SpeculativeSampling
    drafter: Callable[[Session], Drafter] = ModelDrafter
    session: Callable[..., Session] | None = None
    uniforms: Callable[..., Uniforms] = Uniforms
    loop: Callable[..., Method] = DraftAndVerify
    stops: bool = False


CONTROLS = {
    "no residual": Control(what="what follows a rejection is drawn from the target itself", check="law", rule=wrong.NoResidual),
    "lenience 1.02": Control(
        what="the target's probability is compared with 1.02 times the draft's",
        check="law",
        rule=partial(wrong.LenientBy, 1.02),
    ),
    "shared noise": Control(
        what="a draft is drawn, decided on and replaced with one and the same number",
        check="samples",
        uniforms=wrong.SharedNoise,
    ),
    "unsampled draft probabilities": Control(
        what="drafts are drawn at half the temperature whose probabilities are reported",
        check="samples",
        drafter=partial(wrong.Unsampled, drawn_at=0.5),
    ),
    "stale cache": Control(what="the target keeps rejected drafts in its cache", check="greedy", session=wrong.StaleTarget),
    "uniform reseeded per step": Control(
        what="every round begins the same stream of numbers again", check="samples", uniforms=wrong.Reseeded
    ),
    "bonus token from the draft": Control(
        what="where all drafts before it stand, the last draft is emitted unverified", check="samples", rule=wrong.DraftedBonus
    ),
    "tokens after EOS kept": Control(
        what="what a round emitted behind a stopping token stays", check="greedy", loop=wrong.KeepsOn, stops=True
    ),
    "neighbouring token": Control(
        what="the target's own token is replaced by its neighbour in the vocabulary", check="greedy", rule=wrong.NextDoor
    ),
}


def run_control(control: Control, greedy: Ground, drawn: Ground, draft: DrafterSpec) -> Finding:
    """Whether the check found it, and by what. ``greedy`` and ``drawn`` are of one target, at temperature 0 and above."""
    check = {
        "law": partial(_by_law, drawn),
        "samples": partial(_by_samples, drawn),
        "greedy": partial(_by_outputs, greedy),
    }[control.check]
    return {"what": control.what, "check": control.check, **check(control, draft)}


def _by_law(ground: Ground, control: Control, draft: DrafterSpec) -> Finding:
    windows = [window for _, window in ground.windows(draft, WINDOWS, KEPT)]
    found = deviations(control.rule(), windows, ground.plain.sampling)
    return {"caught": max(found.values(), default=0.0) > LAW_BOUND, "largest_deviation": found}


def _by_samples(ground: Ground, control: Control, draft: DrafterSpec) -> Finding:
    method = _method(control, ground.models.draft(_model_of(draft), ground.target))
    fits = fits_at(ground.samples(method, uniforms_of=control.uniforms), ground)
    caught = [place for place, fit in fits.items() if not fit.passes(TEST_LEVEL)]
    return {"caught": bool(caught), "failed": caught, "tests": {place: shown(fit) for place, fit in fits.items()}}


def _by_outputs(ground: Ground, control: Control, draft: DrafterSpec) -> Finding:
    """Outputs beside plain decoding's, parted at more than a near-tie."""
    target, plain = ground.target, ground.plain
    drafting = target if control.stops else ground.models.draft(_model_of(draft), target)
    session = control.session(target.stack) if control.session else target.session()
    if control.stops:
        target = _stopping(ground)
    parted = 0
    for prompt in ground.prompts.values():
        right, made = (
            generate(plain, method, [prompt], target, where, 0)[0][0].tokens
            for method, where in ((Autoregressive(), target.session()), (_method(control, drafting), session))
        )
        if right != made:
            position = first_difference(right, made)
            ended = position == min(len(right), len(made))
            margin, bound = (0.0, 0.0) if ended else margin_at((plain, plain), right, position, prompt, 0, ground.models)
            parted += ended or margin >= bound
    return {"caught": parted > 0, "prompts": len(ground.prompts), "bugs": parted}


def _stopping(ground: Ground) -> LoadedModel:
    """The target, ending at the token that its greedy outputs hold most often behind their first two."""
    counts: Counter[int] = Counter()
    for prompt in ground.prompts.values():
        made = generate(ground.plain, Autoregressive(), [prompt], ground.target, ground.target.session(), 0)[0][0].tokens
        counts.update(set(made[2:]))
    return replace(ground.target, eos_token_ids=(max(counts, key=lambda token: (counts[token], -token)),))


def _method(control: Control, drafting: LoadedModel) -> Method:
    return control.loop(control.drafter(ModelSession(drafting.stack)), control.rule(), partial(Constant, NUM_DRAFT))


def _model_of(draft: DrafterSpec) -> Any:
    assert draft.model is not None
    return draft.model
