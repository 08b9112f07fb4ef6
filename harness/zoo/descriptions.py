"""Recipes and corpora of the zoo: frozen dataclasses that say everything, so that their hash is a trained model's identity."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from harness.zoo.families import FAMILIES
from tasks.base import SAMPLE_RATE

RateSchedule = Literal["cosine", "inverse-sqrt"]
Style = Literal["instruction", "t5", "plain"]
Labels = Literal["next", "final"]


@dataclass(frozen=True, kw_only=True)
class Part:
    """One ingredient of a corpus: at most ``num_examples`` rows of a task's training split, prompted in a style.

    Style "plain" is the bare text without any prompt.
    """

    task: str
    num_examples: int
    style: Style


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Training text and its tokenizer. Lengths are tokens; longer sources lose their middle or their end.

    ``tokenizer`` is learned from the text ("bpe", "wordpiece"), or the Hub id of a public one, whose models' padded
    vocabulary is then ``vocab_size``.
    """

    name: str
    family: str
    parts: tuple[Part, ...]
    vocab_size: int
    max_source: int
    max_target: int
    num_held_out: int
    tokenizer: str = "bpe"
    seed: int = 0

    @property
    def is_encoder_decoder(self) -> bool:
        return FAMILIES[self.family].is_encoder_decoder


@dataclass(frozen=True, kw_only=True)
class SpeechCorpus(Corpus):
    """Recordings of tasks of speech as log-Mel features of ``window_s`` seconds, a frame every ``hop_length`` samples.

    Longer recordings of toy speech are cut into windows as they are for decoding, so that a model knows sentences that begin
    and end anywhere; longer real ones, and those whose transcript exceeds ``max_target`` tokens, are left out. With
    ``always_toy`` the models are trained on toy speech whatever the source of a run is: a few hours of real speech would not
    teach them.
    """

    num_mel_bins: int
    window_s: int
    hop_length: int
    always_toy: bool = True

    @property
    def num_frames(self) -> int:
        """Frames of features in a window."""
        return self.window_s * SAMPLE_RATE // self.hop_length


@dataclass(frozen=True, kw_only=True)
class Distilled(Corpus):
    """A teacher's corpus with every target, held-out ones too, written by the teacher (Kim and Rush 2016): what beam search
    finds. ``batch_size`` sources are decoded together, which decides how sums round.

    Everything else of a ``Corpus`` is as the teacher's: see ``distilled``.
    """

    teacher: "PairRecipe"
    num_beams: int = 5
    batch_size: int = 64


@dataclass(frozen=True, kw_only=True)
class EnsembleDistilled(Distilled):
    """Written by several teachers of one vocabulary: beam search over the mean of their probabilities (Xia et al. B.4).

    ``teacher`` is the first of them, ``others`` are the rest.
    """

    others: tuple["PairRecipe", ...]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A model, how to train it, and on what.

    Depth grows: until ``shallow_frac`` of the steps only ``shallow_layers`` layers run (see zoo.networks). A batch is
    about ``batch_tokens`` tokens: in all (decoder-only, in blocks of ``block_length``) or of targets plus half the sources
    (encoder-decoder). T5's embeddings are of order 1 and learn ``embedding_rate_scale`` times as fast as the rest. An n-gram
    table has no layers; ``table_task`` names the part whose targets it counts. With a ``teacher`` the model learns the
    teacher's distribution at every position instead of the text's next token.
    """

    name: str
    corpus: Corpus
    family: str
    width: int = 0
    num_heads: int = 0
    ff_width: int = 0
    num_layers: int = 0
    num_encoder_layers: int = 0
    position_limit: int = 0
    steps: int = 0
    batch_tokens: int = 0
    block_length: int = 0
    prompt_weight: float = 1.0
    learning_rate: float = 0.0
    embedding_rate_scale: float = 1.0
    warmup_frac: float = 0.05
    weight_decay: float = 0.05
    shallow_frac: float = 0.0
    shallow_layers: int = 0
    table_task: str | None = None
    teacher: "Recipe | None" = None
    wants_gpu: bool = False
    seed: int = 0

    @property
    def cost(self) -> float:
        """Relative training time, to start the longest first."""
        return self.steps * self.batch_tokens * self.width * (self.num_layers + self.num_encoder_layers + 1)


@dataclass(frozen=True, kw_only=True)
class PairRecipe(Recipe):
    """SpecDec's teacher or verifier: a translation model in family "marian", or one of the family "bart". The defaults are the
    paper's (Xia et al. Table 7 and Appendix A) where they are known.

    The weights are the mean of the last ``num_averaged`` checkpoints, ``average_every`` steps apart. Rates: "inverse-sqrt" (as
    the paper), or half a "cosine" down to a hundredth.
    """

    learning_rate: float = 5e-4
    warmup_frac: float = 10_000 / 300_000
    weight_decay: float = 1e-5
    rate_schedule: RateSchedule = "inverse-sqrt"
    adam_betas: tuple[float, float] = (0.9, 0.98)
    adam_eps: float = 1e-6
    clip_norm: float = 3.0
    activation: str = "relu"
    dropout: float = 0.1
    label_smoothing: float = 0.1
    num_averaged: int = 10
    average_every: int = 1000


@dataclass(frozen=True, kw_only=True)
class DrafterRecipe(PairRecipe):
    """SpecDec's non-autoregressive drafter of blocks, in family "block" or "bart-block"; the defaults are the paper's.

    ``glancing`` is the share of wrong guesses that is shown at the start and at the end of the training; None trains without.
    ``verifier`` has no part in the training: its outputs are what the accepted tokens are counted against. ``initial`` is a
    model of the same shape whose weights the drafter begins with; the paper's has none. ``place_decay``: what a token of a
    block counts in the loss, as a share of the one before it; the paper's all count alike.
    """

    verifier: PairRecipe
    initial: PairRecipe | None = None
    block_size: int = 25
    glancing: tuple[float, float] | None = (0.5, 0.3)
    place_decay: float = 1.0
    weight_decay: float = 0.01
    adam_betas: tuple[float, float] = (0.9, 0.999)
    clip_norm: float = 5.0
    activation: str = "gelu"


@dataclass(frozen=True, kw_only=True)
class SharedEncoderRecipe(DrafterRecipe):
    """A drafter that reads what its verifier's encoder made of the source, which the paper names as future work.

    It begins with weights of ``initial``, its verifier, as many of whose layers as it has, spread evenly; encoder and
    embeddings stay as they are, [MASK]'s as the mean of all tokens', and only the decoder's layers learn.
    """


@dataclass(frozen=True, kw_only=True)
class BlockwiseRecipe(PairRecipe):
    """Blockwise heads (Stern et al. 2018) on a frozen ``verifier``, trained on the verifier's corpus, in family "blockwise".

    ``num_drafts`` heads draft as many tokens: k - 1 for blocks of k. ``ff_width`` is the hidden size of each, ``width`` the
    verifier's. A step trains one head that is drawn, as Stern et al. do to save memory, or all of them.
    """

    verifier: PairRecipe
    num_drafts: int
    draws_head: bool = True


@dataclass(frozen=True, kw_only=True)
class WhisperRecipe(Recipe):
    """A Whisper and how it is trained: ``batch_size`` recordings a step.

    Besides the next token, the encoder alone learns the transcript by connectionist temporal classification (Graves et al.
    2006) with ``ctc_weight`` of the loss, through a head that is then dropped: attention finds the words much sooner. Features
    are shifted by up to ``mel_shift`` bins, and bands and stretches of them are hidden (Park et al. 2019). With a ``teacher``
    the encoder is the teacher's and frozen, and the decoder learns the teacher's distributions.

    With ``muon_rate_scale`` the layers' matrices learn by Muon (Jordan et al. 2024), so many times as fast as the rest does by
    AdamW: after 1200 steps of the toy target a word error rate of 0.14 instead of 0.47. 0 is AdamW for all.
    """

    batch_size: int = 32
    ctc_weight: float = 0.5
    label_smoothing: float = 0.0
    muon_rate_scale: float = 2.0
    mel_shift: int = 1
    hidden_bins: int = 3
    hidden_frames: int = 6


@dataclass(frozen=True, kw_only=True)
class HeadTraining:
    """The training of heads of intermediate layers. The defaults are PPD Table 4; AdamW and cross-entropy as there.

    ``labels`` are the text's next tokens ("next", as the paper) or the final layer's own most likely ones ("final").
    ``batch_size`` counts documents, of which longer ones are cut into pieces of ``max_length`` tokens; ``max_documents`` bounds
    what an epoch reads (None: all there is).
    """

    epochs: int = 3
    learning_rate: float = 2e-5
    batch_size: int = 128
    max_length: int = 2048
    warmup_frac: float = 0.04
    weight_decay: float = 0.0
    labels: Labels = "next"
    max_documents: int | None = None
    num_held_out: int = 64
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class HeadRecipe:
    """One head for each of ``layers`` of a frozen ``teacher``, trained on the teacher's own corpus.

    ``layers`` counts the layers that have run, so that a head of layer l reads the hidden state after l of them.
    """

    name: str
    teacher: Recipe
    layers: tuple[int, ...]
    training: HeadTraining
    seed: int = 0
    family: Literal["heads"] = "heads"

    @property
    def corpus(self) -> Corpus:
        return self.teacher.corpus

    @property
    def steps(self) -> int:
        seen = sum(part.num_examples for part in self.corpus.parts) - self.corpus.num_held_out
        return self.training.epochs * -(-min(seen, self.training.max_documents or seen) // self.training.batch_size)

    @property
    def cost(self) -> float:
        """Relative training time, on the scale of a ``Recipe``'s."""
        tokens = self.steps * self.training.batch_size * self.training.max_length
        return tokens * len(self.layers) * self.corpus.vocab_size / 100


Description = Corpus | Recipe | HeadRecipe


def distilled(teacher: PairRecipe, name: str, *, others: Sequence[PairRecipe] = (), **settings: int) -> Distilled:
    """The corpus that a teacher writes over its own, or that several write together over the one that they share."""
    whole: dict[str, Any] = {field.name: getattr(teacher.corpus, field.name) for field in fields(Corpus)}
    whole |= {"name": name, "teacher": teacher} | settings
    return EnsembleDistilled(**whole, others=tuple(others)) if others else Distilled(**whole)


def teachers_of(corpus: Distilled) -> tuple[PairRecipe, ...]:
    """All teachers that write a corpus, the first one first."""
    return (corpus.teacher, *(corpus.others if isinstance(corpus, EnsembleDistilled) else ()))
