"""What every verification kernel takes and gives. B: rows of a batch, n: drafted tokens, V: vocabulary size.

The signature is that of a VerifyRule: ``verify(proposal, target_logits, sampling, uniforms)``, raw logits in. ``backend`` picks
the Triton kernels or the vectorised PyTorch path; None is Triton for tensors on CUDA and PyTorch elsewhere.
"""

from typing import Literal, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kernels.errors import InputError, NotFiniteError
from kernels.verify import interpreter

Backend = Literal["torch", "triton"]


@runtime_checkable
class Adjusting(Protocol):
    """How logits become a distribution: temperature, then top-k, then top-p (``methods.sampling.Sampling``)."""

    @property
    def temperature(self) -> float: ...

    @property
    def top_k(self) -> int | None: ...

    @property
    def top_p(self) -> float | None: ...


@runtime_checkable
class Proposed(Protocol):
    """What a drafter proposes (``methods.types.Proposal``): ``logits`` None is a point mass on each drafted token.

    ``log_sum_exp`` is that of the draft's logits over its temperature, one a drafted token, where the drafter knows it.
    """

    @property
    def tokens(self) -> Int[Tensor, "B n"]: ...

    @property
    def lengths(self) -> tuple[int, ...]: ...

    @property
    def logits(self) -> Float[Tensor, "B n V"] | None: ...

    @property
    def sampling(self) -> Adjusting: ...

    @property
    def log_sum_exp(self) -> Float[Tensor, "B n"] | None: ...


class Decisions(NamedTuple):
    """Accepted drafts, the token behind them, and what target and draft gave each drafted token.

    A probability is NaN where the kernel had no need to look: behind the first rejection. ``next_token`` is V, outside the
    vocabulary, where nothing could be drawn because a logit that counts is NaN or a drafted token is outside; on a CPU that is
    refused at once, on CUDA by whoever first brings the decisions to the host, so that no kernel has to wait for the device.
    """

    num_accepted: Int[Tensor, "B"]
    next_token: Int[Tensor, "B"]
    target_probs: Float[Tensor, "B n"]
    draft_probs: Float[Tensor, "B n"]


class Round(NamedTuple):
    """A round that was checked. ``draft_logits`` None is a point mass; ``log_sum_exp`` is dropped where tokens are filtered."""

    tokens: Int[Tensor, "B n"]
    lengths: tuple[int, ...]
    target_logits: Float[Tensor, "B n_plus_1 V"]
    draft_logits: Float[Tensor, "B n V"] | None
    log_sum_exp: Float[Tensor, "B n"] | None
    uniforms: Float[Tensor, "B n_plus_1"]
    target: Adjusting
    draft: Adjusting

    @property
    def vocab_size(self) -> int:
        return self.target_logits.shape[-1]

    def ragged_lengths(self) -> Int[Tensor, "B"] | None:
        """None where every row drafted all n tokens."""
        if not self.lengths or min(self.lengths) == self.tokens.shape[1]:
            return None
        return torch.tensor(self.lengths, device=self.tokens.device)


def filters(sampling: Adjusting) -> bool:
    """Whether any token is left out."""
    return sampling.top_k is not None or (sampling.top_p is not None and sampling.top_p < 1)


def checked(
    proposal: Proposed, target_logits: Float[Tensor, "B n_plus_1 V"], sampling: Adjusting, uniforms: Float[Tensor, "B n_plus_1"]
) -> Round:
    """The round, its shapes agreeing and its temperatures above 0; a greedy draft is a point mass on what it drafted.

    Raises:
        InputError: which tensor does not fit, and what would; on a CPU also a drafted token outside the vocabulary.
    """
    tokens, logits = proposal.tokens, proposal.logits
    if sampling.temperature == 0:
        raise InputError("temperature 0: nothing is drawn, so no kernel is needed; compare drafts with the target's argmax")
    _check_shapes(proposal, target_logits, uniforms)
    if not tokens.is_cuda:
        _check_tokens(tokens, proposal.lengths, target_logits.shape[-1])
    if proposal.sampling.temperature == 0:
        logits = None
    known = None if logits is None or filters(proposal.sampling) else proposal.log_sum_exp
    return Round(tokens, proposal.lengths, target_logits, logits, known, uniforms, sampling, proposal.sampling)


def _check_shapes(proposal: Proposed, target_logits: Tensor, uniforms: Tensor) -> None:
    """In one expression where all is well: this is part of every round."""
    batch, num_draft = proposal.tokens.shape
    rows, vocab_size = (batch, num_draft), target_logits.shape[-1]
    logits, known, lengths = proposal.logits, proposal.log_sum_exp, proposal.lengths
    if not (
        target_logits.shape == (batch, num_draft + 1, vocab_size)
        and uniforms.shape == (batch, num_draft + 1)
        and (logits is None or logits.shape == (*rows, vocab_size))
        and (known is None or known.shape == rows)
    ):
        _refuse_shapes(proposal, target_logits, uniforms)
    if len(lengths) != batch or (batch and not 0 <= min(lengths) <= max(lengths) <= num_draft):
        raise InputError(f"lengths {lengths}: expected {batch} numbers from 0 to {num_draft}, the drafts of each row")


def _refuse_shapes(proposal: Proposed, target_logits: Tensor, uniforms: Tensor) -> None:
    batch, num_draft = proposal.tokens.shape
    vocab_size = target_logits.shape[-1]
    expected = (
        ("target logits", target_logits, (batch, num_draft + 1, vocab_size)),
        ("draft logits", proposal.logits, (batch, num_draft, vocab_size)),
        ("draft log-sum-exp", proposal.log_sum_exp, (batch, num_draft)),
        ("uniforms", uniforms, (batch, num_draft + 1)),
    )
    for name, tensor, shape in expected:
        if tensor is not None and tensor.shape != shape:
            raise InputError(f"{name} {list(tensor.shape)}: expected {list(shape)} for {batch} rows of {num_draft} drafts")


def _check_tokens(tokens: Tensor, lengths: tuple[int, ...], vocab_size: int) -> None:
    for entry, (row, length) in enumerate(zip(tokens.tolist(), lengths, strict=True)):
        drafted = row[:length]
        if drafted and not 0 <= min(drafted) <= max(drafted) < vocab_size:
            position, token = next((place, one) for place, one in enumerate(drafted) if not 0 <= one < vocab_size)
            raise InputError(
                f"draft token {token} of row {entry}, position {position}: expected 0 to {vocab_size - 1}; "
                "draft and target need the same vocabulary"
            )


def refuse_undrawn(decisions: Decisions, vocab_size: int) -> Decisions:
    """The decisions, or an error where a token is outside the vocabulary; CUDA tensors are not waited for."""
    if not decisions.next_token.is_cuda:
        for entry, token in enumerate(decisions.next_token.tolist()):
            refuse_token(entry, token, vocab_size, int(decisions.num_accepted[entry]))
    return decisions


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
        raise NotFiniteError(
            f"logits of row {int(rows.int().argmax())}: hold NaN; look at the model's weights (fp16 overflows above 65504)"
        )


def use_triton(target_logits: Tensor, backend: Backend | None) -> bool:
    """InputError where Triton is asked for on a CPU by a process that does not interpret."""
    if backend == "triton" and not target_logits.is_cuda:
        interpreter.require()
    return target_logits.is_cuda if backend is None else backend == "triton"
