"""The law of the tokens that a verify rule emits, integrated exactly over its uniform numbers by calling the rule itself.

Comparing it with the target's law finds biases down to 1e-6 in what a rule decides (a lenience of 1.02, say). Faults around
the rule (caches, drafters, random numbers) need samples: ``harness.exact.fit``. A rule that looks ahead decides on whole
blocks, and so is integrated over them: ``harness.exact.block_law``.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from harness.exact.bisection import LARGEST_UNIFORM, SPREAD, Decisions, turn_at, turning_points
from harness.exact.block_law import block_laws
from methods.errors import InputError
from methods.sampling import Sampling
from methods.speculative.overlap import teacher_logits
from methods.types import Drafter, Inputs, Proposal, Session, VerifyRule, looks_ahead

LAW_BOUND = 1e-6
MAX_NUMBERS = 2**22


@dataclass(frozen=True)
class _Round:
    """One round of a rule in which only the draft at ``position`` and the uniforms vary.

    The drafts before ``position`` are tokens that the target can emit, at uniform 0, which no rule refuses.
    Position n is the token behind n accepted drafts.
    """

    rule: VerifyRule
    target_logits: Float[Tensor, "n_plus_1 V"]
    draft_logits: Float[Tensor, "n V"] | None
    sampling: Sampling
    draft_sampling: Sampling
    position: int
    drafts: Int[Tensor, " n"]

    def verify(
        self, tokens: Int[Tensor, "B"], accept: Float[Tensor, "B"], final: Float[Tensor, "B"]
    ) -> tuple[Bool[Tensor, "B"], Int[Tensor, "B"]]:
        """Return, for each row's draft at ``position``, whether the rule accepts it, and the round's last token.

        The rule decides where the logits lie, by the backend that belongs there.
        """
        batch, length, device = len(tokens), len(self.drafts), self.target_logits.device
        drafts = self.drafts.expand(batch, length).clone()
        uniforms = torch.zeros(batch, length + 1, dtype=torch.float64)
        uniforms[:, -1] = final
        if self.position < length:
            drafts[:, self.position] = tokens
            uniforms[:, self.position] = accept
        logits = None if self.draft_logits is None else self.draft_logits.expand(batch, -1, -1)
        proposal = Proposal(drafts.to(device), (length,) * batch, logits, self.draft_sampling)
        verdict = self.rule.verify(proposal, self.target_logits.expand(batch, -1, -1), self.sampling, uniforms.to(device))
        accepted = verdict.num_accepted.cpu()
        if bool((accepted < min(self.position, length)).any()):
            raise InputError("rule: refuses, at uniform 0, a draft that the target can emit; its law cannot be integrated")
        return accepted > self.position, verdict.next_token.cpu()


def emitted_law(
    rule: VerifyRule,
    target_logits: Float[Tensor, "n_plus_1 V"],
    draft: Float[Tensor, "n V"] | Sequence[int],
    sampling: Sampling,
    position: int,
    draft_sampling: Sampling | None = None,
) -> Float[Tensor, "V"]:
    """Return the law of the token that a round emits at ``position``, given that the drafts before it are accepted.

    Position n is the bonus token. ``draft`` holds the draft's raw logits, or the n tokens of a point mass. The rule itself is
    called: its acceptance threshold for each token and the steps of its last token are found by bisection in fp64, each to
    2**-34, which begins at those of Algorithm 1 (Leviathan et al.) where the rule's lie there. Bisection assumes, and
    spot-checks, that a draft is accepted for uniforms up to a threshold and that the id of the last token does not fall as its
    uniform grows. Memory is V * (n + 1) * V numbers: use it for vocabularies of at most a few thousand tokens.

    Raises:
        InputError: the rule is not monotone in that sense.
    """
    law_of_drafts, fixed = _fixed_round(rule, target_logits, draft, sampling, position, draft_sampling)
    target = sampling.probs(target_logits.double())[position].cpu()
    if law_of_drafts is None:
        return _last_token_law(fixed, torch.zeros(1, dtype=torch.long), 0.0, target)[0]
    tokens = law_of_drafts.nonzero().squeeze(-1)
    thresholds = _accept_thresholds(fixed, tokens, (target / law_of_drafts)[tokens].clamp(max=1))
    law = torch.zeros(target_logits.shape[-1], dtype=torch.float64)
    law[tokens] = law_of_drafts[tokens] * thresholds
    refused = thresholds < 1
    if bool(refused.any()):
        mass = law_of_drafts[tokens[refused]] * (1 - thresholds[refused])
        residual = (target - law_of_drafts).clamp(min=0)
        law += (mass.unsqueeze(-1) * _last_token_law(fixed, tokens[refused], LARGEST_UNIFORM, residual)).sum(0)
    _spot_check(fixed, tokens, thresholds)
    return law


def emitted_laws(
    rule: VerifyRule,
    target_logits: Float[Tensor, "n_plus_1 V"],
    draft: Float[Tensor, "n V"] | Sequence[int],
    sampling: Sampling,
    draft_sampling: Sampling | None = None,
) -> Float[Tensor, "n_plus_1 V"]:
    """Return ``emitted_law`` at every place of a round; the last row is the bonus token's.

    Of a rule that looks ahead it is the law of ``block_laws``.
    """
    if looks_ahead(rule):
        return block_laws(rule, target_logits, draft, sampling, draft_sampling or sampling)
    places = range(target_logits.shape[0])
    return torch.stack([emitted_law(rule, target_logits, draft, sampling, place, draft_sampling) for place in places])


def largest_deviation(
    rule: VerifyRule,
    target_logits: Float[Tensor, "n_plus_1 V"],
    draft: Float[Tensor, "n V"] | Sequence[int],
    sampling: Sampling,
    draft_sampling: Sampling | None = None,
) -> float:
    """Return the largest distance between a probability of an emitted law and the target's adjusted one, over all places."""
    laws = emitted_laws(rule, target_logits, draft, sampling, draft_sampling)
    return float((laws - sampling.probs(target_logits.double()).cpu()).abs().max())


def _fixed_round(
    rule: VerifyRule,
    target_logits: Tensor,
    draft: Tensor | Sequence[int],
    sampling: Sampling,
    position: int,
    draft_sampling: Sampling | None,
) -> tuple[Tensor | None, _Round]:
    """Return the law of the draft under test (None for the bonus position) and the round around it."""
    logits = draft if isinstance(draft, Tensor) else None
    length, vocab_size = target_logits.shape[0] - 1, target_logits.shape[-1]
    best = sampling.probs(target_logits)[:length].argmax(-1).cpu()
    draft_sampling = draft_sampling or sampling
    fixed = _Round(rule, target_logits, logits, sampling, draft_sampling, position, best)
    if position == length:
        return None, fixed
    if logits is not None:
        return draft_sampling.probs(logits[position].double()).cpu(), fixed
    point = torch.tensor([draft[position]])
    return torch.nn.functional.one_hot(point, vocab_size)[0].double(), fixed


def _accept_thresholds(fixed: _Round, tokens: Int[Tensor, "K"], guesses: Float[Tensor, "K"]) -> Float[Tensor, "K"]:
    """Return the largest uniform that accepts each token: exactly 0 or 1 if none or all of them do."""
    final = torch.zeros(len(tokens), dtype=torch.float64)
    always = fixed.verify(tokens, torch.full_like(final, LARGEST_UNIFORM), final)[0]
    never = ~fixed.verify(tokens, torch.full_like(final, SPREAD), final)[0]
    found = turning_points(lambda accept: fixed.verify(tokens, accept, final)[0], len(tokens), guesses)
    return torch.where(always, 1.0, torch.where(never, 0.0, found))


def _last_token_law(
    fixed: _Round, tokens: Int[Tensor, "K"], accept: float, weights: Float[Tensor, "V"]
) -> Float[Tensor, "K V"]:
    """Return the law of the last token behind each refused draft, by ``weights`` if the rule is Algorithm 1.

    For most rules it does not depend on the draft. Two looks at each step confirm that, which saves a bisection per draft.
    """
    guesses = (weights.cumsum(0) / weights.sum()).nan_to_num().clamp(max=1)
    [edges] = _steps(fixed, tokens[:1], accept, guesses)
    found = []
    for some in tokens.split(max(1, MAX_NUMBERS // (fixed.target_logits.numel() * len(edges)))):
        own, differs = edges.repeat(len(some), 1), ~_agrees(fixed, some, accept, edges)
        if bool(differs.any()):
            own[differs] = _steps(fixed, some[differs], accept, guesses)
        found.append(own)
    steps = torch.cat(found)
    return torch.diff(steps, prepend=steps.new_zeros(len(steps), 1))


def _agrees(fixed: _Round, tokens: Int[Tensor, "K"], accept: float, edges: Float[Tensor, "V"]) -> Bool[Tensor, "K"]:
    """Check that the last token behind each refused draft changes exactly at ``edges``, looking just before and behind each."""
    fits = turn_at(_at_most(fixed, tokens, accept), edges.repeat(len(tokens)))
    return fits.view(-1, len(edges)).all(-1)


def _steps(fixed: _Round, tokens: Int[Tensor, "K"], accept: float, guesses: Float[Tensor, "V"]) -> Float[Tensor, "K V"]:
    """Return, for each draft, the cumulative law: of every token the largest uniform at which the last one is at most it."""
    holds, count = _at_most(fixed, tokens, accept), len(tokens) * len(guesses)
    whole = holds(torch.full((count,), LARGEST_UNIFORM, dtype=torch.float64))
    found = turning_points(holds, count, guesses.repeat(len(tokens)))
    return torch.where(whole, 1.0, found).view(-1, len(guesses))


def _at_most(fixed: _Round, tokens: Int[Tensor, "K"], accept: float) -> Decisions:
    """Return what says, of each token of the vocabulary behind each refused draft, whether the last token is at most it."""
    vocab_size = fixed.target_logits.shape[-1]
    index, rows = torch.arange(vocab_size).repeat(len(tokens)), tokens.repeat_interleave(vocab_size)
    accepts = torch.full((len(rows),), accept, dtype=torch.float64)
    return lambda finals: fixed.verify(rows, accepts, finals)[1] <= index


def _spot_check(fixed: _Round, tokens: Int[Tensor, "K"], thresholds: Float[Tensor, "K"]) -> None:
    """Try seeded random uniforms: thresholds must separate them, and the last token's id must not fall as its uniform grows."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(8):
        accept = torch.rand(len(tokens), dtype=torch.float64, generator=generator)
        low, high = torch.rand(2, len(tokens), dtype=torch.float64, generator=generator).sort(0).values
        stands, lower = fixed.verify(tokens, accept, low)
        higher = fixed.verify(tokens, accept, high)[1]
        clear = (accept - thresholds).abs() > SPREAD
        if bool((clear & (stands != (accept < thresholds))).any()) or bool((lower > higher).any()):
            raise InputError("rule: its decisions are not monotone in the uniforms, so its law cannot be integrated")


@dataclass(frozen=True)
class Window:
    """Real target and draft laws at n + 1 neighbouring places of a text, cut to the K likeliest tokens there.

    They lie on the run's device and have its dtype, so that the rule decides on them as it did in the run (on a CPU fp64 in
    place of fp32: the code is the same and the law sharper).
    ``draft_logits`` are logarithms of the draft's adjusted law, renormalised, so drafts are drawn from them at temperature 1.
    """

    target_logits: Float[Tensor, "n_plus_1 K"]
    draft_logits: Float[Tensor, "n K"]

    def laws(self, rule: VerifyRule, sampling: Sampling) -> tuple[Float[Tensor, "n_plus_1 K"], Float[Tensor, "n_plus_1 K"]]:
        """Return the law that the rule emits at every place (the bonus last), and the target's."""
        emitted = emitted_laws(rule, self.target_logits, self.draft_logits, sampling, Sampling(temperature=1.0))
        return emitted, sampling.probs(self.target_logits.double()).cpu()


def windows_of(
    session: Session,
    drafter: Drafter,
    inputs: Inputs,
    tokens: Sequence[int],
    sampling: Sampling,
    num_draft: int,
    count: int,
    kept: int,
) -> Iterator[Window]:
    """Yield up to ``count`` windows of ``num_draft`` drafts and a bonus, spread over the first half of an output (one row).

    A window begins only where the drafter proposes something, and keeps the ``kept`` likeliest tokens of target and draft each.
    """
    pending, chunks = teacher_logits(session, inputs, tokens)
    logits = torch.cat(list(chunks))
    logits = logits.double() if (logits.device.type, logits.dtype) == ("cpu", torch.float32) else logits
    laws = torch.cat(list(drafter.teacher_probs(inputs, pending, tokens, sampling))).double().to(logits.device)
    drafted = laws.sum(-1) > 0
    last = max(0, (len(laws) - num_draft - 1) // 2)
    starts = [start for start in range(last + 1) if bool(drafted[start : start + num_draft].all())]
    for start in [starts[index * (len(starts) - 1) // max(1, count - 1)] for index in range(min(count, len(starts)))]:
        window = slice(start, start + num_draft + 1)
        fewer = min(kept, logits.shape[-1])
        both = torch.cat((logits[window].topk(fewer).indices, laws[window].topk(fewer).indices)).unique()
        draft = laws[window, both][:num_draft]
        target = logits[window][:, both]
        if len(target) == num_draft + 1 and bool((draft.sum(-1) > 0).all()):
            yield Window(target, (draft / draft.sum(-1, keepdim=True)).log().to(target.dtype))
