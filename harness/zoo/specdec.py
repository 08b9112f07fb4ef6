"""SpecDec's recipes (Xia et al.): teacher, verifier and drafter, English to German, and the variants that the paper compares.

Tables 2, 4 to 6, 8, 10 and 11 need the variants, and our ablations do. Drafters that are compared for their training alone
have as many updates: those of the ablations (glancing, distillation) and of three teachers as many as the base drafter, those
of each block size and all others a share of them (``SHARES``). A drafter of another shape than the base teacher's begins with
a model of its shape, where the base drafter begins with one.

Toy sizes: most words are one token and batches are a handful of sentences, because small models lack updates, above all until
their attention has found the source. The verifier's decoder is deep and narrow, so that a pass of it costs several of the
drafter's, as a large model's does; most of its layers join late (see ``networks``). The drafter begins with the teacher's
weights, which have its shape; the paper's begins with none. The teacher learns longest for its size: where it errs, its corpus
is noise that neither of the others can learn.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from harness.zoo.descriptions import BlockwiseRecipe, Corpus, DrafterRecipe, PairRecipe, Part, SharedEncoderRecipe, distilled

Changes = dict[str, Any]
Model = TypeVar("Model", bound=PairRecipe)
PAIRS = ("de-en", "en-ro", "ro-en")
SHAPE = ("width", "ff_width", "num_heads", "num_layers", "num_encoder_layers", "position_limit")
# The authors' (0.5, 0.3) cost a short training more: 1.15 accepted tokens a round, not 1.64, after nearly as many updates.
MILD_GLANCING = (0.3, 0.0)
NUMBERS = tomllib.loads(Path(__file__).with_name("specdec.toml").read_text(encoding="utf8"))
SCALES: dict[str, dict[str, Any]] = NUMBERS["scales"]
BLOCK_SIZES = {name: tuple[int, ...](scale["block_sizes"]) for name, scale in SCALES.items() if "block_sizes" in scale}


def settings_of(table: Mapping[str, Any]) -> Changes:
    """Return a table of ``specdec.toml`` with the settings that it takes over; an empty list is None."""
    found: Changes = {}
    for other in table.get("like", ()):
        found |= settings_of(NUMBERS["settings"][other])
    return found | {name: None if value == [] else value for name, value in table.items() if name != "like"}


@dataclass(frozen=True, kw_only=True)
class _Scale:
    """The base models of a scale, of which all others are variants, and what the variants change."""

    name: str
    teacher: PairRecipe
    verifier: PairRecipe
    drafter: DrafterRecipe

    def changes(self, variant: str) -> Changes:
        return settings_of(SCALES[self.name]["variants"].get(variant, {}))

    def shorter_drafter(self) -> DrafterRecipe:
        return _shortened(self.drafter, SCALES[self.name]["shares"][0])

    def shorter(self, recipe: Model) -> Model:
        return _shortened(recipe, SCALES[self.name]["shares"][1])


def specdec_recipes(scale: str) -> list[PairRecipe]:
    """All of SpecDec's recipes at a scale: a key of ``SCALES``."""
    base = _base(scale)
    models = [base.teacher, base.verifier, base.drafter]
    if scale == "pinned":
        return models
    if scale == "captions":  # its teacher translates well: what it writes is worth learning from
        return [*models, *_ablations(base), *_as_printed(base), *_one_shape(base, "alike")]
    return [*models, *_variants(base)]


def _base(scale: str) -> _Scale:
    numbers = SCALES[scale]
    corpus = _corpus(**numbers["corpus"])
    teacher = PairRecipe(name=f"{corpus.name}-teacher", corpus=corpus, family="marian", **settings_of(numbers["teacher"]))
    written = distilled(teacher, f"{corpus.name}-distilled")
    verifier = PairRecipe(name=f"{corpus.name}-verifier", corpus=written, family="marian", **settings_of(numbers["verifier"]))
    drafter = DrafterRecipe(
        name=f"{corpus.name}-drafter",
        corpus=written,
        family="block",
        verifier=verifier,
        initial=None if scale == "paper" else teacher,
        **settings_of(numbers["drafter"]),
    )
    return _Scale(name=scale, teacher=teacher, verifier=verifier, drafter=drafter)


def _corpus(*, num_examples: int, task: str = "wmt-en-de", name: str = "specdec", **settings: Any) -> Corpus:
    """One joint vocabulary of both languages."""
    part, settings = Part(task=task, num_examples=num_examples, style="t5"), {"max_source": 160, "max_target": 96} | settings
    return Corpus(name=name, family="marian", parts=(part,), **settings)


def _variants(base: _Scale) -> list[PairRecipe]:
    verifier, drafter = _big(base)
    few, many = SCALES[base.name]["heads"]
    return [
        *_ablations(base),
        *_block_sizes(base),
        *([] if drafter.initial is None else [drafter.initial]),
        *(verifier, drafter),
        _heads("specdec-blockwise", base.verifier, few, base),
        _heads("specdec-big-blockwise", verifier, many, base),
        *_three_teachers(base, (base.verifier, base.drafter), (verifier, drafter)),
        *_one_shape(base, "deep"),
        *_one_shape(base, "alike"),
        _sharing(base),
        *(recipe for pair in PAIRS for recipe in _pair(base, pair)),
        *_summarizers(base),
    ]


def _ablations(base: _Scale) -> list[PairRecipe]:
    """Without distillation; and the drafter without glancing, or with it where the base drafter has none."""
    raw, glances = base.teacher.corpus, base.drafter.glancing is not None
    return [
        replace(base.verifier, name=f"{base.verifier.name}-raw", corpus=raw),
        replace(base.drafter, name=f"{base.drafter.name}-raw", corpus=raw),
        replace(
            base.drafter,
            name=f"{base.drafter.name}-{'plain' if glances else 'glancing'}",
            glancing=None if glances else MILD_GLANCING,
        ),
    ]


def _as_printed(base: _Scale) -> list[PairRecipe]:
    """Describe drafters with the paper's loss, in which all places of a block count alike, with glancing and without.

    What glancing gives grows with the updates: of the tokens a round 0.6 % after as many as the base drafter's, 1.2 % after
    three times as many.
    """
    drafter = replace(base.drafter, name=f"{base.drafter.name}-printed", place_decay=1.0, steps=3 * base.drafter.steps)
    return [replace(drafter, glancing=MILD_GLANCING), replace(drafter, name=f"{drafter.name}-plain", glancing=None)]


def _block_sizes(base: _Scale) -> list[PairRecipe]:
    drafter = base.shorter_drafter()
    return [replace(drafter, name=f"specdec-drafter-k{size}", block_size=size) for size in BLOCK_SIZES[base.name]]


def _big(base: _Scale) -> tuple[PairRecipe, DrafterRecipe]:
    """A big verifier, and a big drafter, which drafts for the base verifier too."""
    verifier = replace(base.shorter(base.verifier), name="specdec-big-verifier", **base.changes("big-verifier"))
    drafter = replace(base.shorter_drafter(), name="specdec-big-drafter", verifier=verifier, **base.changes("big-drafter"))
    if base.drafter.initial is None:
        return verifier, drafter
    start = replace(base.shorter(base.drafter.initial), name="specdec-big-start", corpus=drafter.corpus, **shape_of(drafter))
    return verifier, replace(drafter, initial=start)


def _heads(name: str, verifier: PairRecipe, count: int, base: _Scale) -> BlockwiseRecipe:
    """A head's hidden size is the verifier's width (Stern et al. Section 6)."""
    inherited = (*SHAPE, "corpus", "batch_tokens", "steps", "average_every", "wants_gpu")
    settings = {field: getattr(verifier, field) for field in inherited}
    settings |= {"ff_width": verifier.width, "num_layers": 0, "num_encoder_layers": 0} | base.changes("heads")
    return BlockwiseRecipe(name=name, family="blockwise", verifier=verifier, num_drafts=count, **settings)


def _three_teachers(base: _Scale, *pairs: tuple[PairRecipe, DrafterRecipe]) -> list[PairRecipe]:
    """Verifiers and drafters on what three teachers write, of whom the others differ from the first by their seeds."""
    teachers = [replace(base.teacher, seed=base.teacher.seed + number) for number in range(3)]
    written = distilled(teachers[0], "specdec-distilled-3t", others=teachers[1:])
    found: list[PairRecipe] = []
    for verifier, drafter in pairs:
        verifier = replace(verifier, name=f"{verifier.name}-3t", corpus=written)
        found += [verifier, replace(drafter, name=f"{drafter.name}-3t", corpus=written, verifier=verifier)]
    return found


def _one_shape(base: _Scale, name: str) -> list[PairRecipe]:
    """Verifier and drafter of one shape: a deep encoder and a shallow decoder ("deep"), or as many layers in both ("alike").

    The paper's base pair is alike, so its scale has no other.
    """
    if not (changes := base.changes(name)) and name == "alike":
        return []
    verifier, group = base.shorter(base.verifier), base.teacher.corpus.name
    verifier = replace(verifier, name=f"{group}-{name}-verifier", **(shape_of(base.drafter) | changes))
    initial = None if base.drafter.initial is None else verifier
    drafter = replace(base.shorter_drafter(), name=f"{group}-{name}-drafter", verifier=verifier, initial=initial)
    return [verifier, replace(drafter, **shape_of(verifier))]


def _sharing(base: _Scale) -> SharedEncoderRecipe:
    """Describe a drafter for the base verifier, whose encoder it shares: as wide as that, as deep as the base drafter."""
    kept = {field.name: getattr(base.drafter, field.name) for field in fields(DrafterRecipe)}
    shape = shape_of(base.verifier) | {"num_layers": base.drafter.num_layers}
    return SharedEncoderRecipe(**(kept | shape | {"name": "specdec-drafter-shared", "initial": base.verifier}))


def _pair(base: _Scale, pair: str) -> list[PairRecipe]:
    """Another pair of languages, or another direction."""
    romanian = "ro" in pair
    changes, teacher_changes = (base.changes("romanian"), base.changes("romanian-teacher")) if romanian else ({}, {})
    [part] = base.teacher.corpus.parts
    num_examples = SCALES[base.name].get("pairs", {}).get(pair, part.num_examples)
    part = replace(part, task=f"wmt-{pair}", num_examples=num_examples)
    corpus = replace(base.teacher.corpus, name=f"specdec-{pair}", parts=(part,))
    teacher = replace(base.shorter(base.teacher), name=f"specdec-{pair}-teacher", corpus=corpus, **teacher_changes)
    return [teacher, *_students(base, teacher, changes, changes)]


def _summarizers(base: _Scale) -> list[PairRecipe]:
    """BARTs that summarize CNN/DailyMail; as many rows are held out as in translation."""
    settings = base.changes("summaries")
    part = Part(task="cnndm", num_examples=settings["num_examples"], style="t5")
    lengths = {name: value for name, value in settings.items() if name != "num_examples"}
    corpus = replace(base.teacher.corpus, name="specdec-bart", parts=(part,), **lengths)
    bart: Changes = {"family": "bart"}
    changes, teacher_changes = base.changes("bart"), bart | base.changes("bart-teacher")
    teacher = replace(base.shorter(base.teacher), name="specdec-bart-teacher", corpus=corpus, **teacher_changes)
    return [teacher, *_students(base, teacher, bart | changes, changes | {"family": "bart-block"})]


def _students(base: _Scale, teacher: PairRecipe, changes: Changes, drafter_changes: Changes) -> list[PairRecipe]:
    """Verifier and drafter of another teacher, on what it writes."""
    name = teacher.name.removesuffix("-teacher")
    written = distilled(teacher, f"{name}-distilled")
    verifier = replace(base.shorter(base.verifier), name=f"{name}-verifier", corpus=written, **changes)
    initial = None if base.drafter.initial is None else teacher
    settings: Changes = {"corpus": written, "verifier": verifier, "initial": initial} | drafter_changes
    return [verifier, replace(base.shorter_drafter(), name=f"{name}-drafter", **settings)]


def _shortened(recipe: Model, share: float) -> Model:
    return replace(recipe, steps=round(recipe.steps * share))


def shape_of(recipe: PairRecipe) -> Changes:
    """The fields that decide which weights a model has."""
    return {name: getattr(recipe, name) for name in SHAPE}
