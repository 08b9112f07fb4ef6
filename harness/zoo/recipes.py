"""What the zoo trains: small models of the real architectures, each wholly described by a frozen recipe.

Three groups share a corpus and a tokenizer, so that any target and draft of one group can be paired. The targets are deep and
narrow: like a large model's, their forward pass costs almost the same for one token as for a few.
"""

import hashlib
import json
from dataclasses import asdict, replace
from typing import Any, Literal, TypeVar

import tasks
from harness.errors import UsageError
from harness.zoo import specdec_recipes as specdec
from harness.zoo import specdec_variants, whisper_recipes
from harness.zoo.descriptions import (
    BlockwiseRecipe,
    Corpus,
    Description,
    Distilled,
    DrafterRecipe,
    EnsembleDistilled,
    HeadRecipe,
    HeadTraining,
    Part,
    Recipe,
    Style,
)
from harness.zoo.whisper_recipes import SpeechCorpus

Scale = Literal["toy", "test", "small", "paper"]
AnyRecipe = Recipe | HeadRecipe
Model = TypeVar("Model", bound=Recipe)

# Raised whenever the code that prepares data or trains changes what a recipe yields.
CODE_VERSION = 1

# The paper's hyper-parameters (PPD Table 4) are the defaults. A toy model sees far less text, so its heads learn faster and in
# smaller batches; at 5e-4 layers 36 to 39 lose matches, since AdamW moves every weight by about the rate at each step. Toy
# heads learn the final layer's choices, not the text's next tokens as the paper's: generated text draws names and numbers at
# random, so at about a quarter of its positions the final layer's best two tokens are all but tied, and there next tokens say
# nothing about its choice. They raise the match rate elsewhere (layer 37: from 0.980 to 0.983) and lower it there (from 0.636
# to 0.625), which leaves nothing at the last layers; its own choices raise both (to 0.985 and 0.702).
HEAD_TRAINING = {
    "paper": HeadTraining(),
    "toy": HeadTraining(epochs=1, learning_rate=2e-4, batch_size=16, max_length=512, max_documents=2000, labels="final"),
    "test": HeadTraining(epochs=1, learning_rate=2e-3, batch_size=8, max_length=512, max_documents=64, labels="final"),
}


def toy() -> dict[str, AnyRecipe]:
    """The zoo proper: minutes on two cores."""
    llama, t5, gpt = _llama_corpus(2048, 1.0), _t5_corpus(2048, 1.0), _gpt_corpus(2048, 1.0)
    target = _llama("llama-target", llama, 16, 128, 1300, 1.0e-3, shallow_frac=0.75, shallow_layers=4)
    deep = _llama_deep(_deep_corpus(2000, 1.0), 128, 2200, 0.86, 10)
    recipes: list[AnyRecipe] = [
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
        deep,
        _heads(deep, HEAD_TRAINING["toy"]),
        *specdec.toy(),
        *specdec_variants.toy(),
        *whisper_recipes.toy(),
    ]
    return {recipe.name: recipe for recipe in recipes}


def tiny() -> dict[str, AnyRecipe]:
    """The same shapes, tiny: seconds, for tests and continuous integration."""
    llama, t5, gpt = _llama_corpus(448, 0.03), _t5_corpus(448, 0.03), _gpt_corpus(448, 0.03)
    target = _llama("llama-target", llama, 4, 64, 80, 2e-3, shallow_frac=0.5, shallow_layers=2)
    deep = _llama_deep(_deep_corpus(448, 0.03), 32, 120, 0.8, 6)
    recipes: list[AnyRecipe] = [
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
        deep,
        _heads(deep, HEAD_TRAINING["test"]),
        *specdec.tiny(),
        *specdec_variants.tiny(),
        *whisper_recipes.tiny(),
    ]
    return {recipe.name: recipe for recipe in recipes}


def small() -> dict[str, AnyRecipe]:
    """Counted n-grams over the tokenizers of public models; the models themselves come from the Hub."""
    gpt = replace(_gpt_corpus(50257, 2.0), name="gpt-public", tokenizer="openai-community/gpt2")
    return {recipe.name: recipe for recipe in _tables(gpt, _public_t5_corpus())}


def paper() -> dict[str, AnyRecipe]:
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
    tables = _tables(corpus, _public_t5_corpus())
    others = (*specdec.paper(), *specdec_variants.paper(), *whisper_recipes.paper())
    return {recipe.name: recipe for recipe in (target, draft, *tables, *others)}


def _public_t5_corpus() -> Corpus:
    return replace(_t5_corpus(32128, 4.0), name="t5-public", tokenizer="google-t5/t5-small")


def _parts(size: float, style: Style, **counts: int) -> tuple[Part, ...]:
    named = {name.replace("_", "-"): max(96, round(count * size)) for name, count in counts.items()}
    return tuple(Part(task=task, num_examples=n, style="plain" if task == "text" else style) for task, n in named.items())


def _llama_corpus(vocab_size: int, size: float) -> Corpus:
    parts = _parts(size, "instruction", squad=2500, wmt_en_fr=8000, wmt_en_de=8000, cnndm=1500, text=1500)
    sizes: dict[str, Any] = {"max_source": 320, "max_target": 96, "num_held_out": 64}
    return Corpus(name="llama", family="llama", parts=parts, vocab_size=vocab_size, **sizes)


def _deep_corpus(vocab_size: int, size: float) -> Corpus:
    """The tasks of PPD and plain text; a small vocabulary keeps the heads of 39 layers small."""
    parts = _parts(size, "instruction", squad=4000, wmt_en_fr=8000, cnndm=2500, text=1500)
    sizes: dict[str, Any] = {"max_source": 320, "max_target": 96, "num_held_out": max(32, round(256 * size))}
    return Corpus(name="llama-deep", family="llama", parts=parts, vocab_size=vocab_size, **sizes)


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


def _llama_deep(corpus: Corpus, width: int, steps: int, shallow_frac: float, shallow_layers: int) -> Recipe:
    """As deep as Vicuna-13B, the model of PPD, so that its layers 10, 20, 30, 35 and 37 are the paper's own.

    The layers that learn first are spread so that each of these has one more of them below it: the match rate rises.
    """
    grown: dict[str, Any] = {"shallow_frac": shallow_frac, "shallow_layers": shallow_layers}
    return replace(_llama("llama-deep", corpus, 40, width, steps, 2e-3, **grown), embedding_rate_scale=12.0)


def _heads(teacher: Recipe, training: HeadTraining) -> HeadRecipe:
    """A head for every intermediate layer."""
    layers = tuple(range(1, teacher.num_layers))
    return HeadRecipe(name=f"{teacher.name}-heads", teacher=teacher, layers=layers, training=training)


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


RECIPES: dict[Scale, dict[str, AnyRecipe]] = {"toy": toy(), "test": tiny(), "small": small(), "paper": paper()}
# What toy models that translate or summarize need instead to learn from real text.
REAL: dict[str, AnyRecipe] = {
    recipe.name: recipe
    for recipe in (*specdec.real(), *specdec_variants.real(), *specdec.captions(), *specdec_variants.captions())
}


def recipes_of(scale: Scale, source: str) -> dict[str, AnyRecipe]:
    """All recipes of a scale, as they are on a source of data."""
    if scale not in RECIPES:
        raise UsageError(f"zoo scale {scale!r}: expected one of {', '.join(RECIPES)}")
    return RECIPES[scale] | REAL if scale == "toy" and source != "toy" else RECIPES[scale]


def recipe_for(name: str, scale: Scale, source: str, seed: int = 0) -> AnyRecipe:
    """The recipe by name; UsageError names the ones there are."""
    known = recipes_of(scale, source)
    if name not in known:
        raise UsageError(f"zoo model {name!r}: expected one of {', '.join(known)}")
    return _seeded(known[name], seed)


def _seeded(recipe: AnyRecipe, seed: int) -> AnyRecipe:
    if isinstance(recipe, HeadRecipe):
        return replace(recipe, seed=seed, teacher=_seeded_model(recipe.teacher, seed))
    return _seeded_model(recipe, seed)


def _seeded_model(recipe: Model, seed: int) -> Model:
    changed: dict[str, Any] = {"seed": seed, "teacher": None if recipe.teacher is None else _seeded_model(recipe.teacher, seed)}
    if isinstance(recipe.corpus, Distilled):
        changed["corpus"] = _seeded_corpus(recipe.corpus, seed)
    if isinstance(recipe, DrafterRecipe | BlockwiseRecipe):
        changed["verifier"] = _seeded_model(recipe.verifier, seed)
    if isinstance(recipe, DrafterRecipe):
        changed["initial"] = None if recipe.initial is None else _seeded_model(recipe.initial, seed)
    return replace(recipe, **changed)


def _seeded_corpus(corpus: Distilled, seed: int) -> Distilled:
    """The teachers of an ensemble differ by their seeds, which follow the first one's."""
    changed: dict[str, Any] = {"teacher": _seeded_model(corpus.teacher, seed)}
    if isinstance(corpus, EnsembleDistilled):
        changed["others"] = tuple(_seeded_model(one, seed + number) for number, one in enumerate(corpus.others, 1))
    return replace(corpus, **changed)


def recipe_hash(name: str, scale: Scale, source: str, seed: int = 0) -> str:
    """Identity of a trained model: every field of its recipe, its data's fingerprint, and the training code's version."""
    return digest(recipe_for(name, scale, source, seed), source)


def digest(description: Description, source: str) -> str:
    """Hash of a recipe or of a corpus on a source of data (16 hexadecimal digits)."""
    corpus = description if isinstance(description, Corpus) else description.corpus
    source = data_of(corpus, source)
    data = {part.task: tasks.fingerprint(part.task, source) for part in corpus.parts}
    whole = {"description": asdict(description), "data": data, "code": CODE_VERSION}
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:16]


def data_of(corpus: Corpus, source: str) -> str:
    """Where a corpus is read from in a run on ``source``."""
    return "toy" if isinstance(corpus, SpeechCorpus) and corpus.always_toy else source
