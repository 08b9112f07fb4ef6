"""The zoo's recipes at every scale: small models of the real architectures, each wholly described by a frozen dataclass.

Groups (llama, t5, gpt, whisper, specdec) share a corpus and a tokenizer, so that any target and draft of one group can be
paired. The targets are deep and narrow: like a large model's, their forward pass costs almost the same for one token as for a
few. A scale is data: sizes, steps and rates stand in tables here and in ``specdec``, the shapes in functions.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal, cast

import tasks
from harness.core.errors import UsageError
from harness.zoo.cache import model_folder
from harness.zoo.descriptions import (
    Corpus,
    Description,
    HeadRecipe,
    HeadTraining,
    Part,
    Recipe,
    SpeechCorpus,
    Style,
    WhisperRecipe,
)
from harness.zoo.specdec import specdec_recipes

Scale = Literal["toy", "test", "small", "paper"]
AnyRecipe = Recipe | HeadRecipe
Settings = dict[str, Any]

ZOO = "zoo:"  # a model's name begins with it where the zoo's is meant
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

# The language models of a scale: layers, width, steps, learning rate and, of those that grow, the share of the steps in which
# only some layers run, and how many. "toy" takes minutes on two cores; "test" has the same shapes, takes seconds, and is for
# tests and continuous integration.
SIZES: dict[str, dict[str, tuple[float, ...]]] = {
    "toy": {
        "llama-target": (16, 128, 1300, 1.0e-3, 0.75, 4),
        "llama-draft-large": (3, 128, 900, 1.0e-3),
        "llama-draft-small": (1, 96, 2000, 1.5e-3),
        "t5-xxl": (12, 128, 1700, 1.0e-3, 0.92, 3),
        "t5-large": (4, 96, 850, 1.0e-3),
        "t5-base": (2, 80, 900, 1.2e-3),
        "t5-small": (1, 64, 900, 1.5e-3),
        "gpt-target": (12, 128, 900, 1.5e-3, 0.75, 3),
        "gpt-draft": (2, 64, 800, 2.0e-3),
        "llama-deep": (40, 128, 2200, 2e-3, 0.86, 10),
    },
    "test": {
        "llama-target": (4, 64, 80, 2e-3, 0.5, 2),
        "llama-draft-large": (2, 48, 80, 2e-3),
        "llama-draft-small": (1, 32, 80, 3e-3),
        "t5-xxl": (4, 64, 120, 2e-3, 0.5, 2),
        "t5-large": (2, 48, 120, 2e-3),
        "t5-base": (1, 48, 120, 2e-3),
        "t5-small": (1, 32, 120, 3e-3),
        "gpt-target": (4, 64, 80, 2e-3, 0.5, 2),
        "gpt-draft": (1, 32, 80, 3e-3),
        "llama-deep": (40, 32, 120, 2e-3, 0.8, 6),
    },
}
# Of each scale: the tokens of a vocabulary, those of the deep model's, and the share of the rows in PARTS that are read.
CORPORA = {"toy": (2048, 2000, 1.0), "test": (448, 448, 0.03)}
PARTS: dict[str, dict[str, int]] = {
    "llama": {"squad": 2500, "wmt-en-fr": 8000, "wmt-en-de": 8000, "cnndm": 1500, "text": 1500},
    "llama-deep": {"squad": 4000, "wmt-en-fr": 8000, "cnndm": 2500, "text": 1500},
    "t5": {"wmt-en-de": 24000, "cnndm": 4000},
    "gpt": {"text": 8000},
}
LLAMA: Settings = {
    "family": "llama", "position_limit": 1024, "batch_tokens": 320, "block_length": 320, "prompt_weight": 0.5,
    "embedding_rate_scale": 24.0,
}  # fmt: skip
GPT: Settings = {
    "family": "gpt2", "position_limit": 512, "batch_tokens": 256, "block_length": 256, "embedding_rate_scale": 8.0,
}  # fmt: skip
# T5's are as deep in the encoder as in the decoder: transformers' generate sizes the decoder's cache by the encoder.
T5: Settings = {"family": "t5", "batch_tokens": 256, "embedding_rate_scale": 250.0}

# Whisper. "toy": some three minutes of one core for the target and half a one for the draft, which cannot begin before the
# target is done; the recordings take another. Eight layers, so that drafting with one pays. "test" learns next to nothing.
# "paper": shapes of whisper-small.en and distil-small.en, trained on LibriSpeech.
# Differs from the paper: its pairs are the public checkpoints, which profile paper loads; these recipes train such a pair from
# nothing, on a thousandth of what Whisper has heard.
WHISPER: dict[str, dict[str, Settings]] = {
    "toy": {
        "corpus": {"vocab_size": 368, "num_examples": 4000, "num_held_out": 160, "num_mel_bins": 40},
        "both": {
            "width": 128, "ff_width": 256, "num_heads": 4, "num_encoder_layers": 2, "learning_rate": 2.5e-3, "batch_size": 16,
        },
        "target": {"num_layers": 8, "steps": 1300, "shallow_frac": 0.6, "shallow_layers": 2},
        "draft": {"num_layers": 1, "steps": 500},
    },
    "test": {
        "corpus": {"vocab_size": 320, "num_examples": 64, "num_held_out": 8, "num_mel_bins": 16},
        "both": {
            "width": 32, "ff_width": 64, "num_heads": 2, "num_encoder_layers": 1, "learning_rate": 5e-3, "batch_size": 8,
        },
        "target": {"num_layers": 2, "steps": 30},
        "draft": {"num_layers": 1, "steps": 15},
    },
    "paper": {
        "both": {
            "width": 768, "ff_width": 3072, "num_heads": 12, "num_encoder_layers": 12, "learning_rate": 5e-4,
            "batch_size": 64, "position_limit": 448, "wants_gpu": True, "hidden_bins": 27, "hidden_frames": 100,
            "mel_shift": 0, "muon_rate_scale": 0.0,
        },
        "target": {"num_layers": 12, "steps": 100_000},
        "draft": {"num_layers": 4, "steps": 30_000},
    },
}  # fmt: skip


def _trained_here(scale: Literal["toy", "test"]) -> list[AnyRecipe]:
    """Everything that a scale trains from generated or real text, on this machine."""
    vocab_size, deep_vocab_size, share = CORPORA[scale]
    llama, t5, gpt = _llama_corpus(vocab_size, share), _t5_corpus(vocab_size, share), _gpt_corpus(vocab_size, share)
    deep = _llama_deep(_deep_corpus(deep_vocab_size, share), *SIZES[scale]["llama-deep"])
    target = _model("llama-target", llama, LLAMA, *SIZES[scale]["llama-target"])
    drafts = ("llama-draft-large", "llama-draft-small")
    return [
        target,
        *(replace(_model(name, llama, LLAMA, *SIZES[scale][name]), teacher=target) for name in drafts),
        *(_t5(name, t5, *sizes) for name, sizes in SIZES[scale].items() if name.startswith("t5-")),
        *(_gpt2(name, gpt, *sizes) for name, sizes in SIZES[scale].items() if name.startswith("gpt-")),
        *_ngram_tables(gpt, t5),
        deep,
        _heads(deep, HEAD_TRAINING[scale]),
        *specdec_recipes(scale),
        *_whispers(scale),
    ]


def _counted_for_public_models() -> list[AnyRecipe]:
    """Scale small: counted n-grams over the tokenizers of public models; the models themselves come from the Hub."""
    gpt = replace(_gpt_corpus(50257, 2.0), name="gpt-public", tokenizer="openai-community/gpt2")
    return [*_ngram_tables(gpt, _public_t5_corpus())]


def _papers_own() -> list[AnyRecipe]:
    """The GPT-like pair at the paper's size (Leviathan 4.2): 768/3072/12 layers/12 heads and 256/1024/2/4, an 8 k vocabulary;
    also SpecDec's models and a Whisper pair at their papers' sizes.

    Differs from the paper: the GPT-like pair trains on the text task's data instead of lm1b, whose Hub dataset is a loading
    script.
    """
    corpus = replace(_gpt_corpus(8192, 125.0), name="gpt-paper", tokenizer="wordpiece")
    settings: Settings = {
        "steps": 100_000, "batch_tokens": 65_536, "block_length": 512, "embedding_rate_scale": 1.0, "wants_gpu": True,
    }  # fmt: skip
    target = replace(_gpt2("gpt-target", corpus, 12, 768, 0, 6e-4), num_heads=12, **settings)
    draft = replace(_gpt2("gpt-draft", corpus, 2, 256, 0, 1e-3), num_heads=4, **settings)
    return [target, draft, *_ngram_tables(corpus, _public_t5_corpus()), *specdec_recipes("paper"), *_whispers("paper")]


def _parts(corpus: str, share: float, style: Style) -> tuple[Part, ...]:
    """A corpus's ingredients; plain text has no prompt whatever the style."""
    counts = {task: max(96, round(count * share)) for task, count in PARTS[corpus].items()}
    return tuple(Part(task=task, num_examples=n, style="plain" if task == "text" else style) for task, n in counts.items())


def _llama_corpus(vocab_size: int, share: float) -> Corpus:
    return Corpus(
        name="llama", family="llama", parts=_parts("llama", share, "instruction"), vocab_size=vocab_size,
        max_source=320, max_target=96, num_held_out=64,
    )  # fmt: skip


def _deep_corpus(vocab_size: int, share: float) -> Corpus:
    """The tasks of PPD and plain text; a small vocabulary keeps the heads of 39 layers small."""
    return Corpus(
        name="llama-deep", family="llama", parts=_parts("llama-deep", share, "instruction"), vocab_size=vocab_size,
        max_source=320, max_target=96, num_held_out=max(32, round(256 * share)),
    )  # fmt: skip


def _t5_corpus(vocab_size: int, share: float) -> Corpus:
    parts = _parts("t5", share, "t5")
    return Corpus(name="t5", family="t5", parts=parts, vocab_size=vocab_size, max_source=160, max_target=96, num_held_out=96)


def _public_t5_corpus() -> Corpus:
    return replace(_t5_corpus(32128, 4.0), name="t5-public", tokenizer="google-t5/t5-small")


def _gpt_corpus(vocab_size: int, share: float) -> Corpus:
    parts = _parts("gpt", share, "plain")
    return Corpus(name="gpt", family="gpt2", parts=parts, vocab_size=vocab_size, max_source=1, max_target=512, num_held_out=64)


def _model(
    name: str,
    corpus: Corpus,
    settings: Settings,
    layers: float,
    width: float,
    steps: float,
    rate: float,
    shallow_frac: float = 0.0,
    shallow_layers: float = 0,
    *,
    ff_ratio: int = 2,
) -> Recipe:
    return Recipe(
        name=name, corpus=corpus, num_layers=int(layers), width=int(width), num_heads=4, ff_width=ff_ratio * int(width),
        steps=int(steps), learning_rate=rate, shallow_frac=shallow_frac, shallow_layers=int(shallow_layers), **settings,
    )  # fmt: skip


def _gpt2(name: str, corpus: Corpus, *sizes: float) -> Recipe:
    return _model(name, corpus, GPT, *sizes, ff_ratio=4)


def _t5(name: str, corpus: Corpus, *sizes: float) -> Recipe:
    return _model(name, corpus, T5 | {"num_encoder_layers": int(sizes[0])}, *sizes)


def _llama_deep(corpus: Corpus, *sizes: float) -> Recipe:
    """As deep as Vicuna-13B, the model of PPD, so that its layers 10, 20, 30, 35 and 37 are the paper's own.

    The layers that learn first are spread so that each of these has one more of them below it: the match rate rises.
    """
    return _model("llama-deep", corpus, LLAMA | {"embedding_rate_scale": 12.0}, *sizes)


def _heads(teacher: Recipe, training: HeadTraining) -> HeadRecipe:
    """A head for every intermediate layer."""
    layers = tuple(range(1, teacher.num_layers))
    return HeadRecipe(name=f"{teacher.name}-heads", teacher=teacher, layers=layers, training=training)


def _ngram_tables(gpt: Corpus, t5: Corpus) -> list[Recipe]:
    kinds = (("ngram-gpt", gpt, "text"), ("ngram-t5-en-de", t5, "wmt-en-de"), ("ngram-t5-cnndm", t5, "cnndm"))
    return [Recipe(name=name, corpus=corpus, family="ngram", table_task=task) for name, corpus, task in kinds]


def _whispers(scale: Literal["toy", "test", "paper"]) -> list[WhisperRecipe]:
    """A target trained on speech, and a draft with its encoder, distilled from it.

    As Distil-Whisper's (Gandhi et al. 2023, 3.1), the draft copies the target's encoder, which stays as it is, and begins with
    some of its decoder's layers.
    """
    sizes = WHISPER[scale]
    corpus = _paper_speech() if scale == "paper" else _toy_speech(**sizes["corpus"])
    frames = sizes["both"]["batch_size"] * corpus.num_frames // 2
    defaults: Settings = {"position_limit": 64, "warmup_frac": 0.08, "weight_decay": 0.02, "batch_tokens": frames}
    settings: Settings = {"corpus": corpus, "family": "whisper"} | defaults | sizes["both"]
    target = WhisperRecipe(name="whisper-target", **(settings | sizes["target"]))
    return [target, WhisperRecipe(name="whisper-draft", teacher=target, **(settings | sizes["draft"]))]


def _toy_speech(vocab_size: int, num_examples: int, num_held_out: int, num_mel_bins: int) -> SpeechCorpus:
    """Half of it "clean", an eighth talks. Three seconds, which nearly every sentence fits, at 50 frames a second, half of
    Whisper's: eSpeak's phonemes are long enough."""
    eighths = {"librispeech-clean": 4, "librispeech-other": 2, "common-voice": 1, "tedlium": 1}
    counts = {task: share * (num_examples // 8) for task, share in eighths.items()}
    return SpeechCorpus(
        name="whisper", family="whisper", parts=_speech_parts(counts), vocab_size=vocab_size, max_source=1, max_target=48,
        num_held_out=num_held_out, num_mel_bins=num_mel_bins, window_s=3, hop_length=320,
    )  # fmt: skip


def _paper_speech() -> SpeechCorpus:
    parts = _speech_parts({"librispeech-clean": 28_000, "librispeech-other": 140_000})
    return SpeechCorpus(
        name="whisper", family="whisper", parts=parts, vocab_size=51_864, max_source=1, max_target=200, num_held_out=1000,
        tokenizer="openai/whisper-small.en", num_mel_bins=80, window_s=30, hop_length=160, always_toy=False,
    )  # fmt: skip


def _speech_parts(counts: dict[str, int]) -> tuple[Part, ...]:
    return tuple(Part(task=task, num_examples=count, style="plain") for task, count in counts.items())


def _named(recipes: Iterable[AnyRecipe]) -> dict[str, AnyRecipe]:
    return {recipe.name: recipe for recipe in recipes}


RECIPES: dict[Scale, dict[str, AnyRecipe]] = {
    "toy": _named(_trained_here("toy")),
    "test": _named(_trained_here("test")),
    "small": _named(_counted_for_public_models()),
    "paper": _named(_papers_own()),
}
# Toy models that translate or summarize need these instead to learn from real text.
REAL: dict[str, AnyRecipe] = _named([*specdec_recipes("real"), *specdec_recipes("captions")])


def scale_of(profile: str) -> Scale:
    """The scale whose models a profile uses: its own, or the toy one."""
    return cast(Scale, profile) if profile in RECIPES else "toy"


def recipes_of(scale: Scale, source: str) -> dict[str, AnyRecipe]:
    """All recipes of a scale, as they are on a source of data."""
    if scale not in RECIPES:
        raise UsageError(f"zoo scale {scale!r}: expected one of {', '.join(RECIPES)}")
    return RECIPES[scale] | REAL if scale == "toy" and source != "toy" else RECIPES[scale]


def recipe_for(name: str, scale: Scale, source: str) -> AnyRecipe:
    """The recipe by name; UsageError names the ones there are."""
    known = recipes_of(scale, source)
    if name not in known:
        raise UsageError(f"zoo model {name!r}: expected one of {', '.join(known)}")
    return known[name]


def recipe_hash(name: str, scale: Scale, source: str) -> str:
    """Identity of a trained model: every field of its recipe, its data's fingerprint, and the training code's version."""
    return digest(recipe_for(name, scale, source), source)


def digest(description: Description, source: str) -> str:
    """Hash of a recipe or of a corpus on a source of data (16 hexadecimal digits)."""
    corpus = description if isinstance(description, Corpus) else description.corpus
    source = data_of(corpus, source)
    data = {part.task: tasks.fingerprint(part.task, source) for part in corpus.parts}
    whole = {"description": asdict(description), "data": data, "code": CODE_VERSION}
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:16]


def data_of(corpus: Corpus, source: str) -> str:
    """Return the source that a corpus is read from in a run on ``source``."""
    return "toy" if isinstance(corpus, SpeechCorpus) and corpus.always_toy else source


def folder_of(description: Description, source: str) -> Path:
    """The cache folder of a recipe's model, or of a corpus."""
    name = f"corpus-{description.name}" if isinstance(description, Corpus) else description.name
    return model_folder(name, digest(description, source))
