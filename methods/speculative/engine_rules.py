"""Rules that serving engines verify drafts by where speculative sampling is expected; each says what it promises.

They need no probabilities of the draft, which is why engines have them.
"""

from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kernels.transfer import to_device
from kernels.verify import reference
from kernels.verify.interface import RoundUniforms, TargetLogits
from methods.sampling import Sampling
from methods.speculative.options import TypicalOptions
from methods.speculative.rules import SpeculativeSampling
from methods.types import Guarantee, Proposal, Verdict

LEAST_PROB = 1e-5  # added inside the logarithm of the entropy by Medusa's code


class PointMass(SpeculativeSampling):
    """Lossless: every draft, drawn or not, is taken for a point mass, so it stands with the target's probability of it.

    What follows a rejection is drawn from the target without the rejected token. vLLM decides so on drafts without
    probabilities (v1/sample/rejection_sampler.py, IS_NGRAM), SGLang on all of them (tree_speculative_sampling_target_only at
    thresholds of 1). A draft that was drawn from ``draft`` stands with a chance of ``sum target draft``, never more than the
    ``sum min(target, draft)`` of speculative sampling.
    """

    can_be_captured = True

    def verify(self, proposal: Proposal, target_logits: TargetLogits, sampling: Sampling, uniforms: RoundUniforms) -> Verdict:
        return super().verify(replace(proposal, logits=None, log_sum_exp=None), target_logits, sampling, uniforms)


class TargetGreedy:
    """Lossy: at any temperature a draft stands where it is the target's first choice, and that follows a rejection.

    Only the token behind a round in which all drafts stand is drawn, as engines do that compare drafts with an argmax and
    sample the bonus alone (ROCm/ATOM before its pull request 2318; lablup/mlxcel issue 902). At temperature 0 it is exact.
    """

    guarantee: Guarantee = "lossy"

    def verify(self, proposal: Proposal, target_logits: TargetLogits, sampling: Sampling, uniforms: RoundUniforms) -> Verdict:
        best = target_logits.argmax(-1)
        accepted = proposal.tokens == best[:, :-1]
        return _verdict(proposal, target_logits, sampling, accepted, best, draws=uniforms[:, -1])


class Typical:
    """Lossy: typical acceptance of Medusa (Cai et al. 2024, arXiv 2401.10774, Section 2.3.1).

    A draft stands where ``target > min(epsilon, delta exp(-H))``, H the entropy of the target's law in nats; what follows is
    the target's first choice, as Medusa's greedy root. At temperature 0 a draft stands where it is that choice.

    Args:
        epsilon, delta: Medusa's ``posterior_threshold`` and ``posterior_alpha``, 0.09 and 0.3 in its code.

    Differs from Medusa: a chain of drafts, not a tree; top-k and top-p apply to the law. As in its code (medusa/model/utils.py,
    evaluate_posterior, at 10a2697) 1e-5 is added inside the logarithm.
    """

    guarantee: Guarantee = "lossy"

    def __init__(self, epsilon: float = 0.09, delta: float = 0.3) -> None:
        TypicalOptions(epsilon=epsilon, delta=delta)
        self.epsilon, self.delta = epsilon, delta

    def verify(self, proposal: Proposal, target_logits: TargetLogits, sampling: Sampling, uniforms: RoundUniforms) -> Verdict:
        best = target_logits.argmax(-1)
        accepted = proposal.tokens == best[:, :-1]
        if not sampling.greedy:
            accepted = self.accepts(sampling.probs(target_logits[:, :-1])).gather(-1, proposal.tokens.unsqueeze(-1)).squeeze(-1)
        return _verdict(proposal, target_logits, sampling, accepted, best)

    def accepts(self, target_probs: Float[Tensor, "*batch V"]) -> Bool[Tensor, "*batch V"]:
        """Which tokens stand."""
        entropy = -(target_probs * (target_probs + LEAST_PROB).log()).sum(-1, keepdim=True)
        return target_probs > (self.delta * (-entropy).exp()).clamp(max=self.epsilon)


def _verdict(
    proposal: Proposal,
    target_logits: TargetLogits,
    sampling: Sampling,
    accepted: Bool[Tensor, "B n"],
    best: Tensor,
    draws: Float[Tensor, "B"] | None = None,
) -> Verdict:
    """Take the target's first choice behind the drafts that stand; with ``draws`` one is drawn where all of a row's do."""
    lengths = to_device(proposal.lengths, best.device)
    num_accepted = reference.count_accepted(accepted, lengths)
    next_token = best.gather(-1, num_accepted.unsqueeze(-1)).squeeze(-1)
    if draws is not None:
        bonus = sampling.draw(reference.pick(target_logits, num_accepted), draws)
        next_token = torch.where(num_accepted == lengths, bonus, next_token)
    probs = sampling.probs(target_logits)
    draft_probs = None if proposal.logits is None else proposal.sampling.probs(proposal.logits)
    return Verdict(num_accepted, next_token, *reference.drafted_probs(probs, draft_probs, proposal.tokens))
