"""Whether sampling keeps the target's law: (a) a rule's law integrated over its uniforms, (b) end-to-end goodness of fit.

(a) finds biases of 1e-6 in what a rule decides; (b) finds faults of plumbing (caches, reported laws, reused numbers), down
to a total variation that it states.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from methods.errors import InputError
from methods.sampling import Sampling, Uniforms
from methods.types import Inputs, Method, Proposal, Session, Stop, VerifyRule

HALVINGS = 36
SPREAD = 2.0 ** (2 - HALVINGS)
BELOW_ONE = 1 - 2.0**-53
FALSE_ALARM = 1e-6
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


def largest_deviation(
    rule: VerifyRule,
    target_logits: Float[Tensor, "n_plus_1 V"],
    draft: Float[Tensor, "n V"] | Sequence[int],
    sampling: Sampling,
    draft_sampling: Sampling | None = None,
) -> float:
    """How far any position's emitted law is from the target's adjusted one, at the token where it is farthest."""
    expected = sampling.probs(target_logits.double())
    laws = [
        emitted_law(rule, target_logits, draft, sampling, position, draft_sampling)
        for position in range(target_logits.shape[0])
    ]
    return float((torch.stack(laws) - expected).abs().max())


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


@dataclass(frozen=True)
class Fit:
    """A goodness-of-fit test: ``p_value`` bounds the chance of so bad a fit if the law is kept, for any sample size.

    ``detectable_tv``: samples at least this far (total variation, averaged over contexts by sample) always fail.
    """

    num_samples: int
    divergence: float
    p_value: float
    detectable_tv: float

    def passes(self, false_alarm: float) -> bool:
        return self.p_value > false_alarm


def goodness_of_fit(counts: Sequence[Sequence[int]], laws: Sequence[Sequence[float]], false_alarm: float = FALSE_ALARM) -> Fit:
    """Tests counts of tokens, one row a context, against the law that each context gives.

    The statistic is the sum over contexts of samples times KL(sample, law). Its moment generating function is at most
    ``(1 - t)**-freedom`` (Agrawal 2020, "Concentration of the multinomial in relative entropy"), so by Chernoff's bound
    ``P(statistic >= x) <= (e x / freedom)**freedom exp(-x)``: no approximation, no least count. Freedom counts a
    context's tokens of positive law, less one.
    """
    statistic, freedom, total = 0.0, 0, 0
    for row, law in zip(counts, laws, strict=True):
        size = sum(row)
        total += size
        freedom += sum(prob > 0 for prob in law) - 1 if size else 0
        mass = math.fsum(law)
        statistic += sum(_term(count, size, prob / mass) for count, prob in zip(row, law, strict=True) if count)
    return Fit(total, statistic, _tail(statistic, freedom), _detectable(freedom, total, false_alarm))


def _term(count: int, size: int, prob: float) -> float:
    return count * math.log(count / (size * prob)) if prob > 0 else math.inf


def _tail(statistic: float, freedom: int) -> float:
    if statistic <= freedom:
        return 1.0
    if freedom == 0 or math.isinf(statistic):
        return 0.0 if statistic > 1e-6 else 1.0
    return math.exp(freedom * (1 + math.log(statistic / freedom)) - statistic)


def _detectable(freedom: int, total: int, false_alarm: float) -> float:
    """By Pinsker, KL >= 2 tv**2: the distance at which the statistic surely passes the critical value."""
    low, high = float(freedom), freedom + 1e6
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _tail(middle, freedom) > false_alarm else (low, middle)
    return math.sqrt(high / (2 * total)) if total else math.inf


def sampled_fits(
    method: Method,
    target: Session,
    prompt: Sequence[int],
    sampling: Sampling,
    num_draft: int,
    seeds: Sequence[int],
    num_positions: int = 3,
    max_cells: int = 32,
    min_samples: int = 50,
) -> dict[str, Fit]:
    """Samples many outputs from one prompt and tests each position, each place in the first round, and its bonus, apart.

    Contexts are the tokens before: those seen fewer than ``min_samples`` times are left out (how often a context is seen does
    not depend on what follows it). A law's tokens beyond its ``max_cells - 1`` likeliest are pooled. ``method`` must
    draft ``num_draft`` tokens in its first round, or fewer. Compare each p-value with ``FALSE_ALARM`` over their number.
    """
    stop = Stop(max_new_tokens=max(num_draft + 1, num_positions))
    uniforms = Uniforms(seeds, stop.max_new_tokens, target.device)
    rows = method.generate(target, Inputs((tuple(prompt),) * len(seeds)), sampling, uniforms, stop)
    groups = {f"position {place}": [row.tokens[: place + 1] for row in rows] for place in range(num_positions)}
    for place in range(num_draft + 1):
        name = "bonus" if place == num_draft else f"draft {place}"
        reached = [row.tokens[: place + 1] for row in rows if row.steps[0].emitted > place]
        groups[name] = [tokens for tokens in reached if tokens]
    laws = _Laws(target, prompt, sampling, max_cells)
    return {name: _fit_group(texts, laws, min_samples, FALSE_ALARM / len(groups)) for name, texts in groups.items()}


class _Laws:
    """The target's law behind each context, from a forward pass of its own, and how its tokens are pooled."""

    def __init__(self, target: Session, prompt: Sequence[int], sampling: Sampling, max_cells: int) -> None:
        self.target, self.prompt, self.sampling, self.max_cells = target, tuple(prompt), sampling, max_cells
        self.known: dict[tuple[int, ...], tuple[list[float], dict[int, int]]] = {}

    def cells(self, context: tuple[int, ...]) -> tuple[list[float], dict[int, int]]:
        """The law of the cells (the last is what is pooled), and the cell of each token that has its own."""
        if context not in self.known:
            pending = self.target.prefill(Inputs((self.prompt,)))
            text = torch.tensor([[*pending, *context]], device=self.target.device)
            probs = self.sampling.probs(self.target.extend(text)[0, -1]).double()
            top = probs.topk(min(self.max_cells - 1, len(probs)))
            rest = [] if len(top.values) == len(probs) else [max(0.0, 1 - float(top.values.sum()))]
            own = {token: cell for cell, token in enumerate(top.indices.tolist())}
            self.known[context] = ([*top.values.tolist(), *rest], own)
        return self.known[context]


def _fit_group(texts: Sequence[Sequence[int]], laws: _Laws, min_samples: int, false_alarm: float) -> Fit:
    contexts: dict[tuple[int, ...], list[int]] = {}
    for text in texts:
        contexts.setdefault(tuple(text[:-1]), []).append(text[-1])
    counts, cell_laws = [], []
    for context, tokens in contexts.items():
        if len(tokens) >= min_samples:
            law, own = laws.cells(context)
            row = [0] * len(law)
            for token in tokens:
                row[own.get(token, len(law) - 1)] += 1
            counts.append(row)
            cell_laws.append(law)
    return goodness_of_fit(counts, cell_laws, false_alarm)
