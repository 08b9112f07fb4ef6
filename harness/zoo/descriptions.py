"""What describes a trained model of the zoo: frozen, and whole, so that a hash of it is the model's identity."""

from dataclasses import dataclass
from typing import Literal

Family = Literal["llama", "t5", "gpt2", "ngram"]
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
    family: Family
    parts: tuple[Part, ...]
    vocab_size: int
    max_source: int
    max_target: int
    num_held_out: int
    tokenizer: str = "bpe"
    seed: int = 0


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
    family: Family
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
class HeadTraining:
    """How heads of intermediate layers are trained. The defaults are PPD Table 4; AdamW and cross-entropy as there.

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
        """As a ``Recipe``'s."""
        tokens = self.steps * self.training.batch_size * self.training.max_length
        return tokens * len(self.layers) * self.corpus.vocab_size / 100
