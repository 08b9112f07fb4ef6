"""The law of whole blocks of tokens under a rule that looks ahead, integrated over its uniform numbers by calling the rule.

Such a rule may let a draft stand because of those behind it, so its law is not that of one place after another. Here every
block of drafts is gone through with its probability, and where fewer tokens than the round's places are emitted, the target
goes on: what comes out has as many tokens as the round has places, and its law must be the target's.

Target and draft have one law at each place, whatever stood before; a rule sees no more of them than the rows of its drafts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from harness.exact.bisection import LARGEST_UNIFORM, SPREAD, turn_at, turning_points
from methods.errors import InputError
from methods.sampling import Sampling
from methods.types import Proposal, VerifyRule

MAX_NUMBERS = 2**22  # of the logits that one call of a rule gets
LEAST_PREFIX = 1e-3  # a law is looked at behind prefixes that the round emits so often


@dataclass(frozen=True)
class _Blocks:
    """All blocks that the draft can propose, with their probabilities."""

    rule: VerifyRule
    target_logits: Float[Tensor, "n_plus_1 V"]
    draft_logits: Float[Tensor, "n V"] | None
    sampling: Sampling
    draft_sampling: Sampling
    tokens: Int[Tensor, "N n"]
    probs: Float[Tensor, "N"]

    @property
    def vocab_size(self) -> int:
        return self.target_logits.shape[-1]

    @property
    def num_draft(self) -> int:
        return self.tokens.shape[1]

    def verify(
        self, blocks: Int[Tensor, "K"], accepts: Float[Tensor, "K n"], finals: Float[Tensor, "K"]
    ) -> tuple[Int[Tensor, "K"], Int[Tensor, "K"]]:
        """Return how many drafts stand of each of these blocks, and the round's last token."""
        numbers = torch.cat((accepts, finals.unsqueeze(-1)), 1)
        some = max(1, MAX_NUMBERS // self.target_logits.numel())
        parts = [self._verify(*part) for part in zip(blocks.split(some), numbers.split(some), strict=True)]
        accepted, following = zip(*parts, strict=True)
        return torch.cat(accepted), torch.cat(following)

    def _verify(self, blocks: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
        device, count = self.target_logits.device, len(blocks)
        logits = None if self.draft_logits is None else self.draft_logits.expand(count, -1, -1)
        lengths = (self.num_draft,) * count
        proposal = Proposal(self.tokens[blocks].to(device), lengths, logits, self.draft_sampling)
        verdict = self.rule.verify(proposal, self.target_logits.expand(count, -1, -1), self.sampling, numbers.to(device))
        return verdict.num_accepted.cpu(), verdict.next_token.cpu()


def block_laws(
    rule: VerifyRule,
    target_logits: Float[Tensor, "n_plus_1 V"],
    draft: Float[Tensor, "n V"] | Sequence[int],
    sampling: Sampling,
    draft_sampling: Sampling,
) -> Float[Tensor, "n_plus_1 V"]:
    """Return the law of the token at each place, given those before it.

    Of the prefixes that come at least once in a thousand blocks, a place's row is behind the one where it is farthest from the
    target's. ``draft`` holds the draft's raw logits, or the n tokens of a point mass. Time and memory grow with V**(n + 1):
    use it for two or three drafts and a few dozen tokens.

    Raises:
        InputError: decisions are not of the form "as many drafts stand as the last i whose number is below a chance of its
            own", or the id of the last token falls as its number grows.
    """
    joint = block_law(rule, target_logits, draft, sampling, draft_sampling)
    target, rows = sampling.probs(target_logits.double()).cpu(), []
    for place in range(len(target)):
        prefixes = joint.reshape(-1, len(target[0]), target.shape[1] ** (len(target) - 1 - place)).sum(-1)
        mass = prefixes.sum(-1, keepdim=True)
        laws = (prefixes / mass)[mass.squeeze(-1) >= min(LEAST_PREFIX, float(mass.max()))]
        rows.append(laws[int((laws - target[place]).abs().amax(-1).argmax())])
    return torch.stack(rows)


def block_law(
    rule: VerifyRule,
    target_logits: Float[Tensor, "n_plus_1 V"],
    draft: Float[Tensor, "n V"] | Sequence[int],
    sampling: Sampling,
    draft_sampling: Sampling,
) -> Float[Tensor, " texts"]:
    """Return the law of the V**(n + 1) texts of a round's n + 1 tokens, numbered with the last token counting fastest.

    Raises:
        InputError: as ``block_laws``.
    """
    blocks = _blocks_of(rule, target_logits, draft, sampling, draft_sampling)
    chances = _chances(blocks)
    target = sampling.probs(target_logits.double()).cpu()
    found = torch.zeros(blocks.vocab_size ** len(target), dtype=torch.float64)
    for count in range(blocks.num_draft + 1):
        weight = blocks.probs * chances[:, count] * (1 - chances[:, count + 1 :]).prod(-1)
        seen = (weight > 0).nonzero().squeeze(-1)
        if not len(seen):
            continue
        emitted = weight[seen].unsqueeze(-1) * _last_laws(blocks, seen, count)
        prefix = _numbered(blocks.tokens[seen, :count], blocks.vocab_size)
        law = torch.zeros(blocks.vocab_size**count, blocks.vocab_size, dtype=torch.float64).index_add_(0, prefix, emitted)
        for row in target[count + 1 :]:
            law = law.unsqueeze(-1) * row
        found += law.flatten()
    _spot_check(blocks, chances)
    return found


def expected_accepted(
    rule: VerifyRule,
    target_logits: Float[Tensor, "n_plus_1 V"],
    draft_logits: Float[Tensor, "n V"],
    sampling: Sampling,
) -> float:
    """Return the mean number of drafts that stand in a round of a rule that looks ahead."""
    blocks = _blocks_of(rule, target_logits, draft_logits, sampling, sampling)
    none_behind = (1 - _chances(blocks)).flip(-1).cumprod(-1).flip(-1)  # none of these places and those behind them
    return float((blocks.probs.unsqueeze(-1) * (1 - none_behind[:, 1:])).sum())


def _blocks_of(
    rule: VerifyRule, target_logits: Tensor, draft: Tensor | Sequence[int], sampling: Sampling, draft_sampling: Sampling
) -> _Blocks:
    if not isinstance(draft, Tensor):
        point = torch.tensor([list(draft)])
        return _Blocks(rule, target_logits, None, sampling, draft_sampling, point, torch.ones(1, dtype=torch.float64))
    laws = draft_sampling.probs(draft.double()).cpu()
    tokens = torch.cartesian_prod(*[law.nonzero().squeeze(-1) for law in laws]).reshape(-1, len(laws))
    probs = laws.gather(-1, tokens.T).prod(0)
    return _Blocks(rule, target_logits, draft, sampling, draft_sampling, tokens, probs)


def _chances(blocks: _Blocks) -> Float[Tensor, "N n_plus_1"]:
    """Return, for each block, the number below which i drafts stand if no more do: exactly 0 or 1 if never or always.

    Of no drafts it is 1.
    """
    every, length = torch.arange(len(blocks.tokens)), blocks.num_draft
    found = torch.ones(len(every), length + 1, dtype=torch.float64)
    finals = torch.zeros(len(every), dtype=torch.float64)
    for count in range(1, length + 1):

        def stands(numbers: Tensor, count: int = count) -> Bool[Tensor, "N"]:
            accepts = torch.full((len(every), length), LARGEST_UNIFORM, dtype=torch.float64)
            accepts[:, count - 1] = numbers
            return blocks.verify(every, accepts, finals)[0] >= count

        always, never = stands(torch.full_like(finals, LARGEST_UNIFORM)), ~stands(torch.full_like(finals, SPREAD))
        between = turning_points(stands, len(every))
        found[:, count] = torch.where(always, 1.0, torch.where(never, 0.0, between))
    return found


def _last_laws(blocks: _Blocks, seen: Int[Tensor, "K"], count: int) -> Float[Tensor, "K V"]:
    """Return the law of the last token behind ``count`` drafts that stand, for each of these blocks.

    It is mostly one law, or one for each prefix: two looks at each step confirm that, which saves a bisection for each block.
    """
    prefix = _numbered(blocks.tokens[seen, :count], blocks.vocab_size)
    edges = _steps(blocks, seen[:1], count).expand(len(seen), -1).clone()
    for others in (prefix, torch.arange(len(seen))):
        wrong = (~_agrees(blocks, seen, count, edges)).nonzero().squeeze(-1)
        if not len(wrong):
            break
        kinds, which = others[wrong].unique(return_inverse=True)
        first = torch.full((len(kinds),), len(wrong)).scatter_reduce_(0, which, torch.arange(len(wrong)), "amin")
        edges[wrong] = _steps(blocks, seen[wrong[first]], count)[which]
    return torch.diff(edges, prepend=edges.new_zeros(len(seen), 1))


def _steps(blocks: _Blocks, chosen: Int[Tensor, "K"], count: int) -> Float[Tensor, "K V"]:
    """Return the cumulative law of each block: the largest number at which the last token's id is at most each id."""
    size = blocks.vocab_size
    index, rows = torch.arange(size).repeat(len(chosen)), chosen.repeat_interleave(size)

    def is_at_most(numbers: Tensor) -> Bool[Tensor, " looks"]:
        return blocks.verify(rows, _standing(blocks, len(rows), count), numbers)[1] <= index

    whole = is_at_most(torch.full((len(rows),), LARGEST_UNIFORM, dtype=torch.float64))
    return torch.where(whole, 1.0, turning_points(is_at_most, len(rows))).view(-1, size)


def _agrees(blocks: _Blocks, chosen: Int[Tensor, "K"], count: int, edges: Float[Tensor, "K V"]) -> Bool[Tensor, "K"]:
    """Check that the last token of each block changes exactly at ``edges``, looking just before and behind each."""
    size = blocks.vocab_size
    index, rows = torch.arange(size).repeat(len(chosen)), chosen.repeat_interleave(size)
    accepts = _standing(blocks, len(rows), count)
    fits = turn_at(lambda finals: blocks.verify(rows, accepts, finals)[1] <= index, edges.flatten())
    return fits.view(-1, size).all(-1)


def _standing(blocks: _Blocks, rows: int, count: int) -> Float[Tensor, "K n"]:
    """Return numbers at which ``count`` drafts stand: 0 for the last of them, as large as can be behind it."""
    accepts = torch.full((rows, blocks.num_draft), LARGEST_UNIFORM, dtype=torch.float64)
    accepts[:, :count] = 0.0
    return accepts


def _numbered(prefixes: Int[Tensor, "K m"], vocab_size: int) -> Int[Tensor, "K"]:
    found = torch.zeros(len(prefixes), dtype=torch.long)
    for column in prefixes.T:
        found = found * vocab_size + column
    return found


def _spot_check(blocks: _Blocks, chances: Float[Tensor, "N n_plus_1"]) -> None:
    """Try seeded random numbers: as many drafts must stand as the last whose number is below its chance says."""
    generator, every = torch.Generator().manual_seed(0), torch.arange(len(blocks.tokens))
    places = torch.arange(blocks.num_draft + 1)
    for _ in range(8):
        accepts = torch.rand(len(every), blocks.num_draft, dtype=torch.float64, generator=generator)
        low, high = torch.rand(2, len(every), dtype=torch.float64, generator=generator).sort(0).values
        below = torch.cat((torch.ones(len(every), 1, dtype=torch.bool), accepts < chances[:, 1:]), 1)
        expected = torch.where(below, places, 0).amax(-1)
        stood, lower = blocks.verify(every, accepts, low)
        higher = blocks.verify(every, accepts, high)[1]
        clear = ((accepts - chances[:, 1:]).abs() > SPREAD).all(-1)
        if bool((clear & (stood != expected)).any()) or bool((lower > higher).any()):
            raise InputError("rule: its decisions are not monotone in the uniforms, so its law cannot be integrated")
