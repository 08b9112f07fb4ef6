"""SpecDec's recipes (Xia et al.): teacher, verifier and drafter, English to German, and the variants that the paper compares.

Tables 2, 4 to 6, 8, 10 and 11 need the variants, and our ablations do. Drafters that are compared for their training alone
have as many updates: those of the ablations (glancing, distillation) and of three teachers as many as the base drafter, those
of each block size and all others a share of them (``SHARES``). A drafter of another shape than the base teacher's begins with
a model of its shape, where the base drafter begins with one.

Toy sizes: most words are one token and batches are a handful of sentences, because small models lack updates, above all until
their attention has found the source. The verifier's decoder is deep and narrow, so that verifying a block costs little more
than one token, as in a large model; most of its layers join late (see ``networks``). The drafter begins with the teacher's
weights, which have its shape; the paper's begins with none. The teacher learns longest for its size: where it errs, its corpus
is noise that neither of the others can learn.
"""

from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

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

Changes = dict[str, Any]
Model = TypeVar("Model", bound=PairRecipe)
PAIRS = ("de-en", "en-ro", "ro-en")
SHAPE = ("width", "ff_width", "num_heads", "num_layers", "num_encoder_layers", "position_limit")
# The authors' (0.5, 0.3) cost a short training more: 1.15 accepted tokens a round, not 1.64, after nearly as many updates.
MILD_GLANCING = (0.3, 0.0)
# Of the paper's Table 2 the text tells 25, the best, and Section 4.3 adds 30; the others are ours.
BLOCK_SIZES: dict[str, tuple[int, ...]] = {"toy": (2, 4, 6, 8, 12), "test": (3, 6), "paper": (10, 15, 20, 25, 30)}

# A few hundred steps need these settings instead of the paper's, which are for 300,000.
SHORT: Changes = {
    "position_limit": 512, "num_heads": 4, "rate_schedule": "cosine", "warmup_frac": 0.1, "num_averaged": 5, "dropout": 0.0,
    "embedding_rate_scale": 5.0, "label_smoothing": 0.0,
}  # fmt: skip
# Glancing costs a third more time and gives nothing with this loss: see Table 5 of the paper, catalogue 16.
BLOCK: Changes = {"block_size": 8, "activation": "relu", "glancing": None, "place_decay": 0.75}
TOY: Changes = SHORT | {"average_every": 10, "num_encoder_layers": 2}
TOY_WIDE: Changes = {"width": 128, "ff_width": 512, "num_layers": 2}
REAL: Changes = SHORT | {"average_every": 25, "num_encoder_layers": 2}
REAL_VERIFIER: Changes = {"width": 96, "ff_width": 192, "num_layers": 24, "shallow_frac": 0.8, "shallow_layers": 3}
TINY: Changes = SHORT | {"batch_tokens": 64, "average_every": 2, "learning_rate": 3e-3, "num_encoder_layers": 1}
TINY_WIDE: Changes = {"width": 48, "ff_width": 96, "num_layers": 1}
LARGE: Changes = {"position_limit": 1024, "batch_tokens": 128_000, "steps": 300_000, "wants_gpu": True}
PAPER_BIG: Changes = {"width": 1024, "ff_width": 4096, "num_heads": 16, "num_encoder_layers": 6, "num_layers": 6}
PAPER_BASE: Changes = {"width": 512, "ff_width": 2048, "num_heads": 8, "num_encoder_layers": 6, "num_layers": 6}


def _real(steps: int, verifier_steps: int, drafter_steps: int, **corpus: Any) -> dict[str, Changes]:
    """A few epochs of real text in larger batches; the verifier is somewhat wider than on toy text."""
    wide = REAL | TOY_WIDE | {"learning_rate": 1.2e-3}
    return {
        "corpus": {"vocab_size": 4096, "num_held_out": 128} | corpus,
        "teacher": wide | {"batch_tokens": 700, "steps": steps},
        "verifier": REAL | REAL_VERIFIER | {"batch_tokens": 700, "learning_rate": 1.5e-3, "steps": verifier_steps},
        "drafter": wide | BLOCK | {"batch_tokens": 800, "steps": drafter_steps},
    }


# The base models of each scale. "real" is the toy scale on news and captions, for about four times as long as on toy text;
# "captions" is it on Multi30k alone: short sentences on few subjects, of which 29,000 pairs teach a small model to translate.
# Paper (4, 5.3.1, Table 7): a Transformer-big teacher, base verifier and drafter, blocks of 25 tokens.
# Differs from the paper: the sources begin with T5's instruction, as every encoder-decoder of the zoo is prompted; the update
# count of teacher and verifier and the teacher's dropout are not recovered: the drafter's 300,000, and Ott et al.'s. A batch's
# 128K tokens count targets and half of the sources, where fairseq counts the longer side: a third fewer sentences.
BASES: dict[str, dict[str, Changes]] = {
    "toy": {
        "corpus": {"vocab_size": 2048, "num_examples": 8000, "num_held_out": 128},
        "teacher": TOY | TOY_WIDE | {"batch_tokens": 192, "learning_rate": 8.5e-4, "steps": 3400},
        "verifier": TOY | {
            "width": 64, "ff_width": 128, "num_layers": 24, "shallow_frac": 0.8, "shallow_layers": 2,
            "batch_tokens": 192, "learning_rate": 1.4e-3, "steps": 5000,
        },
        "drafter": TOY | TOY_WIDE | BLOCK | {"batch_tokens": 384, "learning_rate": 8e-4, "steps": 4600},
    },
    "test": {
        "corpus": {"vocab_size": 1024, "num_examples": 320, "num_held_out": 24, "max_target": 32},
        "teacher": TINY | TINY_WIDE | {"steps": 400},
        "verifier": TINY | {
            "width": 32, "ff_width": 64, "num_layers": 3, "shallow_frac": 0.5, "shallow_layers": 1, "steps": 200,
        },
        "drafter": TINY | TINY_WIDE | {"block_size": 6, "activation": "relu", "steps": 200},
    },
    "real": _real(5000, 4000, 3000, num_examples=42_000),
    "captions": _real(6500, 6000, 4500, num_examples=29_000, name="specdec-multi30k", task="multi30k-en-de"),
    "paper": {
        "corpus": {
            "vocab_size": 32_768, "num_examples": 4_500_000, "num_held_out": 3000, "max_source": 256, "max_target": 256,
        },
        "teacher": LARGE | PAPER_BIG | {"dropout": 0.3},
        "verifier": LARGE | PAPER_BASE,
        "drafter": LARGE | PAPER_BASE,
    },
}  # fmt: skip

# Shares of the base models' updates: of the drafter's, and of the teacher's and the verifier's for other data or shapes.
SHARES = {"toy": (0.4, 0.6), "real": (0.3, 0.25), "test": (0.5, 1.0), "paper": (1.0, 1.0)}
# The base and the big verifier's blockwise heads: one fewer than tokens in a block.
NUM_HEADS = {"toy": (7, 9), "real": (7, 9), "test": (5, 3), "paper": (29, 9)}
# Rows of a pair of languages that has others than the base pair.
NUM_EXAMPLES: dict[str, dict[str, int]] = {"real": {"de-en": 8000}, "paper": {"en-ro": 610_320, "ro-en": 610_320}}
TOY_VARIANTS: dict[str, Changes] = {
    "big-verifier": {"width": 96, "ff_width": 192},
    "big-drafter": {"width": 192, "ff_width": 768},
    "deep": {"num_encoder_layers": 6, "num_layers": 2, "shallow_frac": 0.5, "shallow_layers": 2},
    "heads": {"steps": 1500, "learning_rate": 2e-3, "draws_head": False},
    "summaries": {"num_examples": 4000, "max_source": 160, "max_target": 96},
    "bart-teacher": {"batch_tokens": 320},
    "bart": {"batch_tokens": 320},
}
ROMANIAN: Changes = {
    "learning_rate": 1e-3, "dropout": 0.2, "warmup_frac": 4000 / 50_000, "steps": 50_000, "batch_tokens": 64_000,
}  # fmt: skip
# The variants' differences from the base models. Of Romanian and of summaries there may be few real rows, which many more
# updates would only learn by heart.
# Differs from the paper: BART as released, pre-trained, wrote its summaries; here one of its size learns from CNN/DailyMail
# alone. How long the paper's blockwise heads were trained is not recovered: as long as a drafter.
VARIANTS: dict[str, dict[str, Changes]] = {
    "toy": TOY_VARIANTS,
    "real": TOY_VARIANTS | {
        "big-verifier": {"width": 128, "ff_width": 256},
        "romanian-teacher": {"steps": 600},
        "romanian": {"steps": 400},
        "bart-teacher": {"steps": 400, "batch_tokens": 600},
        "bart": {"steps": 400, "batch_tokens": 600},
    },
    "test": {
        "big-verifier": {"width": 48, "ff_width": 96},
        "big-drafter": {"width": 64, "ff_width": 128},
        "deep": {"num_encoder_layers": 3, "num_layers": 1, "shallow_frac": 0.5, "shallow_layers": 1},
        "heads": {"steps": 100, "learning_rate": 3e-3, "draws_head": False},
        "summaries": {"num_examples": 160, "max_source": 96, "max_target": 32},
        "bart-teacher": {"batch_tokens": 320, "steps": 100},
        "bart": {"batch_tokens": 320, "steps": 100},
    },
    "paper": {
        "big-verifier": PAPER_BIG,
        "big-drafter": PAPER_BIG | {"block_size": 30},
        "deep": {"num_encoder_layers": 12, "num_layers": 2},
        "romanian-teacher": PAPER_BASE | ROMANIAN,
        "romanian": ROMANIAN,
        "summaries": {"num_examples": 287_113, "max_source": 1024, "max_target": 142, "vocab_size": 50_265},
        "bart-teacher": PAPER_BIG | {"num_encoder_layers": 12, "num_layers": 12, "activation": "gelu"},
        "bart": {"width": 768, "ff_width": 3072, "num_heads": 12, "activation": "gelu"},
    },
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _Scale:
    """The base models of a scale, of which all others are variants, and what the variants change."""

    name: str
    teacher: PairRecipe
    verifier: PairRecipe
    drafter: DrafterRecipe

    def changes(self, variant: str) -> Changes:
        return VARIANTS[self.name].get(variant, {})

    def shorter_drafter(self) -> DrafterRecipe:
        return _shortened(self.drafter, SHARES[self.name][0])

    def shorter(self, recipe: Model) -> Model:
        return _shortened(recipe, SHARES[self.name][1])


def specdec_recipes(scale: str) -> list[PairRecipe]:
    """All of SpecDec's recipes at a scale: a key of ``BASES``."""
    base = _base(scale)
    models = [base.teacher, base.verifier, base.drafter]
    if scale == "captions":  # its teacher translates well: what it writes is worth learning from
        return [*models, *_ablations(base), *_as_printed(base)]
    return [*models, *_variants(base)]


def _base(scale: str) -> _Scale:
    changes = BASES[scale]
    corpus = _corpus(**changes["corpus"])
    teacher = PairRecipe(name=f"{corpus.name}-teacher", corpus=corpus, family="marian", **changes["teacher"])
    written = distilled(teacher, f"{corpus.name}-distilled")
    verifier = PairRecipe(name=f"{corpus.name}-verifier", corpus=written, family="marian", **changes["verifier"])
    drafter = DrafterRecipe(
        name=f"{corpus.name}-drafter",
        corpus=written,
        family="block",
        verifier=verifier,
        initial=None if scale == "paper" else teacher,
        **changes["drafter"],
    )
    return _Scale(name=scale, teacher=teacher, verifier=verifier, drafter=drafter)


def _corpus(
    *,
    vocab_size: int,
    num_examples: int,
    num_held_out: int,
    task: str = "wmt-en-de",
    name: str = "specdec",
    max_source: int = 160,
    max_target: int = 96,
) -> Corpus:
    """One joint vocabulary of both languages."""
    return Corpus(
        name=name,
        family="marian",
        parts=(Part(task=task, num_examples=num_examples, style="t5"),),
        vocab_size=vocab_size,
        max_source=max_source,
        max_target=max_target,
        num_held_out=num_held_out,
    )


def _variants(base: _Scale) -> list[PairRecipe]:
    verifier, drafter = _big(base)
    few, many = NUM_HEADS[base.name]
    return [
        *_ablations(base),
        *_block_sizes(base),
        *([] if drafter.initial is None else [drafter.initial]),
        *(verifier, drafter),
        _heads("specdec-blockwise", base.verifier, few, base),
        _heads("specdec-big-blockwise", verifier, many, base),
        *_three_teachers(base, (base.verifier, base.drafter), (verifier, drafter)),
        *_deep(base),
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
    """With the paper's loss, in which all places of a block count alike, and glancing or not. What glancing gives grows with
    the updates: of the tokens a round 0.6 % after as many as the base drafter's, 1.2 % after three times as many.
    """
    drafter = replace(base.drafter, name=f"{base.drafter.name}-printed", place_decay=1.0, steps=3 * base.drafter.steps)
    return [replace(drafter, glancing=MILD_GLANCING), replace(drafter, name=f"{drafter.name}-plain", glancing=None)]


def _block_sizes(base: _Scale) -> list[PairRecipe]:
    sizes = BLOCK_SIZES["toy" if base.name == "real" else base.name]
    return [replace(base.shorter_drafter(), name=f"specdec-drafter-k{size}", block_size=size) for size in sizes]


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
    written, found = distilled_by_all(teachers, "specdec-distilled-3t"), list[PairRecipe]()
    for verifier, drafter in pairs:
        verifier = replace(verifier, name=f"{verifier.name}-3t", corpus=written)
        found += [verifier, replace(drafter, name=f"{drafter.name}-3t", corpus=written, verifier=verifier)]
    return found


def _deep(base: _Scale) -> list[PairRecipe]:
    """A deep encoder, a shallow decoder: verifier and drafter have one shape."""
    verifier = base.shorter(base.verifier)
    verifier = replace(verifier, name="specdec-deep-verifier", **(shape_of(base.drafter) | base.changes("deep")))
    initial = None if base.drafter.initial is None else verifier
    drafter = replace(base.shorter_drafter(), name="specdec-deep-drafter", verifier=verifier, initial=initial)
    return [verifier, replace(drafter, **shape_of(verifier))]


def _sharing(base: _Scale) -> SharedEncoderRecipe:
    """For the base verifier, whose encoder it shares: as wide as that one, as deep as the base drafter."""
    kept = {field.name: getattr(base.drafter, field.name) for field in fields(DrafterRecipe)}
    shape = shape_of(base.verifier) | {"num_layers": base.drafter.num_layers}
    return SharedEncoderRecipe(**(kept | shape | {"name": "specdec-drafter-shared", "initial": base.verifier}))


def _pair(base: _Scale, pair: str) -> list[PairRecipe]:
    """Another pair of languages, or another direction."""
    romanian = "ro" in pair
    changes, teacher_changes = (base.changes("romanian"), base.changes("romanian-teacher")) if romanian else ({}, {})
    [part] = base.teacher.corpus.parts
    num_examples = NUM_EXAMPLES.get(base.name, {}).get(pair, part.num_examples)
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
