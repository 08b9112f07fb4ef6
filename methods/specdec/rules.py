"""Which drafts stand in SpecDec (Xia et al., Eqs. 4-5) and SpecDec++ (Eqs. 6-7). Both are defined at temperature 0 only.

On a CPU the first choices are read at once, and a relaxed rule looks at the drafts that differ one after another, up to the
first that does not stand: a dozen tensor operations on all of them took 3 to 4 % of a round of small models. On a GPU, where
reading waits for the device, tensor operations decide on all.
"""

from collections.abc import Callable
from copy import copy
from functools import partial
from typing import TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kernels.verify.interface import RoundUniforms, TargetLogits
from kernels.verify.reference import count_accepted
from methods.errors import InputError
from methods.sampling import Sampling
from methods.specdec.options import TopBetaOptions, TopOneOptions, check_greedy
from methods.speculative.rules import greedy_probs
from methods.types import Guarantee, Proposal, Verdict

Rule = TypeVar("Rule", bound="_OnHost")
Tolerates = Callable[[int, int, int, int], bool]  # a draft that is not the first choice: its row, position, itself, that choice


class _OnHost:
    """What decides row by row where numbers are at hand, and by tensor operations elsewhere."""

    on_host = True

    def elsewhere(self: Rule, device: torch.device) -> list[Rule]:
        """Return the rule as tensor operations decide for it, on a GPU."""
        other = copy(self)
        other.on_host = False
        return [other]


class TopOne(_OnHost):
    """SpecDec: a draft stands where it is the verifier's first choice, ties to the lowest id (Eqs. 4-5).

    With k drafts a round emits the c - 1 that stand before the first that differs, and the verifier's own choice there; the
    output is the verifier's greedy one.

    Args:
        cap: what a round emits when all k stand. "released": the k drafts and the verifier's choice behind them, k + 1 tokens.
            "printed": k tokens, as Eq. 4 bounds c by k; the k-th token then counts as the verifier's own, so the verdict says
            k - 1 accepted and names the k-th draft as ``next_token`` (estimators of acceptance count it as refused).

    Differs from the paper: Eq. 4 leaves c undefined when all k stand; the authors' code emits k + 1, which is the default.
    """

    guarantee: Guarantee = "identical"

    def __init__(self, cap: str = "released") -> None:
        self.cap = TopOneOptions(cap=cap).cap

    def verify(self, proposal: Proposal, target_logits: TargetLogits, sampling: Sampling, uniforms: RoundUniforms) -> Verdict:
        check_greedy(sampling)
        best = target_logits.argmax(-1)
        if self.on_host and _is_at_hand(best):
            return _decided_on_host(proposal, best, lambda row, position, token, choice: False, self.cap)
        return _decided_on_device(proposal, best, proposal.tokens == best[:, :-1], self.cap)


class TopBeta(_OnHost):
    """SpecDec++ (top-beta, tau): a draft also stands where it is good enough.

    It stands where it is the verifier's first choice (ties to the lowest id), or where both hold:

        Eq. 6: score >= the verifier's log-probability of its beta-th choice
        Eq. 7: the verifier's largest log-probability - score <= tau

    Where no draft is left or one does not stand, the verifier's first choice follows (Eq. 5), given the drafts that stand.

    Args:
        beta: at least 1; above the vocabulary's size Eq. 6 bounds nothing.
        tau: at least 0, in nats at temperature 1.
        score: "verifier": the verifier's own log-probability of the draft; beta = 1 or tau = 0 is then the strict rule, even
            where choices tie. "as_described": the drafter's, as Eqs. 6 and 7 print it; needs a drafter that reports its logits.
        cap: see ``TopOne``; with "printed" the k-th token of a round in which all stand is emitted as it was drafted.

    Differs from the paper: its equations print the drafter's score; the authors' code uses the verifier's, the default here.
    """

    def __init__(self, beta: int = 3, tau: float = 1.0, score: str = "verifier", cap: str = "released") -> None:
        TopBetaOptions(beta=beta, tau=tau, score=score, cap=cap)  # refuses what cannot be
        self.beta, self.tau, self.score, self.cap = beta, tau, score, cap
        self.strict = score == "verifier" and (beta == 1 or tau == 0)
        self.guarantee: Guarantee = "identical" if self.strict else "lossy"

    def verify(self, proposal: Proposal, target_logits: TargetLogits, sampling: Sampling, uniforms: RoundUniforms) -> Verdict:
        check_greedy(sampling)
        best = target_logits.argmax(-1)
        if self.on_host and self.score == "verifier" and _is_at_hand(best):
            return _decided_on_host(proposal, best, partial(self._tolerates_one, target_logits), self.cap)
        stands = proposal.tokens == best[:, :-1]
        if not self.strict and proposal.tokens.shape[1]:
            stands = stands | self._tolerates(proposal, target_logits[:, :-1], best[:, :-1].unsqueeze(-1))
        return _decided_on_device(proposal, best, stands, self.cap)

    def _tolerates_one(
        self, target_logits: Float[Tensor, "B n_plus_1 V"], row: int, position: int, token: int, choice: int
    ) -> bool:
        """Eqs. 6 and 7 for one draft that is not the verifier's first choice."""
        if self.strict:
            return False
        logits = target_logits[row, position]
        score = logits[token].item()
        return logits[choice].item() - score <= self.tau and int((logits > score).sum()) < self.beta

    def _tolerates(
        self, proposal: Proposal, target_logits: Float[Tensor, "B n V"], best: Int[Tensor, "B n 1"]
    ) -> Bool[Tensor, "B n"]:
        """Eqs. 6 and 7. Against the verifier's own score they compare logits: the normaliser is the same on both sides."""
        logits, drafted = _exact(target_logits), proposal.tokens.unsqueeze(-1)
        if self.score == "verifier":
            scores = logits.gather(-1, drafted)
        else:
            logits, scores = logits.log_softmax(-1), _draft_logits(proposal).log_softmax(-1).gather(-1, drafted)
        better = (logits > scores).sum(-1, keepdim=True)  # fewer than beta are: Eq. 6, cheaper than finding the beta-th
        enough = better < min(self.beta, logits.shape[-1])
        return (enough & (logits.gather(-1, best) - scores <= self.tau)).squeeze(-1)


def _is_at_hand(tensor: Tensor) -> bool:
    """Whether reading it waits for no device."""
    return not tensor.is_cuda


def _decided_on_host(proposal: Proposal, best: Int[Tensor, "B n_plus_1"], tolerates: Tolerates, cap: str) -> Verdict:
    """Row by row, up to the first draft that does not stand."""
    counts, following, choices = [], [], best.tolist()
    for row, (tokens, own, length) in enumerate(zip(proposal.tokens.tolist(), choices, proposal.lengths, strict=True)):
        count = 0
        while count < length and (tokens[count] == own[count] or tolerates(row, count, tokens[count], own[count])):
            count += 1
        is_cut = cap == "printed" and count == length > 0
        counts.append(count - is_cut)
        following.append(tokens[count - 1] if is_cut else own[count])
    return Verdict(torch.tensor(counts), torch.tensor(following), *greedy_probs(proposal, best), best)


def _decided_on_device(proposal: Proposal, best: Int[Tensor, "B n_plus_1"], stands: Bool[Tensor, "B n"], cap: str) -> Verdict:
    tokens, num_drafted = proposal.tokens, proposal.tokens.shape[1]
    lengths = proposal.ragged_lengths()
    num_accepted = count_accepted(stands, lengths)
    next_token = best.gather(-1, num_accepted.unsqueeze(-1)).squeeze(-1)
    if cap == "printed" and num_drafted:
        whole = (num_accepted == (num_drafted if lengths is None else lengths)) & (num_accepted > 0)
        num_accepted = num_accepted - whole.long()
        last = tokens.gather(-1, num_accepted.clamp(max=num_drafted - 1).unsqueeze(-1)).squeeze(-1)
        next_token = torch.where(whole, last, next_token)
    return Verdict(num_accepted, next_token, *greedy_probs(proposal, best), best)


def _draft_logits(proposal: Proposal) -> Float[Tensor, "B n V"]:
    if proposal.logits is None:
        raise InputError(
            "score 'as_described': this drafter reports no probabilities of its drafts; use score 'verifier' or a block drafter"
        )
    return _exact(proposal.logits)


def _exact(logits: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    return logits if logits.dtype == torch.float64 else logits.float()
