"""Whether a rule keeps the target's law, to 1e-6: its output law, integrated over its uniforms by calling the rule itself.

Finds small biases in what a rule decides (a lenience of 1.02, say); ``methods.goodness`` finds faults around the rule.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from methods.errors import InputError
from methods.sampling import Sampling
from methods.types import Proposal, VerifyRule

HALVINGS = 36
SPREAD = 2.0 ** (2 - HALVINGS)
BELOW_ONE = 1 - 2.0**-53
MAX_NUMBERS = 2**22


@dataclass(frozen=True)
class _Round:
    """A rule with everything but the draft under test and the uniforms held fixed.

    The drafts before ``position`` are tokens that the target can emit, at uniform 0, which no rule refuses;
    position n asks for the token behind n accepted drafts.
    """

    rule: VerifyRule
    target_logits: Float[Tensor, "n_plus_1 V"]
    draft_logits: Float[Tensor, "n V"] | None
    sampling: Sampling
    draft_sampling: Sampling
    position: int
    drafts: Int[Tensor, "n"]

    def verify(
        self, tokens: Int[Tensor, "B"], accept: Float[Tensor, "B"], final: Float[Tensor, "B"]
    ) -> tuple[Bool[Tensor, "B"], Int[Tensor, "B"]]:
        """For each row's draft at ``position``: whether it stands, and the round's last token."""
        batch, length = len(tokens), len(self.drafts)
        drafts = self.drafts.expand(batch, length).clone()
        uniforms = torch.zeros(batch, length + 1, dtype=torch.float64)
        uniforms[:, -1] = final
        if self.position < length:
            drafts[:, self.position] = tokens
            uniforms[:, self.position] = accept
        logits = None if self.draft_logits is None else self.draft_logits.expand(batch, -1, -1)
        proposal = Proposal(drafts, (length,) * batch, logits, self.draft_sampling)
        verdict = self.rule.verify(proposal, self.target_logits.expand(batch, -1, -1), self.sampling, uniforms)
        if bool((verdict.num_accepted < min(self.position, length)).any()):
            raise InputError("rule: refuses, at uniform 0, a draft that the target can emit; its law cannot be integrated")
        return verdict.num_accepted > self.position, verdict.next_token


def emitted_law(
    rule: VerifyRule,
    target_logits: Float[Tensor, "n_plus_1 V"],
    draft: Float[Tensor, "n V"] | Sequence[int],
    sampling: Sampling,
    position: int,
    draft_sampling: Sampling | None = None,
) -> Float[Tensor, "V"]:
    """The law of the token that a round emits at ``position``, given that the drafts before it stand; n is the bonus.

    ``draft`` holds the draft's raw logits, or the n tokens of a point mass. The rule itself is called: its acceptance
    threshold for each token and the steps of its last token are found by bisection in fp64, which takes for granted (and
    spot-checks) that a draft stands for uniforms up to a threshold and that the last token does not fall as its uniform
    grows. Each threshold is known to 2**-34. Memory is V * (n + 1) * V numbers: meant for vocabularies of at most a
    few thousand tokens.

    Raises:
        InputError: the rule is not monotone in that sense.
    """
    law_of_drafts, fixed = _fixed_round(rule, target_logits, draft, sampling, position, draft_sampling)
    if law_of_drafts is None:
        return _last_token_law(fixed, torch.zeros(1, dtype=torch.long), 0.0)[0]
    tokens = law_of_drafts.nonzero().squeeze(-1)
    thresholds = _accept_thresholds(fixed, tokens)
    law = torch.zeros(target_logits.shape[-1], dtype=torch.float64)
    law[tokens] = law_of_drafts[tokens] * thresholds
    refused = thresholds < 1
    if bool(refused.any()):
        mass = law_of_drafts[tokens[refused]] * (1 - thresholds[refused])
        law += (mass.unsqueeze(-1) * _last_token_law(fixed, tokens[refused], BELOW_ONE)).sum(0)
    _spot_check(fixed, tokens, thresholds)
    return law


def emitted_laws(
    rule: VerifyRule,
    target_logits: Float[Tensor, "n_plus_1 V"],
    draft: Float[Tensor, "n V"] | Sequence[int],
    sampling: Sampling,
    draft_sampling: Sampling | None = None,
) -> Float[Tensor, "n_plus_1 V"]:
    """``emitted_law`` at every place of a round; the last is the bonus."""
    places = range(target_logits.shape[0])
    return torch.stack([emitted_law(rule, target_logits, draft, sampling, place, draft_sampling) for place in places])


def largest_deviation(
    rule: VerifyRule,
    target_logits: Float[Tensor, "n_plus_1 V"],
    draft: Float[Tensor, "n V"] | Sequence[int],
    sampling: Sampling,
    draft_sampling: Sampling | None = None,
) -> float:
    """How far any position's emitted law is from the target's adjusted one, at the token where it is farthest."""
    laws = emitted_laws(rule, target_logits, draft, sampling, draft_sampling)
    return float((laws - sampling.probs(target_logits.double())).abs().max())


def _fixed_round(
    rule: VerifyRule,
    target_logits: Tensor,
    draft: Tensor | Sequence[int],
    sampling: Sampling,
    position: int,
    draft_sampling: Sampling | None,
) -> tuple[Tensor | None, _Round]:
    """The law of the draft under test (None for the bonus position) and the round around it."""
    logits = draft if isinstance(draft, Tensor) else None
    length, vocab_size = target_logits.shape[0] - 1, target_logits.shape[-1]
    best = sampling.probs(target_logits)[:length].argmax(-1)
    draft_sampling = draft_sampling or sampling
    fixed = _Round(rule, target_logits, logits, sampling, draft_sampling, position, best)
    if position == length:
        return None, fixed
    if logits is not None:
        return draft_sampling.probs(logits[position].double()), fixed
    point = torch.tensor([draft[position]])
    return torch.nn.functional.one_hot(point, vocab_size)[0].double(), fixed


def _accept_thresholds(fixed: _Round, tokens: Int[Tensor, "K"]) -> Float[Tensor, "K"]:
    """Up to which uniform each token stands: exactly 0 or 1 where nothing or everything lets it stand."""
    final = torch.zeros(len(tokens), dtype=torch.float64)
    low, high = torch.zeros_like(final), torch.ones_like(final)
    always = fixed.verify(tokens, torch.full_like(final, BELOW_ONE), final)[0]
    never = ~fixed.verify(tokens, torch.full_like(final, SPREAD), final)[0]
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        stands = fixed.verify(tokens, middle, final)[0]
        low, high = torch.where(stands, middle, low), torch.where(stands, high, middle)
    return torch.where(always, 1.0, torch.where(never, 0.0, (low + high) / 2))


def _last_token_law(fixed: _Round, tokens: Int[Tensor, "K"], accept: float) -> Float[Tensor, "K V"]:
    """For each refused draft, the law of the last token. Mostly it is the same for all, which two looks at each step show."""
    edges = _steps(fixed, tokens[:1], accept)
    laws = []
    for some in tokens.split(max(1, MAX_NUMBERS // (fixed.target_logits.numel() * len(edges)))):
        agrees = _agrees(fixed, some, accept, edges).tolist()
        for token, same in zip(some, agrees, strict=True):
            own = edges if same else _steps(fixed, token[None], accept)
            laws.append(torch.diff(own, prepend=own.new_zeros(1)))
    return torch.stack(laws)


def _agrees(fixed: _Round, tokens: Int[Tensor, "K"], accept: float, edges: Float[Tensor, "V"]) -> Bool[Tensor, "K"]:
    """Whether the last token behind each refused draft steps where ``edges`` say, looking just before and behind."""
    vocab_size, index = len(edges), torch.arange(len(edges))
    rows, accepts = tokens.repeat_interleave(vocab_size), torch.full((len(tokens) * vocab_size,), accept).double()
    looks = [(edges + side).clamp(0, BELOW_ONE).repeat(len(tokens)) for side in (-SPREAD, SPREAD)]
    before, behind = (fixed.verify(rows, accepts, look)[1].view(-1, vocab_size) for look in looks)
    fits = ((before <= index) | (edges <= SPREAD)) & ((behind > index) | (edges >= 1 - SPREAD))
    return fits.all(-1)


def _steps(fixed: _Round, token: Int[Tensor, "1"], accept: float) -> Float[Tensor, "V"]:
    """For every token, up to which uniform the last token is at most it: the cumulative law."""
    vocab_size = fixed.target_logits.shape[-1]
    index = torch.arange(vocab_size)
    low, high = torch.zeros(vocab_size, dtype=torch.float64), torch.ones(vocab_size, dtype=torch.float64)
    tokens, accepts = token.expand(vocab_size), torch.full_like(low, accept)
    whole = fixed.verify(tokens, accepts, torch.full_like(low, BELOW_ONE))[1] <= index
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        below = fixed.verify(tokens, accepts, middle)[1] <= index
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return torch.where(whole, 1.0, (low + high) / 2)


def _spot_check(fixed: _Round, tokens: Int[Tensor, "K"], thresholds: Float[Tensor, "K"], looks: int = 8) -> None:
    """Random uniforms on either side of the thresholds, seeded, and a last token that never falls as its uniform grows."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(looks):
        accept = torch.rand(len(tokens), dtype=torch.float64, generator=generator)
        low, high = torch.rand(2, len(tokens), dtype=torch.float64, generator=generator).sort(0).values
        stands, lower = fixed.verify(tokens, accept, low)
        higher = fixed.verify(tokens, accept, high)[1]
        clear = (accept - thresholds).abs() > SPREAD
        if bool((clear & (stands != (accept < thresholds))).any()) or bool((lower > higher).any()):
            raise InputError("rule: its decisions are not monotone in the uniforms, so its law cannot be integrated")
