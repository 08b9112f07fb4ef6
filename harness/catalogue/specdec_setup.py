"""Which models, data and sizes stand for those of SpecDec (Xia et al.) in each profile, and the experiments made of them.

A comparison is all the arms that share a verifier and are timed together: greedy decoding first (strict SpecDec must equal it),
beam search by us and by transformers (the faster is the paper's baseline), then whatever drafts. Tables that read the same
comparison share its records.
"""

from dataclasses import dataclass, replace

from harness import zoo
from harness.catalogue.base import Settings
from harness.catalogue.roles import Absent, Roles, role_model
from harness.experiment import Comparison, DrafterSpec, Experiment, MethodSpec, ModelSpec
from harness.models import scale_of
from harness.zoo.descriptions import DrafterRecipe, PairRecipe
from harness.zoo.specdec_variants import BLOCK_SIZES

PAPER = "specdec"
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
    """One of the paper's settings: its task, and the roles of its verifier and drafter."""

    task: str
    verifier: str
    drafter: str
    limit: int | None = None  # None: the profile's
    repeats: int | None = None


EN_DE = Setup(task="wmt-en-de", verifier="verifier", drafter="drafter")
BIG = Setup(task="wmt-en-de", verifier="big-verifier", drafter="big-drafter")
BIG_THREE_TEACHERS = Setup(task="wmt-en-de", verifier="big-verifier-3t", drafter="big-drafter-3t")
RAW = Setup(task="wmt-en-de", verifier="verifier-raw", drafter="drafter-raw")
THREE_TEACHERS = Setup(task="wmt-en-de", verifier="verifier-3t", drafter="drafter-3t")
TEACHER = Setup(task="wmt-en-de", verifier="teacher", drafter="drafter")
DE_EN_TEACHER = Setup(task="wmt-de-en", verifier="de-en-teacher", drafter="de-en-drafter")
DEEP_SHALLOW = Setup(task="wmt-en-de", verifier="deep-verifier", drafter="deep-drafter")
CNNDM = Setup(task="cnndm", verifier="bart-verifier", drafter="bart-drafter")
# Multi30k: real data only, and none of the paper's. All of its test sentences: what is to be seen there are a few percent.
CAPTIONS = Setup(task="multi30k-en-de", verifier="multi30k-verifier", drafter="multi30k-drafter", limit=1000, repeats=1)
# The paper's development set, newstest2013.
DEVELOPMENT = Setup(task="wmt13-en-de", verifier="verifier", drafter="drafter")
PAIRS = {
    pair: Setup(task=f"wmt-{pair.lower()}", verifier=f"{pair.lower()}-verifier", drafter=f"{pair.lower()}-drafter")
    for pair in ("DE-EN", "EN-RO", "RO-EN")
}

PUBLIC = Absent("no checkpoint is public; use profile toy or paper, or name a model for every role")
ZOO: dict[str, str | Absent] = {
    **{
        role: f"zoo:specdec-{role}"
        for setup in (EN_DE, RAW, BIG, THREE_TEACHERS, BIG_THREE_TEACHERS, DEEP_SHALLOW, CNNDM, *PAIRS.values())
        for role in (setup.verifier, setup.drafter)
    },
    **{role: f"zoo:specdec-{role}" for role in ("teacher", "de-en-teacher", "drafter-shared")},
    "blockwise-heads": "zoo:specdec-blockwise",
    "big-blockwise-heads": "zoo:specdec-big-blockwise",
}


ON_CAPTIONS: dict[str, str | Absent] = {
    role: f"zoo:specdec-{role}"
    for role in (CAPTIONS.verifier, *(CAPTIONS.drafter + of for of in ("", "-glancing", "-raw", "-printed", "-printed-plain")))
}
T5: dict[str, str | Absent] = {"t5-large": "google-t5/t5-large"}  # of Tables 16 and 17


def _roles(scale: zoo.Scale) -> dict[str, str | Absent]:
    """With a drafter for each block size; ``drafter-sized`` is the one that has the big drafter's, ``drafter-glancing`` the one
    that differs from the base drafter in having no glancing, or in having it."""
    sizes = {f"drafter-k{k}": f"zoo:specdec-drafter-k{k}" for k in BLOCK_SIZES[scale]}
    large = T5 if scale == "paper" else {"t5-large": "zoo:t5-large"}
    switched = {"drafter-glancing": f"zoo:specdec-drafter-{'plain' if glances(scale) else 'glancing'}"}
    return ZOO | sizes | switched | {"drafter-sized": f"zoo:specdec-drafter-k{block_size(scale, BIG.drafter)}"} | large


def block_size(scale: zoo.Scale, role: str) -> int:
    """That of the zoo's drafter for a role."""
    return _recipe(scale, role).block_size


def layers_of(settings: Settings, setup: Setup) -> str:
    """Of the verifier: "encoder + decoder", as the zoo's has them."""
    recipe = zoo.RECIPES[_scale(settings)][f"specdec-{setup.verifier}"]
    assert isinstance(recipe, PairRecipe)
    return f"{recipe.num_encoder_layers} + {recipe.num_layers}"


def glances(scale: zoo.Scale) -> bool:
    """Whether the base drafter is trained with glancing."""
    return _recipe(scale, EN_DE.drafter).glancing is not None


def _recipe(scale: zoo.Scale, role: str) -> DrafterRecipe:
    recipe = zoo.RECIPES[scale][f"specdec-{role}"]
    assert isinstance(recipe, DrafterRecipe)
    return recipe


ROLES: Roles = {
    "toy": _roles("toy") | ON_CAPTIONS,
    "test": _roles("test"),
    "paper": _roles("paper"),
    "small": dict.fromkeys(_roles("paper"), PUBLIC) | T5,
}

# Sizes per profile. Prompts are cut to what the zoo's sources were cut to in training; outputs may be longer than there.
BLOCKWISE = {"toy": (2, 10), "test": (2, 4), "small": (2, 10), "paper": (2, 10)}
LIMIT = {"toy": 80, "test": 4, "small": 200, "paper": 3003}
REAL_LIMIT = LIMIT | {"toy": 40}  # real sentences are five times as long as generated ones
# Operations of the zoo's models are too small to share: every arm takes as long on one thread as on two.
NUM_THREADS = {"toy": 1, "test": 1, "small": None, "paper": None}
REPEATS = {"toy": 3, "test": 1, "small": 1, "paper": 1}
# Groups of comparisons whose tables show a few percent, between rules, teachers or trainings: so many sentences of toy
# translation, once each, since sentences differ more than repeats do.
MAIN, SINGLE, HEADS, DRAFTERS = "main", "alone", "blockwise", "drafters"
MANY = {MAIN: 400, SINGLE: 400, HEADS: 400, DRAFTERS: 1000}
MAX_SOURCE = {"toy": 160, "test": 160, "small": 256, "paper": 256}
MAX_NEW_TOKENS = {"toy": 96, "test": 32, "small": 256, "paper": 256}
MAX_ARTICLE = {"toy": 160, "test": 96, "small": 1024, "paper": 1024}
MAX_SUMMARY = {"toy": 64, "test": 32, "small": 142, "paper": 142}

# Names of arms, as the tables call them.
GREEDY, BEAM, THEIR_BEAM = "AT, b = 1", "AT, b = 5", "AT, b = 5, transformers"
ALONE, STRICT, HIGH_QUALITY, HIGH_EFFICIENCY = "NAT drafter", "SpecDec", "SpecDec++ quality", "SpecDec++ efficiency"
ARMS = (GREEDY, BEAM, THEIR_BEAM, ALONE, STRICT, HIGH_QUALITY, HIGH_EFFICIENCY)
Arms = dict[str, Experiment | Absent]


def model_of(settings: Settings, role: str) -> str | Absent:
    """The model that fills a role: the user's, else the profile's."""
    return role_model(ROLES, settings, role)


def drafter_of(settings: Settings, role: str, kind: str = "block", encoder: str = "own") -> DrafterSpec | Absent:
    """A block drafter, or with kind "blockwise" heads on the verifier."""
    model = model_of(settings, role)
    return model if isinstance(model, Absent) else DrafterSpec(kind=kind, model=ModelSpec(name=model), encoder=encoder)


def gamma_of(settings: Settings, setup: Setup) -> int:
    """The block size k: what the drafter was trained with."""
    return block_size(_scale(settings), setup.drafter)


def glancing_in(settings: Settings) -> bool:
    """Whether the base drafter glances, and the ablated one does not, or the other way round."""
    return glances(_scale(settings))


def _scale(settings: Settings) -> zoo.Scale:
    """The zoo's; a profile without models of its own has the paper's sizes."""
    return "paper" if settings.profile == "small" else scale_of(settings.profile)


def block_sizes(settings: Settings) -> tuple[int, ...]:
    """Those of Table 2."""
    return BLOCK_SIZES[_scale(settings)]


def greedy(settings: Settings, setup: Setup, group: str) -> Experiment | Absent:
    """The verifier alone, timed at batch 1; its times belong to the comparison that ``group`` names."""
    target, profile = model_of(settings, setup.verifier), settings.profile
    if isinstance(target, Absent):
        return target
    limit, repeats = _sizes(settings, setup, group)
    chosen, summarizes = " ".join(f"{role}={name}" for role, name in settings.models), setup.task == CNNDM.task
    return Experiment(
        task=setup.task,
        source=settings.source,
        profile=profile,
        target=ModelSpec(name=target),
        method=MethodSpec(name="autoregressive"),
        seed=settings.seed,
        limit=limit,
        repeats=repeats,
        max_new_tokens=(MAX_SUMMARY if summarizes else MAX_NEW_TOKENS)[profile],
        max_input_tokens=(MAX_ARTICLE if summarizes else MAX_SOURCE)[profile],
        prompt_style="t5",
        beside=f"{PAPER} {group} {chosen}".strip(),
        device=settings.device,
        dtype=settings.dtype,
        num_threads=settings.num_threads or NUM_THREADS[profile],
    )


def _sizes(settings: Settings, setup: Setup, group: str) -> tuple[int, int]:
    """Sentences, and how often each is decoded: as the user says, else as the setting, else as MANY or the profile."""
    profile, on_toy = settings.profile, settings.source == "toy"
    many = MANY.get(group) if on_toy and profile == "toy" and setup.task != CNNDM.task else None
    limit = settings.limit or setup.limit or many or (LIMIT if on_toy else REAL_LIMIT)[profile]
    once = many is not None and limit >= many
    return limit, settings.repeats or setup.repeats or (1 if once else REPEATS[profile])


def beam(plain: Experiment) -> Experiment:
    return plain.replace(method=MethodSpec(name="beam", num_beams=NUM_BEAMS))


def their_beam(plain: Experiment) -> Experiment:
    """transformers' own beam search over the same weights."""
    return plain.replace(method=MethodSpec(name="transformers", num_beams=NUM_BEAMS))


def alone(plain: Experiment, drafter: DrafterSpec | Absent, gamma: int) -> Experiment | Absent:
    if isinstance(drafter, Absent):
        return drafter
    return plain.replace(method=MethodSpec(name="drafter-alone", drafter=drafter, gamma=gamma))


def strict(plain: Experiment, drafter: DrafterSpec | Absent, gamma: int) -> Experiment | Absent:
    """SpecDec: what the drafter proposes stands where it is the verifier's first choice."""
    if isinstance(drafter, Absent):
        return drafter
    return plain.replace(method=MethodSpec(name="speculative", rule="top-1", drafter=drafter, gamma=gamma))


def relaxed(plain: Experiment, drafter: DrafterSpec | Absent, gamma: int, setting: Relaxed) -> Experiment | Absent:
    """SpecDec++ (top-beta, tau), scored by the verifier as in the authors' code."""
    experiment = strict(plain, drafter, gamma)
    if isinstance(experiment, Absent):
        return experiment
    method = replace(experiment.method, rule="top-beta", beta=setting.beta, tau=setting.tau)
    return experiment.replace(method=method)


def baselines(plain: Experiment) -> Arms:
    """What speeds are measured against."""
    return {GREEDY: plain, BEAM: beam(plain), THEIR_BEAM: their_beam(plain)}


def beam_alone(settings: Settings, setup: Setup) -> Arms:
    """How good a model is; no time of it could be compared."""
    plain = greedy(settings, setup, SINGLE)
    return {BEAM: plain if isinstance(plain, Absent) else beam(plain.replace(repeats=1))}


def arms_of(settings: Settings, setup: Setup, group: str = MAIN) -> Arms:
    """The comparison of a setting. The tables of one group share its records."""
    plain, gamma = greedy(settings, setup, group), gamma_of(settings, setup)
    if isinstance(plain, Absent):
        return dict.fromkeys(ARMS, plain)
    drafter = drafter_of(settings, setup.drafter)
    return {
        **baselines(plain),
        ALONE: alone(plain, drafter, gamma),
        STRICT: strict(plain, drafter, gamma),
        HIGH_QUALITY: relaxed(plain, drafter, gamma, QUALITY),
        HIGH_EFFICIENCY: relaxed(plain, drafter, gamma, EFFICIENCY),
    }


def comparison_of(arms: Arms) -> list[Comparison]:
    """The arms that can be run, as one comparison; none where there is no verifier."""
    found = tuple(arm for arm in arms.values() if isinstance(arm, Experiment))
    return [Comparison(found)] if found else []
