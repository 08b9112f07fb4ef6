"""The nouns that decoding methods share. B: rows of a batch, n: drafted tokens, V: vocabulary size.

A round starts with one *pending* token a row: emitted (or the end of the prompt), not yet in the cache. The target is
extended by ``[pending, drafted...]`` and so yields n + 1 rows of logits. Plain decoding is the round with n = 0.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from methods.sampling import Sampling, Uniforms

Guarantee = Literal["identical", "same_distribution", "lossy"]
StopReason = Literal["eos", "length"]
Clock = Callable[[], float]


@dataclass(frozen=True)
class Inputs:
    """What a batch is generated from: token ids, one tuple a row, never padded.

    For a decoder-only model ``prompts`` are the prompts (at least one token each). For an encoder-decoder they are the
    encoder's sources, and the decoder begins with the model's own start token. A model that hears has ``features`` for its
    encoder, and its decoder begins with the prompts (a start token, language, task and no timestamps).
    """

    prompts: tuple[tuple[int, ...], ...]
    features: Float[Tensor, "B mels frames"] | None = field(default=None, compare=False)

    @property
    def batch(self) -> int:
        return len(self.prompts)

    def row(self, index: int) -> "Inputs":
        return Inputs((self.prompts[index],), None if self.features is None else self.features[index : index + 1])


@dataclass(frozen=True, kw_only=True)
class Stop:
    """When a row ends: after ``max_new_tokens`` tokens or with the first of ``token_ids`` (which is emitted)."""

    max_new_tokens: int
    token_ids: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Proposal:
    """What a drafter proposes: n is the longest of ``lengths``; columns past a row's length are padding.

    ``logits`` are the draft's raw logits at the drafted positions (None: a point mass on the drafted token) and
    ``sampling`` is what the tokens were drawn with, which may differ from the target's. A drafter that knows the log-sum-exp of
    its logits over the temperature, from drawing, hands it over: rules then need not read whole rows for it.
    """

    tokens: Int[Tensor, "B n"]
    lengths: tuple[int, ...]
    logits: Float[Tensor, "B n V"] | None
    sampling: Sampling
    log_sum_exp: Float[Tensor, "B n"] | None = None


@dataclass(frozen=True)
class Verdict:
    """What a rule decides. The probabilities are the adjusted ones of each drafted token (greedy: 0 or 1).

    Kernels leave those of drafts that they did not look at, behind the first rejection, NaN.

    ``choices`` are the target's first choices after every token of the round, from rules that compare drafts with them.
    """

    num_accepted: Int[Tensor, "B"]
    next_token: Int[Tensor, "B"]
    target_probs: Float[Tensor, "B n"]
    draft_probs: Float[Tensor, "B n"]
    choices: Int[Tensor, "B n_plus_1"] | None = None


@dataclass(frozen=True)
class Outcome:
    """What became of a round, on the host: accepted drafts and the token that follows them, per row, before any stop."""

    num_accepted: tuple[int, ...]
    next_token: tuple[int, ...]


@dataclass(slots=True)
class Step:
    """One round of one row as it happened.

    ``emitted`` counts what entered the output after EOS and length limit cut the round (drafted and bonus alike), and
    ``num_accepted`` the drafts among it: equal where the round ended with a draft. ``drafted`` and the target's ``choices``
    (one more than drafts; none from rules that do not look at them) are whole, and so are the probabilities, but those of
    kernels may end with the first rejection.
    Beams share no drafts: theirs is empty, and ``num_accepted`` counts steps of the search before any cut.
    Times are seconds of the whole batch's round; NaN where no clock was given.

    A round of the PPD pipeline drafts nothing: ``candidates`` are the tokens that ``early_layer`` predicted for the position it
    emits, ``matched`` whether that token is among them (None: nothing was predicted), ``parts`` its seconds by
    ``methods.ppd.pipeline.PARTS`` and ``units`` the begin and end of every sub-process's work, seconds after the round's begin.
    """

    drafted: list[int]
    num_accepted: int
    emitted: int
    target_probs: list[float] = field(default_factory=list)
    draft_probs: list[float] = field(default_factory=list)
    choices: list[int] = field(default_factory=list)
    stop_reason: StopReason | None = None
    draft_s: float = float("nan")
    verify_s: float = float("nan")
    round_s: float = float("nan")
    candidates: list[int] = field(default_factory=list)
    matched: bool | None = None
    early_layer: int | None = None
    parts: list[float] = field(default_factory=list)
    units: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Generation:
    """One row's output: the ids that were emitted (a stopping EOS included) and the steps that made them.

    Before its first step a draft-and-verify method takes ``encode_s`` for the target's prefill (its encoder, or the prompt) and
    ``draft_encode_s`` for the drafter's begin, seconds of the whole batch; NaN where no clock was given, and for other methods.
    """

    tokens: list[int]
    steps: list[Step]
    stop_reason: StopReason
    encode_s: float = float("nan")
    draft_encode_s: float = float("nan")


@runtime_checkable
class Session(Protocol):
    """One model with its key/value cache, for a batch whose rows may have different lengths.

    ``lengths[layer][row]`` tokens are cached. Nobody but the session touches a cache.
    """

    vocab_size: int
    num_layers: int
    position_limit: int | None
    device: torch.device
    lengths: list[tuple[int, ...]]

    def prefill(self, inputs: Inputs) -> list[int]:
        """Start anew: cache all of the prompt but its last token and return that pending token of every row."""

    def extend(self, tokens: Int[Tensor, "B n"]) -> Float[Tensor, "B n V"]:
        """Append n tokens to every row; the logits that follow each."""

    def rewind(self, counts: Sequence[int]) -> None:
        """Forget the last ``counts[row]`` tokens of each row; costs no copy."""

    def select(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order; a row may be named more than once (beams)."""

    def embed(self, tokens: Int[Tensor, "B n"]) -> Float[Tensor, "B n D"]:
        """The hidden state that enters layer 0, at the positions that layer 0 would cache next."""

    def run_layers(self, hidden: Float[Tensor, "B n D"], first: int, last: int) -> Float[Tensor, "B n D"]:
        """Run layers first..last-1 on hidden states, appending n entries to these layers' caches only."""

    def head(self, hidden: Float[Tensor, "B n D"], weight: Float[Tensor, "D V"] | None = None) -> Float[Tensor, "B n V"]:
        """Final norm and output projection; ``weight`` in place of the model's own for a head trained for another layer."""


@runtime_checkable
class Drafter(Protocol):
    """Proposes tokens. begin, then propose and commit in turn; ``select`` when rows of the batch have ended."""

    def begin(self, inputs: Inputs, pending: Sequence[int], uniforms: Uniforms) -> None: ...

    def propose(self, num_draft: Sequence[int], positions: Sequence[int], sampling: Sampling) -> Proposal:
        """Draft ``num_draft[row]`` tokens (0 allowed) for the emitted positions ``positions[row]`` on."""

    def commit(self, outcome: Outcome) -> None: ...

    def select(self, rows: Sequence[int]) -> None: ...

    def teacher_probs(
        self, inputs: Inputs, pending: Sequence[int], output: Sequence[int], sampling: Sampling
    ) -> Iterator[Float[Tensor, "chunk V"]]:
        """The law of the first draft before each token of a given output (one row), chunk by chunk, as far as it reaches."""


@runtime_checkable
class TargetReader(Protocol):
    """A drafter that reads the target's hidden states: it is shown the target's session before ``begin``."""

    def read(self, target: Session) -> None: ...


@runtime_checkable
class EarlyStarter(Protocol):
    """A drafter that works on the inputs while the target does: it is shown them before the target's prefill."""

    def start(self, inputs: Inputs) -> None: ...


@runtime_checkable
class VerifyRule(Protocol):
    """Decides which drafts stand and what follows them. Pure: raw logits and uniforms in, a verdict out."""

    guarantee: Guarantee

    def verify(
        self,
        proposal: Proposal,
        target_logits: Float[Tensor, "B n_plus_1 V"],
        sampling: Sampling,
        uniforms: Float[Tensor, "B n_plus_1"],
    ) -> Verdict: ...


@runtime_checkable
class Schedule(Protocol):
    """How many tokens to draft next; one object a row and generation."""

    def next(self) -> int: ...

    def observe(self, num_drafted: int, num_accepted: int) -> None: ...


@runtime_checkable
class Method(Protocol):
    """Produces tokens with a target session. Holds no tokenizer and prints nothing; a clock may be handed in."""

    guarantee: Guarantee

    def generate(
        self, target: Session, inputs: Inputs, sampling: Sampling, uniforms: Uniforms, stop: Stop, clock: Clock | None = None
    ) -> list[Generation]: ...
