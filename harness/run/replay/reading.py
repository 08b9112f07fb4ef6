"""What a text and a seed give by a path that shares nothing with ours but the weights: logits, laws and random numbers."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from harness.models.fit import Models
from harness.models.loading import LoadedModel
from methods.models.base import Stack
from methods.sampling import Sampling
from methods.speculative.overlap import teacher_logits
from methods.types import Inputs

NEAR_TIE_FLOAT32 = 1e-4  # a difference of two logits, or of two probabilities, that rounding may make in fp32
COOL = 0.1  # the temperature below which fp32 moves a probability by more than that, as its logits are divided by it
NUCLEUS = 1e-5  # of the mass behind a nucleus: by so much rounding may move it, and let a token in or out
WITHIN = 4  # in half precision: typical errors of a law, measured on the same text, that a border may have moved
HALF = (torch.float16, torch.bfloat16)
LEAST = -690.0  # log of 1e-300
DRAFT, ACCEPT, SAMPLE = range(3)  # streams of ``Uniforms``, said again: what confuses them there is found here
ROWS_AT_ONCE = 16  # whose laws are sorted together
KEPT_BYTES = 2**28  # of readings that are kept for other arms' equal texts; the last one always is


@dataclass(frozen=True)
class Reading:
    """A text as it was read: logits before each of its tokens, and by how much rounding may move a margin and a law there.

    ``border`` is the part of ``law_bound`` by which a law changes where a token enters or leaves what its filters leave, and
    ``nucleus`` the mass behind a nucleus that rounding may move. In half precision ``passes`` says how far the logits of our
    own pass over the text are from fp32's, and how far they may be.
    """

    logits: Float[Tensor, "T V"]
    margin_bound: Float[Tensor, "T"]
    law_bound: Float[Tensor, "T"]
    border: Float[Tensor, "T"]
    nucleus: Float[Tensor, "T"]
    passes: tuple[Float[Tensor, "T"], Float[Tensor, "T"]] | None = None

    def nats(self, tokens: Sequence[int]) -> float:
        """Return minus the log-probability of the text, at temperature 1; of a token that cannot be, what JSON can hold."""
        own = torch.tensor(tokens, device=self.logits.device).unsqueeze(-1)
        logits = self.logits if self.logits.dtype == torch.float64 else self.logits.float()
        return -float(logits.log_softmax(-1).gather(-1, own).double().clamp(min=LEAST).sum())


@dataclass
class Reader:
    """Reads texts through a target by transformers' own forward pass, each distinct one once: exact greedy arms share one."""

    target: LoadedModel
    sampling: Sampling
    models: Models
    known: dict[tuple[Any, ...], Reading] = field(default_factory=dict)

    def read(self, inputs: Inputs, tokens: Sequence[int]) -> Reading:
        """Return one row's output as it was read, now or before. Raises RuntimeError where memory does not suffice."""
        heard = None if inputs.features is None else inputs.features.cpu().numpy().tobytes()
        key = (inputs.prompts, heard, tuple(tokens), self.sampling)
        self.known[key] = found = self.known.pop(key, None) or self._read(inputs, tokens)
        while len(self.known) > 1 and sum(one.logits.nbytes for one in self.known.values()) > KEPT_BYTES:
            del self.known[next(iter(self.known))]  # the one that was asked for longest ago
        return found

    @torch.inference_mode()
    def _read(self, inputs: Inputs, tokens: Sequence[int]) -> Reading:
        """Read a text; in half precision in fp32 too, with the same weights."""
        target, sampling, stack = self.target, self.sampling, self.target.stack
        logits = self._passed(inputs, tokens) if stack.parts else read_text(stack, stack.model, inputs, tokens)
        if logits.dtype not in HALF:
            margin = torch.full((len(logits),), NEAR_TIE_FLOAT32, device=logits.device)
            return _reading(logits, margin, margin * max(1.0, COOL / (sampling.temperature or COOL)), sampling)
        if stack.parts:  # no whole copy in fp32 fits: the numbers' own distance, twice for each of two logits
            largest = logits.float().nan_to_num(neginf=0.0).abs().amax(-1)
            margin = 4 * torch.finfo(logits.dtype).eps * largest
            law_bound = (margin / (sampling.temperature or 1.0)).clamp(max=1.0)
            return _reading(logits.float(), margin, law_bound, sampling, nucleus=law_bound)
        wide = read_text(stack, self.models.widened(target), inputs, tokens)
        found = in_half_precision(logits, wide, sampling)
        return replace(found, passes=_passes_apart(self._passed(inputs, tokens), logits, wide))

    def _passed(self, inputs: Inputs, tokens: Sequence[int]) -> Float[Tensor, "T V"]:
        """Return the logits of our own pass over a text."""
        return torch.cat(list(teacher_logits(self.target.session(), inputs, tokens)[1]))


def in_half_precision(logits: Float[Tensor, "T V"], wide: Float[Tensor, "T V"], sampling: Sampling) -> Reading:
    """Return a text as it was read in half precision, with its logits in fp32: how far the two part bounds rounding.

    The mass behind a nucleus moves as a law without one does: a law whose nucleus stayed says nothing of it. Where logits
    move by d, a mass p moves by 2 d p (1 - p), to first order: by d / 2 at most. Here twice that: errors of two passes add.
    """
    margin = 2 * (logits.float() - wide).nan_to_num().abs().amax(-1)
    if sampling.greedy:
        return _reading(wide, margin, margin, sampling)
    law_bound = _moved(logits, wide, sampling)
    mass = law_bound if sampling.top_p is None else _moved(logits, wide, replace(sampling, top_p=None))
    return _reading(wide, margin, law_bound, sampling, torch.maximum(mass, margin / (2 * sampling.temperature)))


def _passes_apart(
    own: Float[Tensor, "T V"], logits: Float[Tensor, "T V"], wide: Float[Tensor, "T V"]
) -> tuple[Float[Tensor, "T"], Float[Tensor, "T"]]:
    """Return how far our pass is from fp32's before each token, root mean square over the vocabulary, and how far it may be.

    It may be WITHIN the errors of transformers' own pass, there and on this text. A token's margin has a bound of its own; an
    error that leaves most first choices as they are, as of a position that half precision rounds, shows in all logits together.
    NaN of ours is a fault; where transformers' pass has none or infinity, no bound is known.
    """
    off, known = ((one.float() - wide).where(one != wide, 0.0).square().mean(-1).sqrt() for one in (own, logits))
    known = known.nan_to_num(nan=torch.inf)
    return off, WITHIN * (known + known.square().mean().sqrt())


def _moved(logits: Float[Tensor, "T V"], wide: Float[Tensor, "T V"], sampling: Sampling) -> Float[Tensor, "T"]:
    """Return by how much half precision may move each law, as total variation: WITHIN its errors there and on this text."""
    apart = (law_of(logits, sampling) - law_of(wide, sampling)).abs().sum(-1) / 2
    return WITHIN * (apart + apart.square().mean().sqrt())


def _reading(
    logits: Float[Tensor, "T V"],
    margin: Float[Tensor, "T"],
    law_bound: Float[Tensor, "T"],
    sampling: Sampling,
    nucleus: Float[Tensor, "T"] | None = None,
) -> Reading:
    nucleus = torch.full_like(margin, NUCLEUS) if nucleus is None else nucleus
    border = torch.zeros_like(margin)
    if sampling.filters and not sampling.greedy:
        whole = law_of(logits, unfiltered(sampling))
        border = border_of(whole, sampling, margin / sampling.temperature, nucleus).to(margin.dtype)
    return Reading(logits, margin, law_bound + border, border, nucleus)


def unfiltered(sampling: Sampling) -> Sampling:
    return replace(sampling, top_k=None, top_p=None)


def widened(sampling: Sampling) -> Sampling:
    """Return a sampling whose filters leave what rounding may have moved across their borders, too."""
    wide = sampling if sampling.top_p is None else replace(sampling, top_p=min(1.0, sampling.top_p + NUCLEUS))
    return wide if wide.top_k is None else replace(wide, top_k=wide.top_k + 1)


def border_of(
    whole: Float[Tensor, "T V"], sampling: Sampling, margin: Float[Tensor, "T"], nucleus: Float[Tensor, "T"]
) -> Float[Tensor, "T"]:
    """Return the total variation between the laws of what filters surely leave and of what they may leave of ``whole`` laws.

    Rounding may move a log-probability beside another by ``margin``, and the mass of a nucleus by ``nucleus``. Filters keep a
    token if fewer than k tokens come before it, with less than p of the mass. Tokens within the margin of it may come before
    it: it is surely kept if it would be behind all of them, and maybe kept if it would be before all of them. What is surely
    kept is a part of what is maybe kept, and so the distance is the share of the rest.
    """
    laws, margins, nuclei = (one.split(ROWS_AT_ONCE) for one in (whole, margin, nucleus))
    return torch.cat([_border(sampling, *part) for part in zip(laws, margins, nuclei, strict=True)])


def _border(sampling: Sampling, law: Tensor, margin: Tensor, nucleus: Tensor) -> Tensor:
    top_k, top_p, near = sampling.top_k or law.shape[-1], sampling.top_p, margin.double().unsqueeze(-1)
    probs = law.double() if top_p is None else law.double().sort(-1, descending=True).values
    costs = -probs.log()
    surely, maybe = torch.ones_like(probs, dtype=torch.bool), torch.ones_like(probs, dtype=torch.bool)
    if top_k < law.shape[-1]:
        last, behind = costs.topk(top_k + 1, largest=False).values[:, -2:].unsqueeze(-1).unbind(1)
        surely, maybe = costs + near < behind, costs - near <= last
    if top_p is not None:
        mass = torch.nn.functional.pad(probs.cumsum(-1), (1, 0)) / probs[:, :top_k].sum(-1, keepdim=True)
        before = torch.searchsorted(costs, costs - near)  # those that are likelier whatever rounding does
        with_near = torch.searchsorted(costs, costs + near, right=True) - 1
        most = mass.gather(-1, with_near + 1) - mass.diff(dim=-1)
        surely &= (most < top_p - nucleus.unsqueeze(-1)) | (with_near == 0)  # the first alone is always left
        maybe &= mass.gather(-1, before) < top_p + nucleus.unsqueeze(-1)
    lacking = (probs * (maybe & ~surely)).sum(-1)
    return (lacking / (probs * maybe).sum(-1)).nan_to_num()


def read_text(stack: Stack, model: Any, inputs: Inputs, tokens: Sequence[int]) -> Float[Tensor, "T V"]:
    """Return the logits before each token of one row's output, by one pass of a transformers model and without a cache.

    What a text begins with and may not say is what the model's own settings tell, not what ``stack`` made of them.
    """
    (prompt,), before, device = inputs.prompts, list(tokens[:-1]), stack.device
    if stack.encodes_prompts:
        source = torch.tensor([prompt], device=device)
        text = torch.tensor([[start_said(model), *before]], device=device)
        given: dict[str, Tensor] = {
            "input_ids": source,
            "attention_mask": torch.ones_like(source),
            "decoder_input_ids": text,
        }
    elif inputs.features is not None:
        features = inputs.features.to(device, next(model.parameters()).dtype)
        given = {"input_features": features, "decoder_input_ids": torch.tensor([[*prompt, *before]], device=device)}
    else:
        given = {"input_ids": torch.tensor([[*prompt, *before]], device=device)}
    logits = model(**given, use_cache=False, return_dict=True).logits[0, -len(tokens) :].clone()
    if inputs.features is not None:
        silenced(model, logits[:1], at_start=True)
        silenced(model, logits[1:], at_start=False)
    return logits


def start_said(model: Any) -> int:
    """Return the token that a decoder's texts begin with, by the model's own settings."""
    starts = [getattr(one, "decoder_start_token_id", None) for one in (model.generation_config, model.config)]
    return int(next(token for token in starts if token is not None))


def silenced(model: Any, logits: Float[Tensor, "T V"], at_start: bool) -> None:
    """Take what a model that hears may not say, by its own settings, out of logits: -inf, in place."""
    settings = model.generation_config
    logits[:, settings.suppress_tokens or []] = float("-inf")
    if at_start:
        logits[:, settings.begin_suppress_tokens or []] = float("-inf")


def law_of(logits: Float[Tensor, "T V"], sampling: Sampling) -> Float[Tensor, "T V"]:
    """Return the laws that logits become by transformers' own processors: nothing of ``Sampling.probs`` is used."""
    return scores_of(logits, sampling).softmax(-1)


def scores_of(logits: Float[Tensor, "T V"], sampling: Sampling) -> Float[Tensor, "T V"]:
    """Return what logits become by transformers' own processors: divided by the temperature, -inf where filters leave out."""
    kinds: list[Any] = [TemperatureLogitsWarper(float(sampling.temperature))]
    kinds += [] if sampling.top_k is None else [TopKLogitsWarper(sampling.top_k)]
    kinds += [] if sampling.top_p is None else [TopPLogitsWarper(sampling.top_p)]
    scores = logits if logits.dtype == torch.float64 else logits.float()
    for kind in kinds:
        scores = kind(None, scores)
    return scores


def ends_said(model: Any) -> frozenset[int]:
    """Return the tokens that end a text, by a model's generation settings, or by its configuration where those name none."""
    named = [getattr(one, "eos_token_id", None) for one in (model.generation_config, model.config)]
    ends: int | list[int] = next((found for found in named if found is not None and found != []), [])
    return frozenset([ends] if isinstance(ends, int) else ends)


def seed_said(seed: int, example: str, repeat: int, window: int) -> int:
    """Return the seed of an example's output, or of a window of its recording, said again: nothing of ``seed_of`` is used."""
    name = "/".join([str(seed), example, str(repeat), *([str(window)] if window > 0 else [])])
    return int(hashlib.sha256(name.encode()).hexdigest()[:16], 16) // 2


def numbers_of(seed: int, length: int, count: int = 0, level: int = 0) -> Float[Tensor, "3 at_least_count"]:
    """Return the numbers that belong to a seed, made anew: nothing of ``Uniforms`` is used.

    They come in blocks of ``length``; so many are made that there are ``count``, or one. ``level``: 1 inside a drafter.
    """
    key, found = np.array([seed, level], dtype=np.uint64), []
    for block in range(max(1, -(-count // length))):
        counter = np.array([0, block, 0, 0], dtype=np.uint64)
        found.append(torch.from_numpy(np.random.Generator(np.random.Philox(key=key, counter=counter)).random((3, length))))
    return torch.cat(found, 1)
