"""The nouns that decoding methods share. B: rows of a batch, n: drafted tokens, V: vocabulary size.

A round starts with one *pending* token a row: emitted (or the end of the prompt), not yet in the cache. The target is
extended by ``[pending, drafted...]`` and so yields n + 1 rows of logits. Plain decoding is the round with n = 0.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kernels.verify.interface import Proposal as Proposal
from kernels.verify.interface import RoundUniforms, TargetLogits
from kernels.verify.interface import Verdict as Verdict
from methods.errors import InputError
from methods.sampling import Sampling, Uniforms
from methods.steps import Seconds, Step, StopReason

Guarantee = Literal["identical", "same_distribution", "lossy"]
Clock = Callable[[], Any]  # readings are subtracted; the differences are ``Seconds``


@dataclass(frozen=True)
class Inputs:
    """The inputs of a batch: token ids, one tuple a row, never padded.

    For a decoder-only model ``prompts`` are the prompts (at least one token each). For an encoder-decoder they are the
    encoder's sources, and the decoder begins with the model's own start token. A model that hears has ``features`` for its
    encoder, and its decoder begins with the prompts (a start token, language, task and no timestamps). ``encoded``: what the
    encoder makes of them, where another session of the same encoder has it; one row where all are alike.
    """

    prompts: tuple[tuple[int, ...], ...]
    features: Float[Tensor, "B mels frames"] | None = field(default=None, compare=False)
    encoded: Float[Tensor, "_ S D"] | None = field(default=None, compare=False)

    @property
    def batch(self) -> int:
        return len(self.prompts)

    def row(self, index: int) -> "Inputs":
        features, encoded = self.features, self.encoded
        if encoded is not None and len(encoded) > 1:
            encoded = encoded[index : index + 1]
        return Inputs((self.prompts[index],), None if features is None else features[index : index + 1], encoded)

    @property
    def are_alike(self) -> bool:
        """Whether several rows have one prompt and, as far as is known without reading them, the same features."""
        features = self.features
        return self.batch > 1 and len(set(self.prompts)) == 1 and (features is None or features.stride(0) == 0)

    def check(self, vocab_size: int, limit: int | None, feature_shape: tuple[int, int] | None = None) -> None:
        """Raise InputError for no prompt, an empty one, a token outside the vocabulary, or one longer than the limit.

        So it does for features that the model does not hear (``feature_shape`` None), of another shape, or none.
        """
        if not self.prompts:
            raise InputError("prompts (): expected at least one row; give a prompt")
        for row, prompt in enumerate(self.prompts):
            name = f"prompt of row {row}"
            if not prompt:
                raise InputError(f"{name}: it has 0 tokens, expected at least 1; begin it with the model's BOS token")
            if min(prompt) < 0 or max(prompt) >= vocab_size:
                token = next(token for token in prompt if not 0 <= token < vocab_size)
                raise InputError(
                    f"{name}: token {token} is outside the vocabulary of {vocab_size}; use the model's own tokenizer"
                )
            if limit is not None and len(prompt) > limit:
                raise InputError(
                    f"{name}: it has {len(prompt)} tokens, the model's position limit is {limit}; "
                    "shorten the prompt or choose a model with a larger limit"
                )
        self._check_features(feature_shape)

    def _check_features(self, shape: tuple[int, int] | None) -> None:
        given = None if self.features is None else tuple(self.features.shape)
        if shape is None:
            if given is not None:
                raise InputError(f"features {given}: this model does not hear, expected none; choose a Whisper")
        elif given is None:
            raise InputError(f"features None: this model hears, expected [{self.batch}, {shape[0]}, {shape[1]}]; give it audio")
        elif given != (self.batch, *shape):
            raise InputError(
                f"features {given}: expected [rows, mels, frames] ({self.batch}, {shape[0]}, {shape[1]}); "
                "make them with the model's own feature extractor"
            )


@dataclass(frozen=True, kw_only=True)
class Stop:
    """A row ends after ``max_new_tokens`` tokens or with the first of ``token_ids`` (which is emitted)."""

    max_new_tokens: int
    token_ids: frozenset[int] = frozenset()

    def cut(self, tokens: list[int], room: int) -> tuple[list[int], StopReason | None]:
        """Return the tokens up to the first that ends a row, at most ``room``, and why the row ends; None: it goes on."""
        emitted = tokens[:room]
        if self.token_ids.isdisjoint(emitted):
            return emitted, "length" if len(emitted) >= room else None
        first = next(index for index, token in enumerate(emitted) if token in self.token_ids)
        return emitted[: first + 1], "eos"

    def budgets(self, target: "Session") -> list[int]:
        """Return how many tokens each row of a prefilled session may emit."""
        return [self.room(length, target.position_limit) for length in target.lengths[0]]

    def room(self, cached: int, position_limit: int | None) -> int:
        """Return max_new_tokens, or what the position limit leaves: to emit t tokens, the pending one and t - 1 are cached."""
        return self.max_new_tokens if position_limit is None else min(self.max_new_tokens, position_limit - cached)


@dataclass(frozen=True)
class Outcome:
    """The result of a round on the host: accepted drafts and the token behind them, per row, before any stop.

    ``last_draft`` is the last accepted draft of each row, None where none was; empty where it was not brought to the host.
    """

    num_accepted: tuple[int, ...]
    next_token: tuple[int, ...]
    last_draft: tuple[int | None, ...] = ()


@dataclass(slots=True)
class Generation:
    """One row's output: the ids that were emitted (a stopping EOS included) and the steps that made them.

    Before its first step a draft-and-verify method takes ``encode_s`` for the target's prefill (its encoder, or the prompt) and
    ``draft_encode_s`` for the drafter's begin, seconds of the whole batch; NaN where no clock was given, and for other methods.
    """

    tokens: list[int]
    steps: list[Step]
    stop_reason: StopReason
    encode_s: Seconds = float("nan")
    draft_encode_s: Seconds = float("nan")

    def add(self, emitted: Sequence[int], step: Step) -> None:
        """Append a round: the tokens that it emitted, and its step, which says why the row ends where it does."""
        self.tokens += emitted
        self.steps.append(step)
        if step.stop_reason is not None:
            self.stop_reason = step.stop_reason


@runtime_checkable
class TextSession(Protocol):
    """What drafting needs of one model with its key/value cache, for a batch whose rows may have different lengths.

    ``lengths[layer][row]`` tokens are cached. Nobody but the session touches a cache. It may have ``draft``, as
    ``methods.session.ModelSession``: passes and draws in one compiled call.
    """

    vocab_size: int
    position_limit: int | None
    device: torch.device

    @property
    def lengths(self) -> list[tuple[int, ...]]: ...

    def prefill(self, inputs: Inputs) -> list[int]:
        """Start anew: cache all of the prompt but its last token and return that pending token of every row."""

    def extend(self, tokens: Int[Tensor, "B n"]) -> Float[Tensor, "B n V"]:
        """Append n tokens to every row; return the logits behind each."""

    def rewind(self, counts: Sequence[int]) -> None:
        """Forget the last ``counts[row]`` tokens of each row; costs no copy."""

    def select(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order; a row may be named more than once (beams)."""


@runtime_checkable
class Session(TextSession, Protocol):
    """A model whose layers can be run one by one, too."""

    num_layers: int

    def embed(self, tokens: Int[Tensor, "B n"]) -> Float[Tensor, "B n D"]:
        """Return the hidden state that enters layer 0, at the positions that layer 0 would cache next."""

    def run_layers(self, hidden: Float[Tensor, "B n _"], first: int, last: int) -> Float[Tensor, "B n D"]:
        """Run layers first..last-1 on hidden states, appending n entries to these layers' caches only.

        What enters layer 0 is what ``embed`` gives, in some families narrower than hidden states.
        """

    def head(self, hidden: Float[Tensor, "B n D"], weight: Float[Tensor, "_ V"] | None = None) -> Float[Tensor, "B n V"]:
        """Apply the final norm and the output projection; ``weight`` replaces the model's own, for a head of another layer."""


@runtime_checkable
class Drafter(Protocol):
    """Proposes tokens. begin, then propose and commit in turn; ``select`` when rows of the batch have ended.

    Four more methods are for drafters that need them: those of ``ExpectsDrafts``, ``StartsEarly``, ``ReadsTarget`` and, for a
    drafter inside another, ``TakesBack``.
    """

    def begin(self, inputs: Inputs, pending: Sequence[int], uniforms: Uniforms) -> None: ...

    def propose(self, num_draft: Sequence[int], positions: Sequence[int], sampling: Sampling) -> Proposal:
        """Draft ``num_draft[row]`` tokens (0 allowed), with the numbers at ``positions[row]`` on.

        These are the emitted positions; for a rule that looks ahead they count the numbers that were looked at.
        """

    def commit(self, outcome: Outcome) -> None: ...

    def select(self, rows: Sequence[int]) -> None: ...

    def teacher_probs(
        self, inputs: Inputs, pending: Sequence[int], output: Sequence[int], sampling: Sampling
    ) -> Iterator[Float[Tensor, "chunk V"]]:
        """Yield the law of the first draft before each token of a given output (one row), in chunks, as far as it reaches."""


@runtime_checkable
class ExpectsDrafts(Protocol):
    """A drafter that is told before ``begin`` how many tokens a round drafts at most, where that is known."""

    def expect(self, most_drafts: int) -> None: ...


@runtime_checkable
class StartsEarly(Protocol):
    """A drafter that begins before the target's prefill, so that both work at once."""

    def start(self, inputs: Inputs) -> None: ...


@runtime_checkable
class ReadsTarget(Protocol):
    """A drafter that is shown the target's session before ``begin``: it may read hidden states there."""

    def read(self, target: Session) -> None: ...


@runtime_checkable
class TakesBack(Drafter, Protocol):
    """A drafter that can be inside another one."""

    def revise(self, counts: Sequence[int], tokens: Sequence[int]) -> None:
        """Forget the last ``counts[row]`` tokens of each text and append one; between commit and propose."""


@runtime_checkable
class VerifyRule(Protocol):
    """Decides which drafts stand and what follows them. Pure: raw logits and uniforms in, a verdict out.

    Where what stands depends on drafts or numbers behind it, the rule has ``looks_ahead = True`` too: no round may then
    look at a number that an earlier one looked at, or its drafts would not be independent of what was emitted.

    A rule whose class has ``can_be_captured = True`` beside its ``verify`` is also called while a device captures: on CUDA it
    waits for nothing, nothing that it launches depends on what a tensor holds or on how often it was called, and it reads the
    lengths of drafts where ``ragged_lengths`` has them.
    """

    guarantee: Guarantee

    def verify(
        self, proposal: Proposal, target_logits: TargetLogits, sampling: Sampling, uniforms: RoundUniforms
    ) -> Verdict: ...


def looks_ahead(rule: VerifyRule) -> bool:
    """Say whether what stands depends on drafts or numbers behind it; of a rule that does not say so it does not."""
    return bool(getattr(rule, "looks_ahead", False))


@runtime_checkable
class Schedule(Protocol):
    """Decides how many tokens to draft next; one object a row and generation. Where it knows the most that it ever drafts, it
    says so as ``most``, and rounds can be captured. It decides by what it observed alone: replays ask one anew."""

    def next(self) -> int: ...

    def observe(self, num_drafted: int, num_accepted: int) -> None: ...


@runtime_checkable
class Method(Protocol):
    """Produces tokens with a target session. Holds no tokenizer and prints nothing; a clock may be handed in."""

    guarantee: Guarantee

    def generate(
        self, target: Session, inputs: Inputs, sampling: Sampling, uniforms: Uniforms, stop: Stop, clock: Clock | None = None
    ) -> list[Generation]: ...
