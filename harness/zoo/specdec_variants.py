"""SpecDec's other models (Xia et al. Tables 2, 4-6, 8, 10 and 11, and our ablations): changes of the base models' recipes.

Drafters that are compared for their training alone have as many updates: those of the ablations (glancing, distillation) and of
three teachers as many as the base drafter; those of each block size and all others ``Sizes.short`` of them. A drafter of
another shape than the base teacher's begins with a model of its own shape, where the base drafter begins with one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from harness.zoo import specdec_recipes
from harness.zoo.descriptions import (
    BlockwiseRecipe,
    Corpus,
    DrafterRecipe,
    PairRecipe,
    Part,
    SharedEncoderRecipe,
    distilled,
    distilled_by_all,
)

# Of the paper's Table 2 the text tells 25, the best, and Section 4.3 adds 30; the others are ours.
BLOCK_SIZES: dict[str, tuple[int, ...]] = {"toy": (2, 4, 6, 8, 12), "test": (3, 6), "paper": (10, 15, 20, 25, 30)}
# The authors' (0.5, 0.3) cost a short training more: 1.15 accepted tokens a round, not 1.64, after nearly as many updates.
MILD_GLANCING = (0.3, 0.0)
PAIRS = ("de-en", "en-ro", "ro-en")
Changes = dict[str, Any]
Model = TypeVar("Model", bound=PairRecipe)


@dataclass(frozen=True, kw_only=True)
class Base:
    """The three models that all others are variants of."""

    teacher: PairRecipe
    verifier: PairRecipe
    drafter: DrafterRecipe


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What differs between scales. ``short`` and ``others`` are shares of the base models' updates: of the drafter's, and of
    the teacher's and the verifier's for other data or shapes. ``heads`` and ``big_heads`` count blockwise heads: one fewer than
    tokens in a block. ``num_examples`` are those of pairs that have other than the base one.
    """

    block_sizes: tuple[int, ...]
    short: float
    others: float
    big_verifier: Changes
    big_drafter: Changes
    deep: Changes
    heads: int
    big_heads: int
    head_training: Changes
    num_examples: Mapping[str, int]
    romanian_teacher: Changes
    romanian: Changes
    summaries: Corpus
    bart_teacher: Changes
    bart: Changes


def toy() -> list[PairRecipe]:
    base = _base(specdec_recipes.toy())
    return _variants(base, _toy_sizes(base))


def _toy_sizes(base: Base) -> Sizes:
    batches: Changes = {"batch_tokens": 320}
    return Sizes(
        block_sizes=BLOCK_SIZES["toy"],
        short=0.4,
        others=0.6,
        big_verifier={"width": 96, "ff_width": 192},
        big_drafter={"width": 192, "ff_width": 768},
        deep={"num_encoder_layers": 6, "num_layers": 2, "shallow_frac": 0.5, "shallow_layers": 2},
        heads=base.drafter.block_size - 1,
        big_heads=9,
        head_training={"steps": 1500, "learning_rate": 2e-3, "draws_head": False},
        num_examples={},
        romanian_teacher={},
        romanian={},
        summaries=_summaries_corpus(base, 4000, max_source=160, max_target=96),
        bart_teacher=batches,
        bart=batches,
    )


def real() -> list[PairRecipe]:
    """For real text; of Romanian and of summaries there may be few rows, which many more updates would only learn by heart."""
    base = _base(specdec_recipes.real())
    few: Changes = {"steps": 400}
    sizes = replace(
        _toy_sizes(base),
        short=0.3,
        others=0.25,
        big_verifier={"width": 128, "ff_width": 256},
        num_examples={"de-en": 8000},
        romanian_teacher={"steps": 600},
        romanian=few,
        bart_teacher={"steps": 400, "batch_tokens": 600},
        bart=few | {"batch_tokens": 600},
    )
    return _variants(base, sizes)


def captions() -> list[PairRecipe]:
    """The ablations of Multi30k's models, whose teacher translates well: what it writes is worth learning from."""
    base = _base(specdec_recipes.captions())
    return [*_ablations(base), *_as_printed(base)]


def tiny() -> list[PairRecipe]:
    """The same shapes, tiny: seconds, for tests and continuous integration."""
    base = _base(specdec_recipes.tiny())
    batches: Changes = {"batch_tokens": 320, "steps": 100}
    sizes = Sizes(
        block_sizes=BLOCK_SIZES["test"],
        short=0.5,
        others=1.0,
        big_verifier={"width": 48, "ff_width": 96},
        big_drafter={"width": 64, "ff_width": 128},
        deep={"num_encoder_layers": 3, "num_layers": 1, "shallow_frac": 0.5, "shallow_layers": 1},
        heads=base.drafter.block_size - 1,
        big_heads=3,
        head_training={"steps": 100, "learning_rate": 3e-3, "draws_head": False},
        num_examples={},
        romanian_teacher={},
        romanian={},
        summaries=_summaries_corpus(base, 160, max_source=96, max_target=32),
        bart_teacher=batches,
        bart=batches,
    )
    return _variants(base, sizes)


def paper() -> list[PairRecipe]:
    """Differs from the paper: BART as released, pre-trained, wrote its summaries; here one of its size learns from
    CNN/DailyMail alone. How long the paper's blockwise heads were trained is not recovered: as long as a drafter.
    """
    base = _base(specdec_recipes.paper())
    rates: Changes = {
        "learning_rate": 1e-3,
        "dropout": 0.2,
        "warmup_frac": 4000 / 50_000,
        "steps": 50_000,
        "batch_tokens": 64_000,
    }
    sizes = Sizes(
        block_sizes=BLOCK_SIZES["paper"],
        short=1.0,
        others=1.0,
        big_verifier=_shape(base.teacher),
        big_drafter=_shape(base.teacher) | {"block_size": 30},
        deep={"num_encoder_layers": 12, "num_layers": 2},
        heads=29,
        big_heads=9,
        head_training={},
        num_examples=dict.fromkeys(("en-ro", "ro-en"), 610_320),
        romanian_teacher=_shape(base.verifier) | rates,
        romanian=rates,
        summaries=_summaries_corpus(base, 287_113, max_source=1024, max_target=142, vocab_size=50_265),
        bart_teacher={
            "width": 1024,
            "ff_width": 4096,
            "num_heads": 16,
            "num_encoder_layers": 12,
            "num_layers": 12,
            "activation": "gelu",
        },
        bart={"width": 768, "ff_width": 3072, "num_heads": 12, "activation": "gelu"},
    )
    return _variants(base, sizes)


def _variants(base: Base, sizes: Sizes) -> list[PairRecipe]:
    pairs = [recipe for pair in PAIRS for recipe in _pair(base, sizes, pair)]
    verifier, drafter = _big(base, sizes)
    return [
        *_ablations(base),
        *_block_sizes(base, sizes),
        *([] if drafter.initial is None else [drafter.initial]),
        *(verifier, drafter),
        _heads("specdec-blockwise", base.verifier, sizes.heads, sizes),
        _heads("specdec-big-blockwise", verifier, sizes.big_heads, sizes),
        *_three_teachers(base, (base.verifier, base.drafter), (verifier, drafter)),
        *_deep(base, sizes),
        _sharing(base),
        *pairs,
        *_summarizers(base, sizes),
    ]


def _ablations(base: Base) -> list[PairRecipe]:
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


def _as_printed(base: Base) -> list[PairRecipe]:
    """With the paper's loss, in which all places of a block count alike, and glancing or not. What glancing gives grows with
    the updates: of the tokens a round 0.6 % after as many as the base drafter's, 1.2 % after three times as many.
    """
    drafter = replace(base.drafter, name=f"{base.drafter.name}-printed", place_decay=1.0, steps=3 * base.drafter.steps)
    return [replace(drafter, glancing=MILD_GLANCING), replace(drafter, name=f"{drafter.name}-plain", glancing=None)]


def _block_sizes(base: Base, sizes: Sizes) -> list[PairRecipe]:
    drafter = _shortened(base.drafter, sizes.short)
    return [replace(drafter, name=f"specdec-drafter-k{k}", block_size=k) for k in sizes.block_sizes]


def _big(base: Base, sizes: Sizes) -> tuple[PairRecipe, DrafterRecipe]:
    """A big verifier, and a big drafter, which drafts for the base verifier too."""
    verifier = replace(_shortened(base.verifier, sizes.others), name="specdec-big-verifier", **sizes.big_verifier)
    drafter = replace(_shortened(base.drafter, sizes.short), name="specdec-big-drafter", verifier=verifier, **sizes.big_drafter)
    if base.drafter.initial is None:
        return verifier, drafter
    start = replace(
        _shortened(base.drafter.initial, sizes.others), name="specdec-big-start", corpus=drafter.corpus, **_shape(drafter)
    )
    return verifier, replace(drafter, initial=start)


def _heads(name: str, verifier: PairRecipe, count: int, sizes: Sizes) -> BlockwiseRecipe:
    """A head's hidden size is the verifier's width (Stern et al. Section 6)."""
    shared = {
        field: getattr(verifier, field) for field in (*SHAPE, "corpus", "batch_tokens", "steps", "average_every", "wants_gpu")
    }
    shared |= {"ff_width": verifier.width, "num_layers": 0, "num_encoder_layers": 0}
    return BlockwiseRecipe(name=name, family="blockwise", verifier=verifier, num_drafts=count, **(shared | sizes.head_training))


def _three_teachers(base: Base, *pairs: tuple[PairRecipe, DrafterRecipe]) -> list[PairRecipe]:
    """Verifiers and drafters on what three teachers write, of whom the others differ from the first by their seeds."""
    teachers = [replace(base.teacher, seed=base.teacher.seed + number) for number in range(3)]
    written, found = distilled_by_all(teachers, "specdec-distilled-3t"), list[PairRecipe]()
    for verifier, drafter in pairs:
        theirs = replace(verifier, name=f"{verifier.name}-3t", corpus=written)
        found += [theirs, replace(drafter, name=f"{drafter.name}-3t", corpus=written, verifier=theirs)]
    return found


def _deep(base: Base, sizes: Sizes) -> list[PairRecipe]:
    """A deep encoder, a shallow decoder: verifier and drafter have one shape."""
    changes = _shape(base.drafter) | sizes.deep
    verifier = replace(_shortened(base.verifier, sizes.others), name="specdec-deep-verifier", **changes)
    initial = None if base.drafter.initial is None else verifier
    drafter = replace(_shortened(base.drafter, sizes.short), name="specdec-deep-drafter", verifier=verifier, initial=initial)
    return [verifier, replace(drafter, **_shape(verifier))]


def _sharing(base: Base) -> SharedEncoderRecipe:
    """For the base verifier, whose encoder it shares: as wide as that one, as deep as the base drafter."""
    kept = {field.name: getattr(base.drafter, field.name) for field in fields(DrafterRecipe)}
    shape = _shape(base.verifier) | {"num_layers": base.drafter.num_layers}
    return SharedEncoderRecipe(**(kept | shape | {"name": "specdec-drafter-shared", "initial": base.verifier}))


def _pair(base: Base, sizes: Sizes, pair: str) -> list[PairRecipe]:
    """Another pair of languages, or another direction."""
    romanian = "ro" in pair
    changes, teacher_changes = (sizes.romanian, sizes.romanian_teacher) if romanian else ({}, {})
    [part] = base.teacher.corpus.parts
    part = replace(part, task=f"wmt-{pair}", num_examples=sizes.num_examples.get(pair, part.num_examples))
    corpus = replace(base.teacher.corpus, name=f"specdec-{pair}", parts=(part,))
    teacher = _shortened(base.teacher, sizes.others)
    teacher = replace(teacher, name=f"specdec-{pair}-teacher", corpus=corpus, **teacher_changes)
    return [teacher, *_taught(base, sizes, teacher, changes, changes)]


def _summarizers(base: Base, sizes: Sizes) -> list[PairRecipe]:
    shared: Changes = {"family": "bart"}
    teacher = _shortened(base.teacher, sizes.others)
    teacher = replace(teacher, name="specdec-bart-teacher", corpus=sizes.summaries, **(shared | sizes.bart_teacher))
    return [teacher, *_taught(base, sizes, teacher, shared | sizes.bart, sizes.bart | {"family": "bart-block"})]


def _taught(base: Base, sizes: Sizes, teacher: PairRecipe, changes: Changes, drafter_changes: Changes) -> list[PairRecipe]:
    """Verifier and drafter of another teacher, on what it writes."""
    name = teacher.name.removesuffix("-teacher")
    written = distilled(teacher, f"{name}-distilled")
    verifier = replace(_shortened(base.verifier, sizes.others), name=f"{name}-verifier", corpus=written, **changes)
    initial = None if base.drafter.initial is None else teacher
    shared: Changes = {"corpus": written, "verifier": verifier, "initial": initial} | drafter_changes
    return [verifier, replace(_shortened(base.drafter, sizes.short), name=f"{name}-drafter", **shared)]


def _base(recipes: list[PairRecipe]) -> Base:
    teacher, verifier, drafter = recipes
    assert isinstance(drafter, DrafterRecipe)
    return Base(teacher=teacher, verifier=verifier, drafter=drafter)


def _shortened(recipe: Model, share: float) -> Model:
    return replace(recipe, steps=round(recipe.steps * share))


SHAPE = ("width", "ff_width", "num_heads", "num_layers", "num_encoder_layers", "position_limit")


def _shape(recipe: PairRecipe) -> Changes:
    return {name: getattr(recipe, name) for name in SHAPE}


def _summaries_corpus(base: Base, num_examples: int, **lengths: Any) -> Corpus:
    """CNN/DailyMail, held-out rows as in translation."""
    part = Part(task="cnndm", num_examples=num_examples, style="t5")
    return replace(base.teacher.corpus, name="specdec-bart", parts=(part,), **lengths)
