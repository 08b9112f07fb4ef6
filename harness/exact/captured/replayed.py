"""Every captured token, read again by a local copy of the target: is it one that the target would have given?

Greedy: it must be the target's first choice within rounding. Sampled: it must be among the tokens that top-k and top-p leave,
and all tokens together must have the target's law. They are held against draws from the laws that were read: to swap signs
instead would ask for differences that lie as far on either side, and those of a peaked law do not. Tokens behind an end of text
are none that the target gives, unless the engine goes on there (``ignore_eos``, or plain decoding does so): then they are not
read, and counted where they alone part the arms.
Rounding is that of a dtype, measured on the same text (harness.run.replay): the dtype that an arm's lines state, else the
target's own; where that does not explain every token of an arm, bfloat16. The plain arm is the check on all this: if the target
does not explain it, the copy is not what the engine ran, and nothing is said of the other.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from harness.core.errors import UsageError
from harness.core.experiment import ModelSpec
from harness.exact.captured.capture import LENGTHS, Output
from harness.exact.captured.matched import ARMS, CONTROL, PLAIN, Group, Row
from harness.exact.captured.two_samples import RESAMPLES
from harness.exact.fit import CELLS
from harness.models.fit import Models, fits
from harness.models.loading import LoadedModel, load_tokenizer
from harness.run.replay import Reader, Reading, law_of
from methods.sampling import Sampling
from methods.types import Inputs

FINENESS = ("bfloat16", "float16", "float32", "float64")  # from coarse to fine


@dataclass(frozen=True)
class Fault:
    """A token that the target would not have given: in which ``output`` of an arm, where, ``off`` by more than ``bound``.

    It is infinitely far off behind an end of text.
    """

    output: int
    place: int
    off: float
    bound: float
    token: str
    first_choice: str


@dataclass(frozen=True)
class Evenness:
    """How far the places of an arm's tokens in the target's laws are from even: first as found, then as draws leave it.

    ``apart`` [1 + RESAMPLES, CELLS]: each output is drawn by random numbers of its own. ``shared``: outputs of a seed are drawn
    by the same, which moves them together as far as numbers can; None where no two outputs have one seed.
    """

    tokens: int
    apart: np.ndarray
    shared: np.ndarray | None


@dataclass(frozen=True)
class ReadArm:
    """An arm as the target read it. ``dtype`` explains all its tokens; None where none does, then ``faults`` were left over.

    ``choices`` is the share of tokens that are the target's first choice, ``expected_choices`` what its law says, and
    ``greedy_p`` bounds the chance that all are: that of the output for which it is least, since outputs may share random
    numbers. ``law`` is None for greedy outputs. ``unread`` counts tokens behind ends of text that were not read where they
    alone part the arms.
    """

    dtype: str | None
    tokens: int
    faults: int
    first: Fault | None
    choices: float
    expected_choices: float
    greedy_p: float
    law: Evenness | None
    unread: int = 0


@dataclass
class LocalTarget:
    """The user's copy of the target, loaded once in each dtype that is tried. ``dtype`` is tried first."""

    spec: ModelSpec
    device: str
    dtype: str
    known: dict[str, Models] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.spec.short

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return load_tokenizer(self.spec)

    def models(self, dtype: str) -> Models:
        return self.known.setdefault(dtype, Models(self.device, dtype))

    def loaded(self, dtype: str) -> LoadedModel:
        return self.models(dtype).get(self.spec)


def refusal(group: Group) -> str | None:
    """Say why a group cannot be replayed: settings whose laws are not known here, or tokens that nobody told."""
    chats = [one for row in group.rows for one in row[:CONTROL] if one.is_chat]
    if any(one.prompt_ids is None or one.ids is None for one in chats):
        return "chat messages without token ids, so that what the model read and wrote is unknown"
    odd = [name for name, _ in group.others if name not in LENGTHS]
    return f"{odd[0]} changes the target's law in a way that is not replayed" if odd else None


@torch.inference_mode()
def read_arm(group: Group, arm: int, target: LocalTarget, stated: str | None) -> ReadArm:
    """Read all outputs of an arm in the dtype that it ``stated``; else in the target's own and, if that fails, in bfloat16.

    Raises:
        UsageError: a prompt or an output is not the target's: a token outside its vocabulary, or a text that is too long.
    """
    if stated in FINENESS:
        return _read(group, arm, target, stated)
    found = _read(group, arm, target, target.dtype)
    return _read(group, arm, target, FINENESS[0]) if found.faults and target.dtype != FINENESS[0] else found


def _read(group: Group, arm: int, target: LocalTarget, dtype: str) -> ReadArm:
    model = target.loaded(dtype)
    reader = Reader(model, group.sampling, target.models(dtype))
    faults, first, tokens, choices, expected, greedy_p, unread = 0, None, 0, 0, 0.0, 1.0, 0
    goes_on = dict(group.others).get("ignore_eos", False) or any(
        _ids_of(row[PLAIN], model, ARMS[PLAIN])[2] for row in group.rows
    )
    units = group.seed_units
    apart = np.zeros((1 + RESAMPLES, CELLS))
    shared = np.zeros_like(apart) if len(set(units)) < len(units) else None
    for number, row in enumerate(group.rows):
        inputs, ids, behind = _ids_of(row[arm], model, ARMS[arm])
        _, others, behind_others = _ids_of(row[1 - arm], model, ARMS[1 - arm])
        if group.sampling.greedy and _ends(group, row, arm) and not set(ids[-1:]) & set(model.eos_token_ids):
            ids += model.eos_token_ids[:1]
        if not ids:
            continue
        reading = reader.read(inputs, ids)
        logits, own = reading.logits.double(), torch.tensor(ids, device=reading.logits.device)
        off, bound = (_choices_off if group.sampling.greedy else _support_off)(reading, own, group.sampling)
        wrong = (off > bound).nonzero().flatten().tolist()
        faults, tokens = faults + len(wrong), tokens + len(ids)
        best = logits.argmax(-1)
        choices += int((own == best).sum())
        if wrong and first is None:
            place = wrong[0]
            shown = (repr(model.tokenizer.decode([one])) for one in (ids[place], int(best[place])))
            first = Fault(number, place, float(off[place]), float(bound[place]), *shown)
        if goes_on:
            unread += len(behind) if ids == others and behind != behind_others else 0
        elif behind:
            faults, tokens = faults + len(behind), tokens + len(behind)
            first = first or Fault(number, len(ids), math.inf, 0.0, repr(model.tokenizer.decode(behind[:1])), "")
        if not group.sampling.greedy:
            probs = group.sampling.probs(logits).cpu()
            expected += float(probs.amax(-1).sum())
            greedy_p = min(greedy_p, float(probs.amax(-1).prod()))
            for sums, seed in ((apart, (0, number)), (shared, (1, units[number]))):
                if sums is not None:
                    sums += _unevenness(probs, own.cpu(), np.random.default_rng(seed))
    law = Evenness(tokens, apart, shared) if tokens and not group.sampling.greedy else None
    whole = max(1, tokens)
    dtype_found = None if faults else dtype
    return ReadArm(dtype_found, tokens, faults, first, choices / whole, expected / whole, greedy_p, law, unread)


def _ends(group: Group, row: Row, arm: int) -> bool:
    """Say whether an output ended where the other arm's went on: then the end of the text is a token that it claims."""
    ours, theirs = group.said(row[arm]), group.said(row[1 - arm])
    return len(ours) < len(theirs) and ours == theirs[: len(ours)]


def _ids_of(output: Output, model: LoadedModel, arm: str) -> tuple[Inputs, list[int], list[int]]:
    """Return prompt and output as the target's tokens, up to its first end of text, and what stands behind that.

    Texts are read by the target's own tokenizer.
    """
    prompt = output.prompt_ids if output.prompt_ids is not None else model.encode(output.prompt_text or "")
    ids = list(output.ids if output.ids is not None else model.encode_continuation(output.text or ""))
    end = next((place for place, one in enumerate(ids) if one in model.eos_token_ids), len(ids) - 1)
    ids, behind = ids[: end + 1], ids[end + 1 :]
    where = f"captured {arm}, line {output.line}"
    if odd := [one for one in (*prompt, *ids, *behind) if one >= model.vocab_size]:
        raise UsageError(
            f"{where}: token {odd[0]}; target {model.name} has 0 to {model.vocab_size - 1}: give the model that the engine ran"
        )
    if not prompt or not fits(model, len(prompt), len(ids)):
        raise UsageError(
            f"{where}: a prompt of {len(prompt)} and an output of {len(ids)} tokens do not fit target {model.name} (positions: "
            f"{model.position_limit}); give the model that the engine ran"
        )
    return Inputs((tuple(prompt),)), ids, behind


LEAST_SHARE = 1e-12  # of a law, for a token that it does not hold
PLACES = 64  # of an output whose draws are in memory at once
Off = tuple[Float[Tensor, "T"], Float[Tensor, "T"]]  # how far each token is from being right, and what rounding may move


def _choices_off(reading: Reading, tokens: Tensor, _: Sampling) -> Off:
    logits = reading.logits.double()
    return logits.amax(-1) - logits.gather(-1, tokens.unsqueeze(-1)).squeeze(-1), reading.margin_bound.double()


def _support_off(reading: Reading, tokens: Tensor, sampling: Sampling) -> Off:
    """Return how far logits are below the last that the filters leave; 0 too where rounding of the mass explains it (top-p)."""
    logits = reading.logits.double()
    own = logits.gather(-1, tokens.unsqueeze(-1))
    kept = law_of(logits, sampling) > 0
    border = logits.masked_fill(~kept, float("inf")).amin(-1)
    off = (border - own.squeeze(-1)).clamp(min=0)
    if sampling.top_p is not None:
        before = law_of(logits, Sampling(temperature=sampling.temperature, top_k=sampling.top_k))
        above = torch.where(logits > own, before, 0.0).sum(-1)
        possible = before.gather(-1, tokens.unsqueeze(-1)).squeeze(-1) > 0
        off = torch.where(possible & (above - sampling.top_p <= reading.law_bound), 0.0, off)
    return off, reading.margin_bound.double()


def _unevenness(probs: Float[Tensor, "T V"], tokens: Int[Tensor, "T"], generator: np.random.Generator) -> np.ndarray:
    """Return how much of an output lies in each of CELLS equal parts of the laws, likeliest tokens first, less an even share.

    The first row is the output's own, RESAMPLES more are of tokens drawn from the laws. A token is spread over its own share of
    the law (the non-randomised probability integral transform of Czado, Gneiting and Held 2009): the mean is even if tokens
    have these laws.
    """
    order = probs.argsort(dim=-1, descending=True, stable=True)
    shares = probs.gather(-1, order)
    high = shares.cumsum(-1)
    found = torch.zeros(1 + RESAMPLES, CELLS, dtype=probs.dtype)
    for some in torch.arange(len(tokens)).split(PLACES):
        numbers = torch.from_numpy(generator.random((len(some), RESAMPLES))).to(probs.dtype) * high[some, -1:]
        drawn = torch.searchsorted(high[some], numbers).clamp(max=probs.shape[-1] - 1)
        own = (order[some] == tokens[some].unsqueeze(-1)).int().argmax(-1, keepdim=True)
        found += _in_cells(high[some], shares[some], torch.cat((own, drawn), -1))
    return found.numpy()


def _in_cells(
    high: Float[Tensor, "T V"], shares: Float[Tensor, "T V"], places: Int[Tensor, "T R"]
) -> Float[Tensor, "R {CELLS}"]:
    own = shares.gather(-1, places).clamp(min=LEAST_SHARE).unsqueeze(-1)
    edges = torch.linspace(0, 1, CELLS + 1, dtype=shares.dtype)
    below = ((edges - high.gather(-1, places).unsqueeze(-1) + own) / own).clamp(0, 1)
    below[..., -1] = 1
    return below.diff(dim=-1).sum(0) - len(places) / CELLS


def coarser(first: str | None, second: str | None) -> bool:
    """Say whether the first dtype rounds more than the second."""
    return first is not None and second is not None and FINENESS.index(first) < FINENESS.index(second)


def explain_arms(group: Group, target: LocalTarget, stated: Sequence[str | None]) -> list[ReadArm]:
    """Read the plain and the speculative arm of a group."""
    return [read_arm(group, arm, target, stated[arm]) for arm in range(2)]
