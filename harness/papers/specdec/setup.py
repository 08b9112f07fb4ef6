"""The models, data and sizes that each profile has in place of SpecDec's (Xia et al.), and the experiments made of them.

A comparison is all the arms that share a verifier and are timed together: greedy decoding first (strict SpecDec must equal it),
beam search by us and by transformers (the faster is the paper's baseline), then whatever drafts. Tables that read the same
comparison share its records.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from harness.core.experiment import DrafterSpec, Experiment, MethodSpec, ModelSpec, comparison_id
from harness.core.settings import Settings
from harness.measures.statistics import Missing
from harness.tables.roles import CAPTIONS_FOR_NEWS, Roles, plain_decoding, role_model, with_draft
from harness.zoo.descriptions import DrafterRecipe, PairRecipe
from harness.zoo.recipes import RECIPES, Scale, scale_of
from harness.zoo.specdec import BLOCK_SIZES

PAPER, TITLE = "specdec", "SpecDec"
NUM_BEAMS = 5


@dataclass(frozen=True)
class Relaxed:
    """A setting of SpecDec++ (top-beta, tau)."""

    beta: int
    tau: float

    def __str__(self) -> str:
        return f"top-{self.beta}, tau {self.tau:g}"


QUALITY, EFFICIENCY = Relaxed(3, 1.0), Relaxed(5, 3.0)


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A setting of the paper: its task, and the roles of its verifier and drafter.

    The toy profile decodes ``limit`` sentences of generated data and ``real_limit`` of real data, which are five times as long.
    """

    task: str
    verifier: str
    drafter: str
    limit: int = 150
    real_limit: int = 100


# Where tables show a few percent, between rules or trainings, the toy profile decodes many sentences.
EN_DE = Setup(task="wmt-en-de", verifier="verifier", drafter="drafter", limit=400)
BIG = Setup(task="wmt-en-de", verifier="big-verifier", drafter="big-drafter")
BIG_THREE_TEACHERS = Setup(task="wmt-en-de", verifier="big-verifier-3t", drafter="big-drafter-3t")
RAW = Setup(task="wmt-en-de", verifier="verifier-raw", drafter="drafter-raw", limit=400)
THREE_TEACHERS = Setup(task="wmt-en-de", verifier="verifier-3t", drafter="drafter-3t")
TEACHER = Setup(task="wmt-en-de", verifier="teacher", drafter="drafter")
DE_EN_TEACHER = Setup(task="wmt-de-en", verifier="de-en-teacher", drafter="de-en-drafter")
DEEP_SHALLOW = Setup(task="wmt-en-de", verifier="deep-verifier", drafter="deep-drafter")
# Of one shape, as the paper's pair is.
ALIKE = Setup(task="wmt-en-de", verifier="alike-verifier", drafter="alike-drafter", limit=400)
CNNDM = Setup(task="cnndm", verifier="bart-verifier", drafter="bart-drafter", limit=100)
# Multi30k: real data only, and none of the paper's; all of its test sentences.
CAPTIONS = Setup(task="multi30k-en-de", verifier="multi30k-verifier", drafter="multi30k-drafter", real_limit=1000)
# The paper's development set, newstest2013; on generated data a few sentences, for comparisons of many arms.
DEVELOPMENT = Setup(task="wmt13-en-de", verifier="verifier", drafter="drafter", limit=100)
PAIRS = {
    pair: Setup(task=f"wmt-{pair.lower()}", verifier=f"{pair.lower()}-verifier", drafter=f"{pair.lower()}-drafter")
    for pair in ("DE-EN", "EN-RO", "RO-EN")
}

PUBLIC = Missing("no checkpoint is public; use profile toy or paper, or name a model for every role")
CAPTIONS_ALONE = Missing(
    "this profile's models learn from captions, and none in this role; use profile toy, or name one for it"
)
NOT_DEVELOPED = Missing("this profile translates captions, and no task here has their development set; use profile toy")
# What a profile translates in place of the paper's news.
TASKS: dict[str, dict[str, str | Missing]] = {"pocket": {EN_DE.task: CAPTIONS.task, DEVELOPMENT.task: NOT_DEVELOPED}}
ZOO: dict[str, str | Missing] = {
    **{
        role: f"zoo:specdec-{role}"
        for setup in (EN_DE, RAW, BIG, THREE_TEACHERS, BIG_THREE_TEACHERS, DEEP_SHALLOW, CNNDM, *PAIRS.values())
        for role in (setup.verifier, setup.drafter)
    },
    **{role: f"zoo:specdec-{role}" for role in ("teacher", "de-en-teacher", "drafter-shared")},
    "blockwise-heads": "zoo:specdec-blockwise",
    "big-blockwise-heads": "zoo:specdec-big-blockwise",
}


ON_CAPTIONS: dict[str, str | Missing] = {
    role: f"zoo:specdec-{role}"
    for role in (CAPTIONS.verifier, *(CAPTIONS.drafter + of for of in ("", "-glancing", "-raw", "-printed", "-printed-plain")))
}
T5: dict[str, str | Missing] = {"t5-large": "google-t5/t5-large"}  # of Tables 16 and 17


def _roles(scale: Scale) -> dict[str, str | Missing]:
    """Return the zoo's models by role, with a drafter for each block size.

    ``drafter-sized`` is the one that has the big drafter's block size. ``drafter-glancing`` differs from the base drafter in
    having no glancing, or in having it.
    """
    sizes = {f"drafter-k{k}": f"zoo:specdec-drafter-k{k}" for k in BLOCK_SIZES[scale]}
    alike = {} if scale == "paper" else {role: f"zoo:specdec-{role}" for role in (ALIKE.verifier, ALIKE.drafter)}
    large = T5 if scale == "paper" else {"t5-large": "zoo:t5-large"}
    switched = {"drafter-glancing": f"zoo:specdec-drafter-{'plain' if glances(scale) else 'glancing'}"}
    return ZOO | alike | sizes | switched | {"drafter-sized": f"zoo:specdec-drafter-k{block_size(scale, BIG.drafter)}"} | large


def _of_captions(role: str) -> str | Missing:
    """Return the model of captions in the role of one of news."""
    name = f"specdec-multi30k-{role}"
    return f"zoo:{name}" if name in RECIPES["pocket"] else CAPTIONS_ALONE


def block_size(scale: Scale, role: str) -> int:
    """Return the block size of the zoo's drafter for a role."""
    return _recipe(scale, role).block_size


def layers_of(settings: Settings, setup: Setup) -> str:
    """Return the numbers of layers of the zoo's verifier, as "encoder + decoder"."""
    recipe = RECIPES[_scale(settings)][f"specdec-{setup.verifier}"]
    assert isinstance(recipe, PairRecipe)
    return f"{recipe.num_encoder_layers} + {recipe.num_layers}"


def glances(scale: Scale) -> bool:
    """Tell whether the base drafter is trained with glancing."""
    return _recipe(scale, EN_DE.drafter).glancing is not None


def _recipe(scale: Scale, role: str) -> DrafterRecipe:
    recipe = RECIPES[scale][f"specdec-{role}"]
    assert isinstance(recipe, DrafterRecipe)
    return recipe


ROLES: Roles = {
    "toy": _roles("toy") | ON_CAPTIONS,
    "test": _roles("test"),
    "paper": _roles("paper"),
    "small": dict.fromkeys(_roles("paper"), PUBLIC) | T5,
    "pocket": {role: _of_captions(role) for role in _roles("toy")},
}

# Groups of comparisons that share a setting.
MAIN, SINGLE, HEADS, DRAFTERS = "main", "alone", "blockwise", "drafters"


@dataclass(frozen=True, kw_only=True)
class _Sizes:
    """The sizes of a profile.

    Sentences (None: the setting's), once each, since sentences differ more than repeats do; those of the tables by batch
    size, for times and for memory, and of the worked examples. Prompts are cut to what the zoo's sources were cut to in
    training; outputs may be longer than there. ``blockwise`` are the k of blockwise decoding.
    """

    limit: int | None
    num_threads: int | None = None
    max_source: int
    max_new_tokens: int
    max_article: int
    max_summary: int
    batches: tuple[int, ...] = (1, 4, 8, 16, 32)
    batch_limit: int
    memory_limit: int
    trace_limit: int = 60
    blockwise: tuple[int, int] = (2, 10)


_PUBLIC = _Sizes(
    limit=200, max_source=256, max_new_tokens=256, max_article=1024, max_summary=142, batch_limit=64,
    memory_limit=64,
)  # fmt: skip
SIZES = {
    # Operations of the zoo's models are too small to share: every arm takes as long on one thread as on two.
    "toy": _Sizes(
        limit=None, num_threads=1, max_source=160, max_new_tokens=96, max_article=160, max_summary=64,
        batch_limit=192, memory_limit=32,
    ),
    "pocket": _Sizes(
        limit=100, max_source=160, max_new_tokens=96, max_article=640, max_summary=64, batch_limit=64, memory_limit=32,
    ),
    "test": _Sizes(
        limit=4, num_threads=1, max_source=160, max_new_tokens=32, max_article=96, max_summary=32,
        batches=(1, 2), batch_limit=4, memory_limit=4, trace_limit=4, blockwise=(2, 4),
    ),
    "small": _PUBLIC,
    "paper": replace(_PUBLIC, limit=3003, batch_limit=320, memory_limit=320),
}  # fmt: skip

# Names of arms, as the tables call them.
GREEDY, BEAM, THEIR_BEAM = "AT, b = 1", "AT, b = 5", "AT, b = 5, transformers"
ALONE, STRICT, HIGH_QUALITY, HIGH_EFFICIENCY = "NAT drafter", "SpecDec", "SpecDec++ quality", "SpecDec++ efficiency"
Arms = dict[str, Experiment | Missing]


model_of = partial(role_model, ROLES)  # (settings, role) -> the name of the model that fills it, or why none does


def drafter_of(settings: Settings, role: str, kind: str = "block", **options: str) -> DrafterSpec | Missing:
    """Return a block drafter, or with kind "blockwise" heads on the verifier."""
    model = model_of(settings, role)
    return model if isinstance(model, Missing) else DrafterSpec(kind=kind, model=ModelSpec(name=model), options=options)


def gamma_of(settings: Settings, setup: Setup) -> int:
    """Return the block size k that the drafter was trained with."""
    return block_size(_scale(settings), setup.drafter)


def glancing_in(settings: Settings) -> bool:
    """Tell whether the base drafter glances and the ablated one does not, or the other way round."""
    return glances(_scale(settings))


def _scale(settings: Settings) -> Scale:
    """Return the zoo's scale that has all of its recipes; a profile without models of its own has the paper's sizes."""
    return "paper" if settings.profile == "small" else "toy" if settings.profile == "pocket" else scale_of(settings.profile)


def block_sizes(settings: Settings) -> tuple[int, ...]:
    """Return the block sizes of Table 2."""
    return BLOCK_SIZES[_scale(settings)]


def task_of(settings: Settings, setup: Setup) -> str | Missing:
    """Return the task of a setting as a profile has it."""
    return TASKS.get(settings.profile, {}).get(setup.task, setup.task)


def data_of(settings: Settings, arms: Sequence[Experiment]) -> str:
    """Say which data stand in for the paper's news in a table of these arms; empty where none do."""
    if not any(arm.task == task_of(settings, EN_DE) != EN_DE.task for arm in arms):
        return ""
    return CAPTIONS_FOR_NEWS


def greedy(settings: Settings, setup: Setup, group: str) -> Experiment | Missing:
    """Return greedy decoding by the verifier at batch 1; its times belong to the comparison that ``group`` names."""
    target, task, sizes = model_of(settings, setup.verifier), task_of(settings, setup), SIZES[settings.profile]
    if isinstance(target, Missing):
        return target
    if isinstance(task, Missing):
        return task
    summarizes = task == CNNDM.task
    return plain_decoding(
        settings,
        task=task,
        target=ModelSpec(name=target),
        limit=settings.limit or sizes.limit or (setup.limit if settings.source == "toy" else setup.real_limit),
        repeats=settings.repeats or 1,
        max_new_tokens=sizes.max_summary if summarizes else sizes.max_new_tokens,
        max_input_tokens=sizes.max_article if summarizes else sizes.max_source,
        prompt_style="t5",
        comparison=comparison_id(PAPER, group, settings.models),
        num_threads=sizes.num_threads,
        replicas=settings.replicas if group == MAIN else 1,
    )


def beam(plain: Experiment | Missing, method: str = "beam") -> Experiment | Missing:
    """Return the same by our beam search, or by transformers' over the same weights."""
    return plain if isinstance(plain, Missing) else plain.replace(method=MethodSpec.of(method, num_beams=NUM_BEAMS))


def strict(plain: Experiment | Missing, drafter: DrafterSpec | Missing, gamma: int) -> Experiment | Missing:
    """Return the same by SpecDec: a draft stands where it is the verifier's first choice."""
    return with_draft(plain, drafter, rule="top-1", gamma=gamma)


def relaxed(plain: Experiment | Missing, drafter: DrafterSpec | Missing, gamma: int, setting: Relaxed) -> Experiment | Missing:
    """Return the same by SpecDec++ (top-beta, tau), scored by the verifier as in the authors' code."""
    return with_draft(plain, drafter, rule="top-beta", gamma=gamma, beta=setting.beta, tau=setting.tau)


def baselines(plain: Experiment | Missing) -> Arms:
    """Return the arms that speeds are measured against."""
    return {GREEDY: plain, BEAM: beam(plain), THEIR_BEAM: beam(plain, "transformers")}


def beam_alone(settings: Settings, setup: Setup) -> Arms:
    """Return beam search alone, which shows how good a model is; its times are compared with nothing."""
    plain = greedy(settings, setup, SINGLE)
    return {BEAM: plain if isinstance(plain, Missing) else beam(plain.replace(repeats=1))}


def arms_of(settings: Settings, setup: Setup, group: str = MAIN) -> Arms:
    """Return the comparison of a setting. The tables of one group share its records."""
    plain, drafter, gamma = greedy(settings, setup, group), drafter_of(settings, setup.drafter), gamma_of(settings, setup)
    return {
        **baselines(plain),
        ALONE: with_draft(plain, drafter, method="drafter-alone", gamma=gamma),
        STRICT: strict(plain, drafter, gamma),
        HIGH_QUALITY: relaxed(plain, drafter, gamma, QUALITY),
        HIGH_EFFICIENCY: relaxed(plain, drafter, gamma, EFFICIENCY),
    }
