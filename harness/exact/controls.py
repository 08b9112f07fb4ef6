"""Deliberately wrong samplers and sessions, sent through the audit's checks on its own models.

Most are mistakes that somebody shipped. They claim the guarantee of the right parts that they replace, and nothing registers
them. A check that misses one is worth nothing.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import lt
from typing import Any, Literal

import torch
from torch import Tensor

from harness.core.experiment import WIDE_DTYPES, DrafterSpec
from harness.core.records import Record
from harness.exact.checks import (
    KEPT,
    WINDOWS,
    Finding,
    check_identity,
    check_replay,
    check_samples,
    check_streams,
    check_ways,
    compare,
)
from harness.exact.ground import LONG, NUM_DRAFT, ModelGround
from harness.models.loading import LoadedModel
from harness.run.build import build_drafter
from harness.run.decode import generate
from harness.run.divergence import margin_at
from harness.run.prompts import Prompt
from kernels.verify import reference
from kernels.verify.fused_cpu import Loop
from methods.autoregressive import Autoregressive
from methods.models.base import Frame
from methods.sampling import Sampling, Uniforms
from methods.session import MIN_CAPACITY, ModelSession
from methods.speculative.block_verification import BlockVerification
from methods.speculative.decode import DraftAndVerify
from methods.speculative.model import ModelDrafter
from methods.speculative.per_row import UNIFORM, CopyDrafter, PerRow, RandomDrafter
from methods.speculative.rules import SpeculativeSampling, can_loop
from methods.speculative.schedules import Constant
from methods.types import (
    Clock,
    Drafter,
    Generation,
    Guarantee,
    Inputs,
    Method,
    Proposal,
    Session,
    Stop,
    TextSession,
    Verdict,
    VerifyRule,
)

STALE = 12  # rejected drafts that a faulty cache keeps


class _LenientBy:
    """Speculative sampling with any lenience, also above 1."""

    guarantee: Guarantee = "same_distribution"

    def __init__(self, lenience: float) -> None:
        self.lenience = lenience

    def verify(self, proposal: Proposal, target_logits: Tensor, sampling: Sampling, uniforms: Tensor) -> Verdict:
        target_probs = sampling.probs(target_logits)
        draft_probs = None if proposal.logits is None else proposal.sampling.probs(proposal.logits)
        lengths = torch.tensor(proposal.lengths, device=target_logits.device)
        decided = reference.verify(target_probs, draft_probs, proposal.tokens, lengths, uniforms, self.lenience)
        return Verdict(*decided, *reference.drafted_probs(target_probs, draft_probs, proposal.tokens))


class _LenientLoop(SpeculativeSampling):
    """Names a loop that is lenient; what the rule itself decides is right."""

    def loop(self, proposal: Proposal, sampling: Sampling) -> Loop | None:
        return Loop(1.02, looks_at_all=True) if super().loop(proposal, sampling) else None


class _NoResidual(SpeculativeSampling):
    """Draws the token that follows a rejection from the target itself."""

    def verify(self, proposal: Proposal, target_logits: Tensor, sampling: Sampling, uniforms: Tensor) -> Verdict:
        verdict = super().verify(proposal, target_logits, sampling, uniforms)
        rows = torch.arange(len(target_logits))
        wrong = sampling.draw(target_logits[rows, verdict.num_accepted], uniforms[:, -1])
        return replace(verdict, next_token=wrong)


class _TokenWiseResidual(BlockVerification):
    """Block verification that draws what follows a rejection from the residual of the token-wise rule."""

    def verify(self, proposal: Proposal, target_logits: Tensor, sampling: Sampling, uniforms: Tensor) -> Verdict:
        verdict = super().verify(proposal, target_logits, sampling, uniforms)
        draft_probs = None if proposal.logits is None else proposal.sampling.probs(proposal.logits)
        tokens, lengths = proposal.tokens, proposal.ragged_lengths()
        weights = reference.next_token_weights(
            sampling.probs(target_logits), draft_probs, tokens, lengths, verdict.num_accepted
        )
        return replace(verdict, next_token=reference.inverse_cdf(weights, uniforms[:, -1]))


class _LooksAgain(BlockVerification):
    """Block verification in a loop that looks again at the numbers of drafts behind the last that stands."""

    looks_ahead = False


class _DraftedBonus(SpeculativeSampling):
    """Emits the last draft as the bonus token, unverified, if all drafts before it are accepted."""

    def verify(self, proposal: Proposal, target_logits: Tensor, sampling: Sampling, uniforms: Tensor) -> Verdict:
        verdict = super().verify(proposal, target_logits, sampling, uniforms)
        last = torch.tensor(proposal.lengths, device=target_logits.device) - 1
        reached = (verdict.num_accepted >= last) & (last >= 0)
        drafted = proposal.tokens.gather(1, last.clamp(min=0).unsqueeze(1)).squeeze(1) if max(proposal.lengths) else last
        num_accepted = torch.where(reached, last, verdict.num_accepted)
        return replace(verdict, num_accepted=num_accepted, next_token=torch.where(reached, drafted, verdict.next_token))


class _NextDoor(SpeculativeSampling):
    """Replaces the target's own token by its neighbour in the vocabulary."""

    def verify(self, proposal: Proposal, target_logits: Tensor, sampling: Sampling, uniforms: Tensor) -> Verdict:
        verdict = super().verify(proposal, target_logits, sampling, uniforms)
        return replace(verdict, next_token=(verdict.next_token + 1) % target_logits.shape[-1])


class _Unsampled(ModelDrafter):
    """Draws at ``drawn_at`` times the temperature, but reports the law at the temperature itself."""

    def __init__(self, session: Session, drawn_at: float) -> None:
        super().__init__(session)
        self.drawn_at = drawn_at

    def propose(self, num_draft: Sequence[int], positions: Sequence[int], sampling: Sampling) -> Proposal:
        drawn = replace(sampling, temperature=self.drawn_at * sampling.temperature)
        return replace(super().propose(num_draft, positions, drawn), sampling=sampling, log_sum_exp=None)


class _StaleTarget(ModelSession):
    """A target that keeps the first dozen rejected drafts in its cache: more would not fit into every model."""

    kept = 0

    def prefill(self, inputs: Inputs) -> list[int]:
        self.kept = 0
        return super().prefill(inputs)

    def rewind(self, counts: Sequence[int]) -> None:
        if self.kept + max(counts) > STALE:
            super().rewind(counts)
        else:
            self.kept += max(counts)


class _StaleBeyond(_StaleTarget):
    """A target that does so once its cache has grown: holds more than MIN_CAPACITY tokens."""

    def rewind(self, counts: Sequence[int]) -> None:
        if max(self.lengths[0]) <= MIN_CAPACITY:
            ModelSession.rewind(self, counts)
        else:
            super().rewind(counts)


class _OffBeyond(ModelSession):
    """A target that gives every token its neighbour's logits once more than MIN_CAPACITY tokens are cached."""

    def extend(self, tokens: Tensor) -> Tensor:
        logits = super().extend(tokens)
        return logits.roll(1, -1) if max(self.lengths[0]) > MIN_CAPACITY else logits


class _Shifted(ModelSession):
    """A target whose positions are one too far in the round after one whose drafts all stood."""

    all_stood = False

    def prefill(self, inputs: Inputs) -> list[int]:
        self.all_stood = False
        return super().prefill(inputs)

    def rewind(self, counts: Sequence[int]) -> None:
        super().rewind(counts)
        self.all_stood = max(counts) == 0

    def _frame(self, new: Tensor, first: int, last: int) -> Frame:
        lengths = self.lengths
        if self.all_stood:  # the frame of a cache of one token more: room, angles and attention go as far as the positions
            self.lengths = [tuple(length + 1 for length in row) for row in lengths]
        frame = super()._frame(new, first, last)
        self.lengths = lengths
        return frame


class _LosesUpdates(ModelSession):
    """A target that gives the logits of the round before once in twenty rounds."""

    rounds, before = 0, torch.empty(0)

    def extend(self, tokens: Tensor) -> Tensor:
        logits, self.rounds = super().extend(tokens), self.rounds + 1
        given = self.before if self.rounds % 20 == 0 and self.before.shape == logits.shape else logits
        self.before = logits
        return given


class _CopyOrGuess(CopyDrafter):
    """Copies what followed the same two tokens, and guesses where nothing did: point masses beside logits."""

    def propose(self, text: Sequence[int], num_draft: int, uniforms: Tensor, sampling: Sampling) -> Proposal:
        copied = super().propose(text, num_draft, uniforms, sampling)
        return copied if copied.lengths[0] else RandomDrafter(self.vocab_size).propose(text, num_draft, uniforms, sampling)


class _UniformBeside(PerRow):
    """Takes the point mass of a row beside one that has logits for a uniform law."""

    def propose(self, num_draft: Sequence[int], positions: Sequence[int], sampling: Sampling) -> Proposal:
        proposal = super().propose(num_draft, positions, sampling)
        if proposal.logits is None:
            return proposal
        return replace(proposal, logits=torch.zeros_like(proposal.logits), sampling=UNIFORM)


class _NextDoorsNumber(Uniforms):
    """Draws a draft with the number that decides on the one behind it."""

    def __init__(self, seeds: Sequence[int], length: int, device: torch.device | str = "cpu", level: int = 0) -> None:
        super().__init__(seeds, length, device, level)
        self.table[:, self.DRAFT, :-1] = self.table[:, self.ACCEPT, 1:]


class _LastFromDraft(Uniforms):
    """Draws a round's last token with the number that decided on one of its drafts."""

    draft_number = 0

    def verify(self, starts: Sequence[int], count: int) -> Tensor:
        numbers = super().verify(starts, count)
        if count > self.draft_number:
            numbers[:, -1] = numbers[:, self.draft_number]
        return numbers


class _LastFromSecond(_LastFromDraft):
    draft_number = 1


class _SharedNoise(Uniforms):
    """Draws a draft, decides on it and replaces it with one and the same random number."""

    def __init__(self, seeds: Sequence[int], length: int, device: torch.device | str = "cpu", level: int = 0) -> None:
        super().__init__(seeds, length, device, level)
        self.table[:, self.ACCEPT] = self.table[:, self.SAMPLE] = self.table[:, self.DRAFT]


class _Reseeded(Uniforms):
    """Begins the same stream of random numbers again in every round."""

    def _window(self, stream: int, starts: Sequence[int], count: int) -> Tensor:
        return super()._window(stream, [0] * len(starts), count)


class _KeepsOn(DraftAndVerify):
    """Keeps the tokens that a round emitted behind a stopping token."""

    def generate(
        self, target: Session, inputs: Inputs, sampling: Sampling, uniforms: Uniforms, stop: Stop, clock: Clock | None = None
    ) -> list[Generation]:
        whole = Stop(max_new_tokens=stop.max_new_tokens)
        rows = super().generate(target, inputs, sampling, uniforms, whole, clock)
        return [_until_round_of(row, stop) for row in rows]


def _until_round_of(row: Generation, stop: Stop) -> Generation:
    end = next((place for place, token in enumerate(row.tokens) if token in stop.token_ids), None)
    if end is None:
        return row
    kept = 0
    for number, step in enumerate(row.steps, start=1):
        kept += step.emitted
        if kept > end:
            return Generation(row.tokens[:kept], row.steps[:number], "eos")
    raise AssertionError("every token belongs to a round")


@dataclass(frozen=True, kw_only=True)
class _Control:
    """A control: what is wrong, in words; the check that must find it; and the wrong parts.

    With ``drafts_itself`` the target drafts for itself, so that all drafts stand: with a draft that is nearly always refused
    the fault would never happen. With ``stops``, outputs end at a token that plain decoding emits, which then falls inside
    accepted blocks. ``dtype`` is the target's. ``can_happen`` says on which devices there is what is wrong, and ``beyond`` from
    how many cached tokens on.
    """

    what: str
    check: Literal["law", "samples", "greedy", "replay", "streams"]
    rule: Callable[[], VerifyRule] = SpeculativeSampling
    drafter: Callable[[TextSession], Drafter] = ModelDrafter
    session: Callable[..., Session] | None = None
    uniforms: Callable[..., Uniforms] = Uniforms
    loop: Callable[..., Method] = DraftAndVerify
    drafts_itself: bool = False
    stops: bool = False
    dtype: str = "float32"
    can_happen: Callable[[torch.device], bool] = lambda device: True
    beyond: int = 0

    def can_strike(self, device: torch.device, position_limit: int | None) -> bool:
        """Say whether what is wrong can be on such a device, of a target with so many positions (None: with any number)."""
        return self.can_happen(device) and (position_limit is None or position_limit - STALE - NUM_DRAFT > self.beyond)


CONTROLS = {
    "no residual": _Control(what="what follows a rejection is drawn from the target itself", check="law", rule=_NoResidual),
    "lenience 1.02": _Control(
        what="the target's probability is compared with 1.02 times the draft's",
        check="law",
        rule=partial(_LenientBy, 1.02),
    ),
    "lenience 1.02 in the compiled loop": _Control(
        what="a right rule names a loop for compiled passes that compares with 1.02 times the draft's probability",
        check="law",
        rule=_LenientLoop,
        can_happen=can_loop,
    ),
    "block verification, token-wise residual": _Control(
        what="blocks are decided on together, but what follows is drawn from max(0, target - draft)",
        check="law",
        rule=_TokenWiseResidual,
    ),
    "block verification, numbers again": _Control(
        what="a round looks again at numbers that decided how many drafts of the round before stand",
        check="replay",
        rule=_LooksAgain,
    ),
    "shared noise": _Control(
        what="a draft is drawn, decided on and replaced with one and the same number",
        check="samples",
        uniforms=_SharedNoise,
    ),
    "unsampled draft probabilities": _Control(
        what="drafts are drawn at half the temperature whose probabilities are reported",
        check="samples",
        drafter=partial(_Unsampled, drawn_at=0.5),
    ),
    "stale cache": _Control(what="the target keeps rejected drafts in its cache", check="greedy", session=_StaleTarget),
    "uniform reseeded per step": _Control(
        what="every round begins the same stream of numbers again", check="samples", uniforms=_Reseeded
    ),
    "bonus token from the draft": _Control(
        what="where all drafts before it stand, the last draft is emitted unverified", check="samples", rule=_DraftedBonus
    ),
    "tokens after EOS kept": _Control(
        what="what a round emitted behind a stopping token stays",
        check="greedy",
        loop=_KeepsOn,
        drafts_itself=True,
        stops=True,
    ),
    "neighbouring token": _Control(
        what="the target's own token is replaced by its neighbour in the vocabulary", check="greedy", rule=_NextDoor
    ),
    "acceptance number reused": _Control(
        what="the number that decided on the first draft also draws the round's last token",
        check="replay",
        uniforms=_LastFromDraft,
    ),
    "second acceptance number reused": _Control(
        what="the number that decided on the second draft also draws the round's last token",
        check="replay",
        uniforms=_LastFromSecond,
    ),
    "stale cache beyond 64": _Control(
        what="rejected drafts stay in a cache of more than 64 tokens",
        check="replay",
        session=_StaleBeyond,
        beyond=MIN_CAPACITY,
    ),
    "positions shifted": _Control(
        what="positions are one too far in the round after one whose drafts all stood",
        check="replay",
        session=_Shifted,
        drafts_itself=True,
    ),
    "lost update in bfloat16": _Control(
        what="once in twenty rounds the logits are those of the round before, in half precision",
        check="replay",
        session=_LosesUpdates,
        dtype="bfloat16",
    ),
    "point mass beside logits": _Control(
        what="a copied token's law is taken for uniform where another row of the batch has logits",
        check="replay",
        drafter=lambda session: _UniformBeside(_CopyOrGuess(session.vocab_size, min_match=2)),
    ),
    "neighbour's number": _Control(
        what="a draft is drawn with the number that decides on the draft behind it", check="streams", uniforms=_NextDoorsNumber
    ),
    "both arms wrong alike": _Control(
        what="plain decoding itself reads its neighbour's logits beyond 64 tokens",
        beyond=MIN_CAPACITY,
        check="replay",
        session=_OffBeyond,
        loop=lambda *parts: Autoregressive(),
    ),
}


CAUGHT = ("biased", "bug")  # verdicts; a check that could not tell, or that failed, has caught nothing


def run_control(control: _Control, greedy: ModelGround, drawn: ModelGround, draft: DrafterSpec) -> dict[str, Any]:
    """Check a control and say whether it was caught. Both grounds are of one target, at temperature 0 and above.

    Sampled outputs cannot show every fault of random numbers on every pair (a draft that is nearly always refused, a flat law).
    A control that they miss is replayed, as subjects are; "check" names what caught it, "missed_by" what did not.
    """
    checks = {
        "law": partial(_by_law, drawn),
        "samples": partial(_by_samples, drawn),
        "greedy": partial(_by_outputs, greedy),
        "replay": partial(_by_replay, drawn.in_dtype(control.dtype)),
        "streams": partial(_by_streams, drawn),
    }
    check, missed = control.check, {}
    finding = checks[check](control, draft)
    if finding.verdict not in CAUGHT and check == "samples":
        check, missed = "replay", {"missed_by": check, "tests": finding.evidence["tests"]}
        finding = checks[check](control, draft)
    return {"what": control.what, "check": check, "caught": finding.verdict in CAUGHT, **missed, **finding.evidence}


def _by_law(ground: ModelGround, control: _Control, draft: DrafterSpec) -> Finding:
    drafter = build_drafter(draft, ground.target, ground.models)
    windows = ground.windows(drafter, WINDOWS, KEPT)
    found = check_ways(control.rule(), windows, ground.sampling, ground.target.session().device)
    return max(found, key=lambda finding: finding.verdict in CAUGHT)


def _by_samples(ground: ModelGround, control: _Control, draft: DrafterSpec) -> Finding:
    method = _method(control, _session_of(ground, draft))
    return check_samples(ground.samples(method, uniforms_of=control.uniforms), ground)


def _by_replay(ground: ModelGround, control: _Control, draft: DrafterSpec) -> Finding:
    if ground.models.dtype not in WIDE_DTYPES and draft.model is not None:  # rounded weights have no half precision
        draft = replace(draft.alone, model=draft.model.whole)
    method = _method(control, _drafting(control, ground, draft))
    session = control.session(ground.target.stack) if control.session else None
    limit = ground.target.stack.position_limit
    longest = max(len(prompt) for inputs in ground.prefixes for prompt in inputs.prompts)
    length = LONG if limit is None else min(LONG, limit - longest - STALE - NUM_DRAFT)
    return check_replay(method, ground, session, control.uniforms, length)


def _by_streams(ground: ModelGround, control: _Control, draft: DrafterSpec) -> Finding:
    return check_streams(ground, control.uniforms)


def _by_outputs(ground: ModelGround, control: _Control, draft: DrafterSpec) -> Finding:
    """Compare outputs with plain decoding's; a divergence at a small margin is a near-tie."""
    target, plain = ground.target, ground.plain
    drafting = _drafting(control, ground, draft)
    session = control.session(target.stack) if control.session else target.session()
    if control.stops:
        target = _stopping(ground)

    def compared(name: str, prompt: Prompt) -> Record:
        right, made = (
            generate(plain, method, [prompt], target, where, 0)[0][0].tokens
            for method, where in ((Autoregressive(), target.session()), (_method(control, drafting), session))
        )

        def is_near_tie(position: int) -> bool:
            return lt(*margin_at(plain, (right, made), prompt, 0, ground.models))

        return compare(name, right, made, is_near_tie)

    return check_identity([compared(name, prompt) for name, prompt in ground.prompts.items()])


def _stopping(ground: ModelGround) -> LoadedModel:
    """Return the target, ending at the token that its greedy outputs hold most often behind their first two."""
    counts: Counter[int] = Counter()
    for prompt in ground.prompts.values():
        made = generate(ground.plain, Autoregressive(), [prompt], ground.target, ground.target.session(), 0)[0][0].tokens
        counts.update(set(made[2:]))
    return replace(ground.target, eos_token_ids=(max(counts, key=lambda token: (counts[token], -token)),))


def _method(control: _Control, drafting: TextSession) -> Method:
    return control.loop(control.drafter(drafting), control.rule(), partial(Constant, NUM_DRAFT))


def _drafting(control: _Control, ground: ModelGround, draft: DrafterSpec) -> TextSession:
    return ModelSession(ground.target.stack) if control.drafts_itself else _session_of(ground, draft)


def _session_of(ground: ModelGround, draft: DrafterSpec) -> TextSession:
    """Return a new session of the draft model, in the target's tokens."""
    drafter = build_drafter(draft, ground.target, ground.models)
    assert isinstance(drafter, ModelDrafter)
    return drafter.session
