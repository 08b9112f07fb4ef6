"""What every verification kernel takes and gives. B: rows of a batch, n: drafted tokens, V: vocabulary size.

The signature of those in ``registry.KERNELS`` is a VerifyRule's: ``verify(proposal, target_logits, sampling, uniforms)``, raw
logits in. The module of a kernel has ``decide(round)``. ``backend`` picks Triton kernels, the vectorised PyTorch path, or
"native", which only ``fused`` has: a loop that a C++ compiler made. None is Triton for tensors on CUDA; elsewhere the loop,
where there is one, and PyTorch.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kernels.inputs import InputError, NotFiniteError
from kernels.transfer import to_device
from kernels.verify.reference import Sampling

MANY_ROWS = 16  # from here on one look at all of their tokens is faster than a loop over them

Backend = Literal["torch", "triton", "native"]
TargetLogits = Float[Tensor, "B n_plus_1 V"]
RoundUniforms = Float[Tensor, "B n_plus_1"]  # n acceptance numbers and the one that draws the last token


@dataclass(frozen=True)
class Proposal:
    """What a drafter proposes: n is the longest of ``lengths``; columns past a row's length are padding.

    ``logits`` are the draft's raw logits at the drafted positions (None: a point mass on the drafted token) and
    ``sampling`` is what the tokens were drawn with, which may differ from the target's. A drafter that knows the log-sum-exp of
    its logits over the temperature, from drawing, hands it over: rules then take it as it is and need not read whole rows.
    ``has_nan`` is of logits that no rule sees, on CUDA: whoever brings the verdict to the host refuses those rows
    (``nan_rows``). Where a rule is captured, ``laid_lengths`` are the lengths at a fixed place on the device.
    """

    tokens: Int[Tensor, "B n"]
    lengths: tuple[int, ...]
    logits: Float[Tensor, "B n V"] | None
    sampling: Sampling
    log_sum_exp: Float[Tensor, "B n"] | None = None
    has_nan: Bool[Tensor, "B"] | None = None
    laid_lengths: Int[Tensor, "B"] | None = None

    @classmethod
    def nothing(cls, num_rows: int, sampling: Sampling, device: torch.device) -> "Proposal":
        """Draft no token for any row."""
        return cls(torch.zeros(num_rows, 0, dtype=torch.long, device=device), (0,) * num_rows, None, sampling)

    def ragged_lengths(self) -> Int[Tensor, "B"] | None:
        """Return the lengths as a tensor; None where every row drafted all n tokens."""
        return _ragged(self.lengths, self.tokens) if self.laid_lengths is None else self.laid_lengths


@dataclass(frozen=True)
class Verdict:
    """What a rule or kernel decides: accepted drafts, the token behind them, and what target and draft gave each drafted token.

    The probabilities are the adjusted ones (greedy: 0 or 1); a kernel leaves NaN where it had no need to look, behind the first
    rejection. ``next_token`` is V, outside the vocabulary, where nothing could be drawn because a logit that counts is NaN or a
    drafted token is outside; on a CPU that is refused at once, on CUDA by whoever first brings the verdict to the host, so
    that no kernel has to wait for the device. ``choices`` are the target's first choices after every token of the round, from
    rules that compare drafts with them.
    """

    num_accepted: Int[Tensor, "B"]
    next_token: Int[Tensor, "B"]
    target_probs: Float[Tensor, "B n"]
    draft_probs: Float[Tensor, "B n"]
    choices: Int[Tensor, "B n_plus_1"] | None = None


class Round(NamedTuple):
    """A round that was checked. ``draft_logits`` None is a point mass; ``log_sum_exp`` is dropped where tokens are filtered."""

    tokens: Int[Tensor, "B n"]
    lengths: tuple[int, ...]
    target_logits: Float[Tensor, "B n_plus_1 V"]
    draft_logits: Float[Tensor, "B n V"] | None
    log_sum_exp: Float[Tensor, "B n"] | None
    uniforms: Float[Tensor, "B n_plus_1"]
    target: Sampling
    draft: Sampling
    laid_lengths: Int[Tensor, "B"] | None = None

    @property
    def vocab_size(self) -> int:
        return self.target_logits.shape[-1]

    def ragged_lengths(self) -> Int[Tensor, "B"] | None:
        """As ``Proposal.ragged_lengths``."""
        return _ragged(self.lengths, self.tokens) if self.laid_lengths is None else self.laid_lengths


def _ragged(lengths: tuple[int, ...], tokens: Tensor) -> Int[Tensor, "B"] | None:
    if not lengths or min(lengths) == tokens.shape[1]:
        return None
    return to_device(lengths, tokens.device)


def checked(proposal: Proposal, target_logits: TargetLogits, sampling: Sampling, uniforms: RoundUniforms) -> Round:
    """The round, its shapes agreeing and its temperatures above 0; a greedy draft is a point mass on what it drafted.

    Raises:
        InputError: which tensor does not fit, and what would; on a CPU also a drafted token outside the vocabulary.
    """
    tokens, logits = proposal.tokens, proposal.logits
    if sampling.temperature == 0:
        raise InputError("temperature 0: nothing is drawn, so no kernel is needed; compare drafts with the target's argmax")
    check_shapes(proposal, target_logits, uniforms)
    if not tokens.is_cuda:
        _check_tokens(tokens, proposal.lengths, target_logits.shape[-1])
    if proposal.sampling.temperature == 0:
        logits = None
    known = None if logits is None or proposal.sampling.filters else proposal.log_sum_exp
    laid = proposal.laid_lengths
    return Round(tokens, proposal.lengths, target_logits, logits, known, uniforms, sampling, proposal.sampling, laid)


def check_shapes(proposal: Proposal, target_logits: Tensor, uniforms: Tensor | None = None) -> None:
    """InputError: which tensor or length does not fit, and what would.

    Without ``uniforms``, for a verdict at temperature 0, which compares tokens, the draft's laws are not looked at.
    """
    batch, num_draft = proposal.tokens.shape
    vocab_size, lengths = target_logits.shape[-1], proposal.lengths
    draws = uniforms is not None
    for name, tensor, shape in (
        ("target logits", target_logits, (batch, num_draft + 1, vocab_size)),
        ("draft logits", proposal.logits if draws else None, (batch, num_draft, vocab_size)),
        ("draft log-sum-exp", proposal.log_sum_exp if draws else None, (batch, num_draft)),
        ("uniforms", uniforms, (batch, num_draft + 1)),
    ):
        if tensor is not None and tensor.shape != shape:
            raise InputError(f"{name} {list(tensor.shape)}: expected {list(shape)} for {batch} rows of {num_draft} drafts")
    if len(lengths) != batch or (batch and not 0 <= min(lengths) <= max(lengths) <= num_draft):
        raise InputError(f"lengths {lengths}: expected {batch} numbers from 0 to {num_draft}, the drafts of each row")


def _check_tokens(tokens: Tensor, lengths: tuple[int, ...], vocab_size: int) -> None:
    if len(lengths) > MANY_ROWS and tokens.numel():
        low, high = tokens.aminmax()
        if bool((low >= 0) & (high < vocab_size)):
            return
    for entry, (row, length) in enumerate(zip(tokens.tolist(), lengths, strict=True)):
        drafted = row[:length]
        if drafted and not 0 <= min(drafted) <= max(drafted) < vocab_size:
            position, token = next((place, one) for place, one in enumerate(drafted) if not 0 <= one < vocab_size)
            raise InputError(
                f"draft token {token} of row {entry}, position {position}: expected 0 to {vocab_size - 1}; "
                "draft and target need the same vocabulary"
            )


def refuse_undrawn(verdict: Verdict, vocab_size: int) -> Verdict:
    """The verdict, or an error where a token is outside the vocabulary; CUDA tensors are not waited for."""
    if not verdict.next_token.is_cuda:
        for entry, token in enumerate(verdict.next_token.tolist()):
            refuse_token(entry, token, vocab_size, int(verdict.num_accepted[entry]))
    return verdict


def refuse_token(entry: int, token: int, vocab_size: int, position: int) -> None:
    """NotFiniteError where no token could be drawn."""
    if not 0 <= token < vocab_size:
        raise NotFiniteError(
            f"logits of row {entry}, position {position}: hold NaN, +inf or nothing but -inf, so no token can be drawn; "
            "look at the model's output there (fp16 overflows above 65504)"
        )


def refuse_nan(logits: Float[Tensor, "B V"]) -> None:
    """NotFiniteError where a row holds NaN, of which a greedy choice says nothing. One look when a row ends is enough: what
    was NaN once stays in its cache."""
    rows = logits.isnan().any(-1)
    if rows.any():
        refuse_rows(rows.tolist())


def nan_rows(logits: Float[Tensor, "B V"]) -> Bool[Tensor, "B"] | None:
    """Say on CUDA which rows hold NaN, without a wait. On a CPU such rows are refused at once, and nothing is left to say."""
    if logits.is_cuda:
        return logits.isnan().any(-1)
    refuse_nan(logits)
    return None


def refuse_rows(has_nan: Sequence[bool]) -> None:
    """NotFiniteError, naming the first of these rows that holds NaN."""
    if any(has_nan):
        raise NotFiniteError(
            f"logits of row {has_nan.index(True)}: hold NaN; look at the model's weights (fp16 overflows above 65504)"
        )


def use_triton(target_logits: Tensor, backend: Backend | None) -> bool:
    """InputError where Triton is asked for on a CPU by a process that does not interpret.

    Triton looks for ``TRITON_INTERPRET=1`` in the environment when it is imported, so it takes a process of its own.
    """
    if backend == "triton" and not target_logits.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        raise InputError("backend 'triton' without CUDA: set TRITON_INTERPRET=1 in the environment, or use backend 'torch'")
    return target_logits.is_cuda if backend is None else backend == "triton"
