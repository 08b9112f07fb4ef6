"""Block verification (Sun et al. 2024, arXiv 2403.10444, Algorithm 2): all drafts of a round are decided on together.

A draft that the token-wise rule refuses may stand if the drafts behind it are likelier under the target than under the draft.
The symbols p_i and h_i are the paper's: ``carried`` and ``stands``.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kernels.transfer import to_device
from kernels.verify import reference
from kernels.verify.interface import RoundUniforms, TargetLogits
from methods.sampling import Sampling
from methods.speculative.rules import SpeculativeSampling
from methods.types import Guarantee, Proposal, Verdict


class BlockVerification:
    """Lossless, and accepts at least as many drafts on average as any rule that has the same law (the paper's Theorem 2).

    As many drafts stand as the last i with ``uniform_i < h_i``, whatever was decided before it; what follows is drawn from
    ``max(0, p_i target - draft)``, behind the last draft from the target. With one draft it is speculative sampling; at
    temperature 0 both compare drafts with the target's argmax.

    A round looks at drafts and numbers behind the last draft that stands, so they must not be drawn from again:
    ``looks_ahead`` says that to the loop. Differs from the paper: where target and draft agree behind a prefix of p_i = 1,
    its h_i is 0 / 0 and here 1; a later draft then stands in any case.
    """

    guarantee: Guarantee = "same_distribution"
    looks_ahead = True

    def verify(self, proposal: Proposal, target_logits: TargetLogits, sampling: Sampling, uniforms: RoundUniforms) -> Verdict:
        if sampling.greedy:
            return SpeculativeSampling().verify(proposal, target_logits, sampling, uniforms)
        target_probs, draft_probs, tokens = sampling.probs(target_logits), law_of_drafts(proposal), proposal.tokens
        lengths = to_device(proposal.lengths, tokens.device)
        drafted = reference.drafted_probs(target_probs, draft_probs, tokens)
        carried = carried_ratios(*drafted)
        chances = stand_chances(target_probs, draft_probs, tokens, lengths, carried)
        counts = torch.arange(1, tokens.shape[1] + 1, device=tokens.device)
        stood = torch.where(uniforms[:, :-1] < chances, counts, 0)
        num_accepted = stood.amax(-1) if tokens.shape[1] else torch.zeros_like(lengths)
        weights = _next_weights(target_probs, draft_probs, tokens, lengths, carried, num_accepted)
        return Verdict(num_accepted, reference.inverse_cdf(weights, uniforms[:, -1]), *drafted)


def law_of_drafts(proposal: Proposal) -> Float[Tensor, "B n V"] | None:
    """Return the law that each draft was drawn from; None for point masses."""
    return None if proposal.logits is None else proposal.sampling.probs(proposal.logits)


def carried_ratios(target_probs: Float[Tensor, "B n"], draft_probs: Float[Tensor, "B n"]) -> Float[Tensor, "B n_plus_1"]:
    """Return p_0 = 1 and p_i = min(1, p_{i-1} target / draft) of the drafted tokens, in fp64: the chance that i drafts stand.

    A draft that the target cannot emit makes it 0 from there on, also where the draft cannot emit it either (0 / 0).
    """
    target, draft = target_probs.double(), draft_probs.double()
    carried = [torch.ones(len(target), dtype=torch.float64, device=target.device)]
    for place in range(target.shape[1]):
        reached, own = carried[-1] * target[:, place], draft[:, place]
        carried.append(torch.where(reached >= own, (reached > 0).double(), reached / own))
    return torch.stack(carried, 1)


def stand_chances(
    target_probs: Float[Tensor, "B n_plus_1 V"],
    draft_probs: Float[Tensor, "B n V"] | None,
    tokens: Int[Tensor, "B n"],
    lengths: Int[Tensor, "B"],
    carried: Float[Tensor, "B n_plus_1"],
) -> Float[Tensor, "B n"]:
    """Return h_i of i = 1 to n: the chance that i drafts stand, once it is known that no more do.

    With m_i the mass of ``max(0, p_i target - draft)`` behind i drafts it is ``m_i / (m_i + 1 - p_i)``, and p_i for all of
    a row's drafts. Behind them it is 0.
    """
    own = carried[:, 1:]
    places = torch.arange(1, tokens.shape[1] + 1, device=tokens.device)
    last = torch.zeros_like(own[:, :1])
    following = None if draft_probs is None else draft_probs[:, 1:]
    between = _residual(target_probs[:, 1:-1], following, tokens[:, 1:], own[:, :-1])
    mass = torch.cat((between.sum(-1, dtype=torch.float64), last), 1)
    chances = torch.where(own >= 1, 1.0, mass / (mass + 1 - own))
    chances = torch.where(places == lengths.unsqueeze(-1), own, chances)
    return torch.where(places > lengths.unsqueeze(-1), 0.0, chances)


def _residual(
    target_probs: Float[Tensor, "B m V"],
    draft_probs: Float[Tensor, "B m V"] | None,
    tokens: Int[Tensor, "B m"],
    carried: Float[Tensor, "B m"],
) -> Float[Tensor, "B m V"]:
    """Return ``max(0, p_i target - draft)``, of which a point mass takes its token's whole part."""
    reached = carried.unsqueeze(-1).to(target_probs.dtype) * target_probs
    return reached.scatter(-1, tokens.unsqueeze(-1), 0.0) if draft_probs is None else (reached - draft_probs).clamp_(min=0)


def _next_weights(
    target_probs: Float[Tensor, "B n_plus_1 V"],
    draft_probs: Float[Tensor, "B n V"] | None,
    tokens: Int[Tensor, "B n"],
    lengths: Int[Tensor, "B"],
    carried: Float[Tensor, "B n_plus_1"],
    num_accepted: Int[Tensor, "B"],
) -> Float[Tensor, "B V"]:
    """Return the unnormalised law of the round's last token. A residual that rounding left nothing of is the target's row."""
    target = reference.pick(target_probs, num_accepted)
    if tokens.shape[1] == 0:
        return target
    column = num_accepted.clamp(max=tokens.shape[1] - 1)
    draft = None if draft_probs is None else reference.pick(draft_probs, column).unsqueeze(1)
    rejected, own = tokens.gather(-1, column.unsqueeze(-1)), carried.gather(-1, num_accepted.unsqueeze(-1))
    residual = _residual(target.unsqueeze(1), draft, rejected, own).squeeze(1)
    is_rejection = (num_accepted < lengths).unsqueeze(-1)
    return torch.where(is_rejection & residual.any(-1, keepdim=True), residual, target)
