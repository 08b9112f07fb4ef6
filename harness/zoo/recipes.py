"""The zoo's recipes at every scale: small models of the real architectures, each wholly described by a frozen dataclass.

Groups (llama, t5, gpt, whisper, specdec) share a corpus and a tokenizer, so that any target and draft of one group can be
paired. The targets are deep and narrow, so that a pass of them costs several of a draft's, as a large model's does. Unlike a
large model's, it costs more for a few tokens than for one (verify cost in Leviathan's table 2). A scale is data: its numbers
stand in ``recipes.toml`` and ``specdec.toml``.
"""

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal, cast

import tasks
from harness.core.errors import UsageError
from harness.core.files import short_hash
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

Scale = Literal["toy", "test", "pinned", "pocket", "small", "paper"]
AnyRecipe = Recipe | HeadRecipe

# Raised whenever the code that prepares data or trains changes what a recipe yields.
CODE_VERSION = 1
NUMBERS = tomllib.loads(Path(__file__).with_name("recipes.toml").read_text(encoding="utf8"))
HEAD_TRAINING = {scale: HeadTraining(**settings) for scale, settings in NUMBERS["heads"].items()}
# The n-gram tables: their group, and the part of its corpus that they count.
NGRAMS = (("ngram-gpt", "gpt", "text"), ("ngram-t5-en-de", "t5", "wmt-en-de"), ("ngram-t5-cnndm", "t5", "cnndm"))


def _language_models(scale: Scale) -> list[AnyRecipe]:
    """The models of a scale that read text, but SpecDec's, and the n-gram tables; of the deep one a head for every layer."""
    corpora = {group: _corpus(group, **settings) for group, settings in NUMBERS[scale]["corpora"].items()}
    found: dict[str, Recipe] = {}
    for group, models in NUMBERS[scale].get("models", {}).items():
        for name, sizes in models.items():
            settings = NUMBERS["groups"][group] | sizes
            teacher = found.get(settings.pop("teacher", ""))
            found[name] = Recipe(name=name, corpus=corpora[group], teacher=teacher, **settings)
    for name, group, task in (one for one in NGRAMS if one[1] in corpora):
        found[name] = Recipe(name=name, corpus=corpora[group], family="ngram", table_task=task)
    if "llama-deep" not in found:
        return list(found.values())
    deep = found.pop("llama-deep")
    return [*found.values(), deep, _heads(deep, HEAD_TRAINING[scale])]


def _corpus(group: str, *, share: float, **settings: Any) -> Corpus:
    """The corpus of a group with a share of its rows; plain text has no prompt whatever the style."""
    base = NUMBERS["corpora"][group]
    style: Style = base["style"]
    counts = {task: max(96, round(rows * share)) for task, rows in base["rows"].items()}
    parts = tuple(Part(task=task, num_examples=n, style="plain" if task == "text" else style) for task, n in counts.items())
    return Corpus(parts=parts, **({"name": group} | base["settings"] | settings))


def _heads(teacher: Recipe, training: HeadTraining) -> HeadRecipe:
    """A head for every intermediate layer."""
    layers = tuple(range(1, teacher.num_layers))
    return HeadRecipe(name=f"{teacher.name}-heads", teacher=teacher, layers=layers, training=training)


def _whispers(scale: Scale) -> list[WhisperRecipe]:
    """A target trained on speech, and a draft with its encoder, distilled from it.

    As Distil-Whisper's (Gandhi et al. 2023, 3.1), the draft copies the target's encoder, which stays as it is, and begins with
    some of its decoder's layers.
    """
    numbers: Mapping[str, Any] = NUMBERS["whisper"][scale]
    rows = numbers["corpus"]["rows"].items()
    parts = tuple(Part(task=task, num_examples=count, style="plain") for task, count in rows)
    corpus = SpeechCorpus(name="whisper", family="whisper", parts=parts, max_source=1, **numbers["corpus"]["settings"])
    defaults: dict[str, Any] = {"position_limit": 64, "warmup_frac": 0.08, "weight_decay": 0.02}
    settings = {"corpus": corpus, "family": "whisper"} | defaults | numbers["both"]
    target = WhisperRecipe(name="whisper-target", **(settings | numbers["target"]))
    return [target, WhisperRecipe(name="whisper-draft", teacher=target, **(settings | numbers["draft"]))]


def _named(recipes: Iterable[AnyRecipe]) -> dict[str, AnyRecipe]:
    return {recipe.name: recipe for recipe in recipes}


RECIPES: dict[Scale, dict[str, AnyRecipe]] = {
    "toy": _named([*_language_models("toy"), *specdec_recipes("toy"), *_whispers("toy")]),
    "test": _named([*_language_models("test"), *specdec_recipes("test"), *_whispers("test")]),
    "pinned": _named([*_language_models("pinned"), *specdec_recipes("pinned"), *_whispers("pinned")]),
    "pocket": _named([*_language_models("pocket"), *specdec_recipes("captions")]),
    "small": _named(_language_models("small")),
    "paper": _named([*_language_models("paper"), *specdec_recipes("paper"), *_whispers("paper")]),
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
    """The recipe by name; UsageError names the ones there are. ``NAME@2`` is the third training of NAME."""
    known, (base, again, number) = recipes_of(scale, source), name.partition("@")
    if base not in known:
        raise UsageError(f"zoo model {name!r}: expected one of {', '.join(known)}")
    if not again:
        return known[base]
    if not number.isdecimal() or number.startswith("0"):
        raise UsageError(f"zoo model {name!r}: expected the number of a training behind @, 1 or more; the first has none")
    return _trained_again(known[base], int(number))


def _trained_again(recipe: AnyRecipe, number: int) -> AnyRecipe:
    """Return the same recipe with a seed of its own, and a teacher of the same training.

    Raises:
        UsageError: the recipe is one of SpecDec's or of speech, which other models write the corpus for.
    """
    if type(recipe) not in (Recipe, HeadRecipe):
        raise UsageError(f"zoo model {recipe.name}@{number}: only models of gpt, llama and t5 are trained again; leave @ out")
    teacher = None if recipe.teacher is None else _trained_again(recipe.teacher, number)
    return replace(recipe, name=f"{recipe.name}@{number}", seed=recipe.seed + number, teacher=cast(Any, teacher))


def recipe_hash(name: str, scale: Scale, source: str) -> str:
    """Identity of a trained model: every field of its recipe, its data's fingerprint, and the training code's version."""
    return digest(recipe_for(name, scale, source), source)


def digest(description: Description, source: str) -> str:
    """Hash of a recipe or of a corpus on a source of data (16 hexadecimal digits)."""
    corpus = description if isinstance(description, Corpus) else description.corpus
    source = data_of(corpus, source)
    data = {part.task: tasks.fingerprint(part.task, source) for part in corpus.parts}
    whole = {"description": asdict(description), "data": data, "code": CODE_VERSION}
    return short_hash(json.dumps(whole, sort_keys=True))


def data_of(corpus: Corpus, source: str) -> str:
    """Return the source that a corpus is read from in a run on ``source``."""
    return "toy" if isinstance(corpus, SpeechCorpus) and corpus.always_toy else source


def folder_of(description: Description, source: str) -> Path:
    """The cache folder of a recipe's model, or of a corpus."""
    name = f"corpus-{description.name}" if isinstance(description, Corpus) else description.name
    return model_folder(name, digest(description, source))
