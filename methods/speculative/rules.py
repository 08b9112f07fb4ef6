"""Rules that decide which drafts stand (Leviathan 2.3, Algorithm 1 and A.5); SpecDec's are in methods.specdec.rules."""

import ctypes
import math
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kernels.verify import fused_cpu, reference
from kernels.verify.fused_cpu import Loop
from kernels.verify.interface import RoundUniforms, TargetLogits, check_shapes, checked
from kernels.verify.registry import EXACT as EXACT_KERNELS
from kernels.verify.registry import KERNELS
from kernels.verify.sigmoid import Scaling
from methods.sampling import Sampling
from methods.speculative.options import DEFAULT_SCALE, LenienceOptions
from methods.types import Guarantee, Proposal, Verdict, VerifyRule, looks_ahead


class SpeculativeSampling:
    """Lossless: the emitted tokens have the target's law whatever the draft (Leviathan A.1); greedy ones are its argmax.

    On a CPU the compiled loop decides where there is one (``kernels.verify.fused_cpu``), else the reference's operations do.
    """

    guarantee: Guarantee = "same_distribution"
    can_be_captured = True

    def elsewhere(self, device: torch.device) -> list["SpeculativeSampling"]:
        """Return the same rule by what else decides on such a device. A rule that decides in a way of its own has none."""
        is_own = type(self).verify is not SpeculativeSampling.verify
        return [] if device.type != "cpu" or is_own else [ByOperations()]

    def loop(self, proposal: Proposal, sampling: Sampling) -> Loop | None:
        """Return how the compiled loop decides as this rule; None where it does not."""
        is_decided = _is_decided_by_loop(proposal, sampling)
        return Loop(looks_at_all=True) if is_decided and _decides_by(self, _SAMPLING) else None

    def verify(self, proposal: Proposal, target_logits: TargetLogits, sampling: Sampling, uniforms: RoundUniforms) -> Verdict:
        library = _library(target_logits)
        if library is None or not _is_decided_by_loop(proposal, sampling):
            return ByOperations().verify(proposal, target_logits, sampling, uniforms)
        return _verdict_by(Loop(looks_at_all=True), library, proposal, target_logits, sampling, uniforms)


class ByOperations(SpeculativeSampling):
    """Speculative sampling by the reference's operations on every device."""

    can_be_captured = True

    def verify(self, proposal: Proposal, target_logits: TargetLogits, sampling: Sampling, uniforms: RoundUniforms) -> Verdict:
        if not sampling.greedy:
            return _sampled_verdict(proposal, target_logits, sampling, uniforms, 1.0, None)
        best = target_logits.argmax(-1)
        return _greedy_verdict(proposal, best, proposal.tokens == best[:, :-1])


class Lenience:
    """Lossy: multiplies the draft's probability by ``lenience`` before the comparison (Leviathan A.5).

    No token is emitted with more than 1 / lenience times its target probability. At temperature 0 a draft stands where
    its temperature-1 target probability, before any adjustment, is at least ``lenience`` times the largest.

    Differs from the paper: it does not say which residual follows a rejection; here it stays ``max(0, target - draft)``,
    under which the bound holds. At temperature 0 the paper prints ``<=``, which at lenience 1 accepts every draft;
    ``as_described=True`` keeps that.
    """

    guarantee: Guarantee = "lossy"
    can_be_captured = True

    def __init__(self, lenience: float, as_described: bool = False) -> None:
        LenienceOptions(lenience=lenience)
        self.lenience, self.as_described = lenience, as_described

    def loop(self, proposal: Proposal, sampling: Sampling) -> Loop | None:
        """As ``SpeculativeSampling.loop``."""
        is_own = not sampling.greedy and _decides_by(self, _LENIENCE)
        return Loop(self.lenience, looks_at_all=True) if is_own else None

    def verify(self, proposal: Proposal, target_logits: TargetLogits, sampling: Sampling, uniforms: RoundUniforms) -> Verdict:
        if not sampling.greedy:
            return _sampled_verdict(proposal, target_logits, sampling, uniforms, self.lenience, _library(target_logits))
        accepted = self.greedy_accepts(target_logits[:, :-1]).gather(-1, proposal.tokens.unsqueeze(-1)).squeeze(-1)
        return _greedy_verdict(proposal, target_logits.argmax(-1), accepted)

    def greedy_accepts(self, target_logits: Float[Tensor, "*batch V"]) -> Bool[Tensor, "*batch V"]:
        """Which tokens stand at temperature 0: the ratio of two probabilities is the exponential of a logit difference."""
        below_best = target_logits - target_logits.amax(-1, keepdim=True)
        bound = math.log(self.lenience)
        return below_best <= bound if self.as_described else below_best >= bound


class KernelRule:
    """A verification kernel as a rule (``kernels.verify``): PyTorch on a CPU, Triton on CUDA.

    At temperature 0 nothing is drawn: there every kernel's drafts are compared with the target's argmax, as in speculative
    sampling. ``options`` are the kernel's own, such as the sigmoid's ``scaling``.
    """

    can_be_captured = True

    def __init__(self, kernel: str, **options: Any) -> None:
        self.guarantee: Guarantee = "same_distribution" if kernel in EXACT_KERNELS else "lossy"
        self.name, self.kernel = kernel, partial(KERNELS[kernel], **options)
        self._made, backend = self.kernel, options.get("backend")
        self._greedily = ByOperations() if backend == "torch" else SpeculativeSampling()
        self._loop = fused_cpu.FUSED if kernel == "fused" and backend in (None, "native") else None

    def loop(self, proposal: Proposal, sampling: Sampling) -> Loop | None:
        """As ``SpeculativeSampling.loop``."""
        if not _decides_by(self, _KERNEL, _SIGMOID):
            return None
        if sampling.greedy:
            return loop_of(self._greedily, proposal, sampling)
        return self._loop if self.kernel is self._made else None

    def verify(self, proposal: Proposal, target_logits: TargetLogits, sampling: Sampling, uniforms: RoundUniforms) -> Verdict:
        if sampling.greedy:
            return self._greedily.verify(proposal, target_logits, sampling, uniforms)
        return self.kernel(proposal, target_logits, sampling, uniforms)


class SigmoidRule(KernelRule):
    """Optimized, Eq. 5, as the paper describes it or as its code was released; alpha and beta are ``-scale`` and ``scale``.

    ``half_logits`` rounds both models' logits to fp16 first, as the paper's Whisper gives them: the scaling is then computed in
    fp16 too, where a scale of 1e5 is infinite.
    """

    can_be_captured = True

    def __init__(self, scale: float = DEFAULT_SCALE, as_released: bool = False, half_logits: bool = False) -> None:
        self.scaling = Scaling(-scale, scale, as_released)
        super().__init__("sigmoid", scaling=self.scaling)
        self.half_logits = half_logits

    def loop(self, proposal: Proposal, sampling: Sampling) -> Loop | None:
        """As ``SpeculativeSampling.loop``."""
        return None if self.half_logits else super().loop(proposal, sampling)

    def verify(self, proposal: Proposal, target_logits: TargetLogits, sampling: Sampling, uniforms: RoundUniforms) -> Verdict:
        if self.half_logits:
            logits = None if proposal.logits is None else proposal.logits.half()
            proposal, target_logits = replace(proposal, logits=logits), target_logits.half()
        return super().verify(proposal, target_logits, sampling, uniforms)


BASELINE, EXACT, FUSED = (partial(KernelRule, name) for name in ("baseline", "exact", "fused"))
SIGMOID_RELEASED = partial(SigmoidRule, as_released=True)


# What the rules of this module decide by: one whose ``verify`` was replaced, wherever, decides in a way of its own.
_SAMPLING, _LENIENCE, _KERNEL, _SIGMOID = (one.verify for one in (SpeculativeSampling, Lenience, KernelRule, SigmoidRule))


def _decides_by(rule: Any, *verify: Any) -> bool:
    return getattr(rule.verify, "__func__", None) in verify


def loop_of(rule: Any, proposal: Proposal, sampling: Sampling) -> Loop | None:
    """Return how the compiled loop decides as a rule does; None for a rule that does not say, as of a plug-in."""
    loop = getattr(type(rule), "loop", None)
    return loop(rule, proposal, sampling) if callable(loop) else None


class ByLoop:
    """A rule as compiled passes decide for it: by the loop that it names, or by itself where it names none."""

    def __init__(self, rule: VerifyRule) -> None:
        self.rule, self.guarantee, self.looks_ahead = rule, rule.guarantee, looks_ahead(rule)

    def verify(self, proposal: Proposal, target_logits: TargetLogits, sampling: Sampling, uniforms: RoundUniforms) -> Verdict:
        loop, library = loop_of(self.rule, proposal, sampling), _library(target_logits)
        if loop is None or library is None:
            return self.rule.verify(proposal, target_logits, sampling, uniforms)
        return _verdict_by(loop, library, proposal, target_logits, sampling, uniforms)


def ways_of(rule: VerifyRule, device: torch.device) -> list[VerifyRule]:
    """Return a rule by everything that may decide for it on such a device; the first is the rule itself."""
    ways: list[VerifyRule] = [rule]
    if hasattr(rule, "elsewhere"):
        ways += rule.elsewhere(device)
    return [*ways, ByLoop(rule)] if can_loop(device) and hasattr(type(rule), "loop") else ways


def can_loop(device: torch.device) -> bool:
    """Say whether a compiled loop can decide on such a device."""
    return device.type == "cpu" and fused_cpu.library() is not None


def _library(logits: Tensor) -> ctypes.CDLL | None:
    """Return the compiled loop where it decides on such logits."""
    return fused_cpu.library() if logits.device.type == "cpu" else None


def _is_decided_by_loop(proposal: Proposal, sampling: Sampling) -> bool:
    """Say whether tokens are drawn, or drafts are compared with no law of theirs: what the loop decides."""
    return not sampling.greedy or proposal.logits is None or proposal.sampling.greedy


def _verdict_by(
    loop: Loop, library: ctypes.CDLL, proposal: Proposal, target_logits: Tensor, sampling: Sampling, uniforms: Tensor
) -> Verdict:
    """Let the compiled loop decide, shapes checked; at temperature 0 it compares drafts with the target's likeliest tokens."""
    if not sampling.greedy:
        return fused_cpu.verify(checked(proposal, target_logits, sampling, uniforms), library, loop)
    check_shapes(proposal, target_logits)
    return fused_cpu.compare(proposal.tokens, proposal.lengths, target_logits, library)


def _sampled_verdict(
    proposal: Proposal,
    target_logits: TargetLogits,
    sampling: Sampling,
    uniforms: RoundUniforms,
    lenience: float,
    library: ctypes.CDLL | None,
) -> Verdict:
    if library is not None:
        return _verdict_by(Loop(lenience, looks_at_all=True), library, proposal, target_logits, sampling, uniforms)
    target_probs, tokens, drafted_by = sampling.probs(target_logits), proposal.tokens, proposal.sampling
    draft_probs = None if proposal.logits is None or drafted_by.greedy else drafted_by.probs(proposal.logits)
    lengths = proposal.ragged_lengths()
    num_accepted, next_token = reference.verify(target_probs, draft_probs, tokens, lengths, uniforms, lenience)
    return Verdict(num_accepted, next_token, *reference.drafted_probs(target_probs, draft_probs, tokens))


def _greedy_verdict(proposal: Proposal, best: Int[Tensor, "B n_plus_1"], accepted: Bool[Tensor, "B n"]) -> Verdict:
    """At temperature 0 no number is drawn: what follows the accepted drafts is the target's argmax there."""
    num_accepted = reference.count_accepted(accepted, proposal.ragged_lengths())
    next_token = best.gather(-1, num_accepted.unsqueeze(-1)).squeeze(-1)
    return Verdict(num_accepted, next_token, *greedy_probs(proposal, best))


def greedy_probs(proposal: Proposal, best: Int[Tensor, "B n_plus_1"]) -> tuple[Float[Tensor, "B n"], Float[Tensor, "B n"]]:
    """Return what target and draft gave each drafted token; the target is a point mass, and so is a greedy draft."""
    target_probs = (proposal.tokens == best[:, :-1]).float()
    if proposal.logits is None or proposal.sampling.greedy:
        return target_probs, torch.ones_like(target_probs)
    return target_probs, proposal.sampling.probs(proposal.logits).gather(-1, proposal.tokens.unsqueeze(-1)).squeeze(-1)
