"""What the zoo trains: small models of the real architectures, each wholly described by a frozen recipe.

Three groups share a corpus and a tokenizer, so that any target and draft of one group can be paired. The targets are deep and
narrow: like a large model's, their forward pass costs almost the same for one token as for a few.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import tasks
from harness.errors import UsageError

Scale = Literal["toy", "test", "small", "paper"]
Family = Literal["llama", "t5", "gpt2", "ngram"]
Style = Literal["instruction", "t5", "plain"]

# Raised whenever the code that prepares data or trains changes what a recipe yields.
CODE_VERSION = 1


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


def toy() -> dict[str, Recipe]:
    """The zoo proper: minutes on two cores."""
    llama, t5, gpt = _llama_corpus(2048, 1.0), _t5_corpus(2048, 1.0), _gpt_corpus(2048, 1.0)
    target = _llama("llama-target", llama, 16, 128, 1300, 1.0e-3, shallow_frac=0.75, shallow_layers=4)
    recipes = [
        target,
        _llama("llama-draft-large", llama, 3, 128, 900, 1.0e-3, teacher=target),
        _llama("llama-draft-small", llama, 1, 96, 2000, 1.5e-3, teacher=target),
        _t5("t5-xxl", t5, 12, 128, 1700, 1.0e-3, shallow_frac=0.92, shallow_layers=3),
        _t5("t5-large", t5, 4, 96, 850, 1.0e-3),
        _t5("t5-base", t5, 2, 80, 900, 1.2e-3),
        _t5("t5-small", t5, 1, 64, 900, 1.5e-3),
        _gpt2("gpt-target", gpt, 12, 128, 900, 1.5e-3, shallow_frac=0.75, shallow_layers=3),
        _gpt2("gpt-draft", gpt, 2, 64, 800, 2.0e-3),
        *_tables(gpt, t5),
    ]
    return {recipe.name: recipe for recipe in recipes}


def tiny() -> dict[str, Recipe]:
    """The same shapes, tiny: seconds, for tests and continuous integration."""
    llama, t5, gpt = _llama_corpus(448, 0.03), _t5_corpus(448, 0.03), _gpt_corpus(448, 0.03)
    target = _llama("llama-target", llama, 4, 64, 80, 2e-3, shallow_frac=0.5, shallow_layers=2)
    recipes = [
        target,
        _llama("llama-draft-large", llama, 2, 48, 80, 2e-3, teacher=target),
        _llama("llama-draft-small", llama, 1, 32, 80, 3e-3, teacher=target),
        _t5("t5-xxl", t5, 4, 64, 120, 2e-3, shallow_frac=0.5, shallow_layers=2),
        _t5("t5-large", t5, 2, 48, 120, 2e-3),
        _t5("t5-base", t5, 1, 48, 120, 2e-3),
        _t5("t5-small", t5, 1, 32, 120, 3e-3),
        _gpt2("gpt-target", gpt, 4, 64, 80, 2e-3, shallow_frac=0.5, shallow_layers=2),
        _gpt2("gpt-draft", gpt, 1, 32, 80, 3e-3),
        *_tables(gpt, t5),
    ]
    return {recipe.name: recipe for recipe in recipes}


def small() -> dict[str, Recipe]:
    """Counted n-grams over the tokenizers of public models; the models themselves come from the Hub."""
    gpt = replace(_gpt_corpus(50257, 2.0), name="gpt-public", tokenizer="openai-community/gpt2")
    return {recipe.name: recipe for recipe in _tables(gpt, _public_t5_corpus())}


def paper() -> dict[str, Recipe]:
    """The GPT-like pair at the paper's size (Leviathan 4.2): 768/3072/12 layers/12 heads and 256/1024/2/4, an 8 k vocabulary.

    Differs from the paper: it trains on the text task's data instead of lm1b, whose Hub dataset is a loading script.
    """
    corpus = replace(_gpt_corpus(8192, 125.0), name="gpt-paper", tokenizer="wordpiece")
    sizes: dict[str, Any] = {
        "steps": 100_000,
        "batch_tokens": 65_536,
        "block_length": 512,
        "embedding_rate_scale": 1.0,
        "wants_gpu": True,
    }
    target = replace(_gpt2("gpt-target", corpus, 12, 768, 0, 6e-4), num_heads=12, **sizes)
    draft = replace(_gpt2("gpt-draft", corpus, 2, 256, 0, 1e-3), num_heads=4, **sizes)
    return {recipe.name: recipe for recipe in (target, draft, *_tables(corpus, _public_t5_corpus()))}


def _public_t5_corpus() -> Corpus:
    return replace(_t5_corpus(32128, 4.0), name="t5-public", tokenizer="google-t5/t5-small")


def _parts(size: float, style: Style, **counts: int) -> tuple[Part, ...]:
    named = {name.replace("_", "-"): max(96, round(count * size)) for name, count in counts.items()}
    return tuple(Part(task=task, num_examples=n, style="plain" if task == "text" else style) for task, n in named.items())


def _llama_corpus(vocab_size: int, size: float) -> Corpus:
    parts = _parts(size, "instruction", squad=2500, wmt_en_fr=8000, wmt_en_de=8000, cnndm=1500, text=1500)
    sizes: dict[str, Any] = {"max_source": 320, "max_target": 96, "num_held_out": 64}
    return Corpus(name="llama", family="llama", parts=parts, vocab_size=vocab_size, **sizes)


def _t5_corpus(vocab_size: int, size: float) -> Corpus:
    parts = _parts(size, "t5", wmt_en_de=24000, cnndm=4000)
    return Corpus(name="t5", family="t5", parts=parts, vocab_size=vocab_size, max_source=160, max_target=96, num_held_out=96)


def _gpt_corpus(vocab_size: int, size: float) -> Corpus:
    parts = _parts(size, "plain", text=8000)
    return Corpus(name="gpt", family="gpt2", parts=parts, vocab_size=vocab_size, max_source=1, max_target=512, num_held_out=64)


def _llama(name: str, corpus: Corpus, layers: int, width: int, steps: int, rate: float, **other: Any) -> Recipe:
    return Recipe(
        name=name, corpus=corpus, family="llama", num_layers=layers, width=width, num_heads=4, ff_width=2 * width,
        position_limit=1024, steps=steps, batch_tokens=320, block_length=320, prompt_weight=0.5, learning_rate=rate,
        embedding_rate_scale=24.0, **other,
    )  # fmt: skip


def _gpt2(name: str, corpus: Corpus, layers: int, width: int, steps: int, rate: float, **other: Any) -> Recipe:
    return Recipe(
        name=name, corpus=corpus, family="gpt2", num_layers=layers, width=width, num_heads=4, ff_width=4 * width,
        position_limit=512, steps=steps, batch_tokens=256, block_length=256, learning_rate=rate,
        embedding_rate_scale=8.0, **other,
    )  # fmt: skip


def _t5(name: str, corpus: Corpus, layers: int, width: int, steps: int, rate: float, **other: Any) -> Recipe:
    """As deep in the encoder as in the decoder: transformers' generate sizes the decoder's cache by the encoder."""
    return Recipe(
        name=name, corpus=corpus, family="t5", num_layers=layers, num_encoder_layers=layers, width=width, num_heads=4,
        ff_width=2 * width, steps=steps, batch_tokens=256, learning_rate=rate, embedding_rate_scale=250.0, **other,
    )  # fmt: skip


def _tables(gpt: Corpus, t5: Corpus) -> list[Recipe]:
    kinds = (("ngram-gpt", gpt, "text"), ("ngram-t5-en-de", t5, "wmt-en-de"), ("ngram-t5-cnndm", t5, "cnndm"))
    return [Recipe(name=name, corpus=corpus, family="ngram", table_task=task) for name, corpus, task in kinds]


RECIPES: dict[Scale, dict[str, Recipe]] = {"toy": toy(), "test": tiny(), "small": small(), "paper": paper()}


def recipe_for(name: str, scale: Scale, seed: int = 0) -> Recipe:
    """The recipe by name; UsageError names the ones there are."""
    if scale not in RECIPES:
        raise UsageError(f"zoo scale {scale!r}: expected one of {', '.join(RECIPES)}")
    if name not in RECIPES[scale]:
        raise UsageError(f"zoo model {name!r}: expected one of {', '.join(RECIPES[scale])}")
    return _seeded(RECIPES[scale][name], seed)


def _seeded(recipe: Recipe, seed: int) -> Recipe:
    teacher = None if recipe.teacher is None else _seeded(recipe.teacher, seed)
    return replace(recipe, seed=seed, teacher=teacher)


def recipe_hash(name: str, scale: Scale, source: str, seed: int = 0) -> str:
    """Identity of a trained model: every field of its recipe, its data's fingerprint, and the training code's version."""
    return digest(recipe_for(name, scale, seed), source)


def digest(description: Recipe | Corpus, source: str) -> str:
    """Hash of a recipe or of a corpus on a source of data (16 hexadecimal digits)."""
    corpus = description.corpus if isinstance(description, Recipe) else description
    data = {part.task: tasks.fingerprint(part.task, source) for part in corpus.parts}
    whole = {"description": asdict(description), "data": data, "code": CODE_VERSION}
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:16]
