"""The fused rule on a CPU as one compiled loop; ``verdicts.h`` is the loop, this hands it tensors. See README.md."""

import ctypes
from array import array
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from kernels import native
from kernels.verify.interface import Round, TargetLogits, Verdict, refuse_undrawn
from kernels.verify.reference import Sampling

SOURCE = Path(__file__).with_suffix(".cpp")
ITEMS = {torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 3}
# The structures of ``verdicts.h``, whose members all have eight bytes: q an integer, P an address (0: none), d a double.
# They are packed in one go: to fill ctypes structures takes two microseconds more.
MODEL = "P qq dqd"  # logits, their strides, temperature, top_k, top_p
ROUND = Struct(f"qqq PP {MODEL} {MODEL} PP dq PPPP")
COMPARED = Struct("qqq PPP qq PPP")


class Loop(NamedTuple):
    """How Algorithm 1's loop decides.

    ``lenience`` is what a draft's probability is multiplied by before it is compared, as in ``reference.verify``. Logits that
    no decision depends on are not read, unless it ``looks_at_all``: then drafts behind the first rejection have their
    probabilities, too.
    """

    lenience: float = 1.0
    looks_at_all: bool = False


FUSED = Loop()


class Places(NamedTuple):
    """Where a verdict goes: the addresses of its numbers. A verdict at temperature 0 leaves the draft's probabilities alone."""

    num_accepted: int
    next_token: int
    target_probs: int
    draft_probs: int


def library() -> ctypes.CDLL | None:
    """The loop, compiled if it is not yet; None where nothing can compile it."""
    return native.library(SOURCE)


def verify(round: Round, library: ctypes.CDLL, loop: Loop = FUSED) -> Verdict:
    """Algorithm 1's decisions and Eq. 3's draw.

    Raises:
        NotFiniteError: which row's logits hold NaN, +inf or nothing but -inf where the last token is drawn.
    """
    batch, num_draft = round.tokens.shape
    dtype = round.target_logits.dtype
    if round.draft_logits is not None and round.draft_logits.dtype != dtype:
        dtype = torch.promote_types(dtype, round.draft_logits.dtype)
    num_accepted, next_token = torch.empty(batch, dtype=torch.long), torch.empty(batch, dtype=torch.long)
    real = torch.float64 if dtype == torch.float64 else torch.float32
    target_probs, draft_probs = torch.empty(batch, num_draft, dtype=real), torch.empty(batch, num_draft, dtype=real)
    verdict = Verdict(num_accepted, next_token, target_probs, draft_probs)
    places = Places(*map(Tensor.data_ptr, (num_accepted, next_token, target_probs, draft_probs)))
    given, _held = round_arguments(round, dtype, loop, places)
    is_drawn = library.verify(given, ITEMS[dtype], torch.get_num_threads())
    return verdict if is_drawn else refuse_undrawn(verdict, round.vocab_size)


def round_arguments(round: Round, dtype: torch.dtype, loop: Loop, places: Places) -> tuple[bytes, Any]:
    """Pack a round for the loop, logits as ``dtype``; and hold what it points to."""
    batch, num_draft = round.tokens.shape
    target = _rows(round.target_logits, dtype)
    draft = None if round.draft_logits is None else _rows(round.draft_logits, dtype)
    log_sum_exp = None if round.log_sum_exp is None else _whole(round.log_sum_exp, torch.float64)
    tokens, uniforms = _whole(round.tokens, torch.long), _whole(round.uniforms, torch.float64)
    vocab_size, lengths = round.vocab_size, array("q", round.lengths)
    given = ROUND.pack(
        batch, num_draft, vocab_size, tokens.data_ptr(), lengths.buffer_info()[0],
        *_model(target, round.target, vocab_size), *_model(draft, round.draft, vocab_size),
        0 if log_sum_exp is None else log_sum_exp.data_ptr(), uniforms.data_ptr(), *loop, *places,
    )  # fmt: skip
    return given, (target, draft, log_sum_exp, tokens, uniforms, lengths)


def compare(tokens: Int[Tensor, "B n"], lengths: tuple[int, ...], target_logits: TargetLogits, library: ctypes.CDLL) -> Verdict:
    """The verdict at temperature 0, where both laws are point masses: a draft stands where it is the target's likeliest token,
    and that token follows. Shapes must agree. A NaN is above all, as in torch's argmax.
    """
    batch, num_draft = tokens.shape
    dtype = target_logits.dtype
    num_accepted, next_token = torch.empty(batch, dtype=torch.long), torch.empty(batch, dtype=torch.long)
    probs = torch.empty(batch, num_draft, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
    places = Places(num_accepted.data_ptr(), next_token.data_ptr(), probs.data_ptr(), 0)
    given, _held = compared_arguments(tokens, lengths, target_logits, places)
    library.compare(given, ITEMS[dtype], torch.get_num_threads())
    return Verdict(num_accepted, next_token, probs, torch.ones_like(probs))


def compared_arguments(
    tokens: Int[Tensor, "B n"], lengths: tuple[int, ...], target_logits: TargetLogits, places: Places
) -> tuple[bytes, Any]:
    """Pack a round at temperature 0 for the loop; and hold what it points to."""
    batch, num_draft = tokens.shape
    logits, tokens, told = _rows(target_logits, target_logits.dtype), _whole(tokens, torch.long), array("q", lengths)
    given = COMPARED.pack(
        batch, num_draft, logits.shape[-1], tokens.data_ptr(), told.buffer_info()[0],
        logits.data_ptr(), logits.stride(0), logits.stride(1), *places[:3],
    )  # fmt: skip
    return given, (logits, tokens, told)


def _rows(logits: Tensor, dtype: torch.dtype) -> Tensor:
    """Return logits of a type. Rows may lie anywhere; the numbers of one must lie side by side."""
    logits = logits if logits.dtype is dtype else logits.to(dtype)
    return logits if logits.stride(-1) == 1 else logits.contiguous()


def _whole(numbers: Tensor, dtype: torch.dtype) -> Tensor:
    """Return numbers of a type, side by side. To ask first costs less than a conversion that does nothing."""
    return numbers if numbers.dtype is dtype and numbers.is_contiguous() else numbers.to(dtype).contiguous()


def _model(logits: Tensor | None, sampling: Sampling, vocab_size: int) -> tuple[int, int, int, float, int, float]:
    top_k = vocab_size if sampling.top_k is None else min(sampling.top_k, vocab_size)
    top_p = 1.0 if sampling.top_p is None else sampling.top_p
    place = (0, 0, 0) if logits is None else (logits.data_ptr(), logits.stride(0), logits.stride(1))
    return (*place, sampling.temperature, top_k, top_p)
