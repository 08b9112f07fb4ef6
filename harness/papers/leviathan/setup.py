"""The models, data and sizes that each profile has in place of Leviathan et al.'s, and the experiments made of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from harness.core.errors import UsageError
from harness.core.experiment import DrafterSpec, Experiment, ModelSpec, OverlapProbe, Probe, comparison_id
from harness.core.settings import Settings
from harness.measures.statistics import Missing
from harness.tables import published
from harness.tables.roles import CAPTIONS_FOR_NEWS, needed_model, plain_decoding, role_model, with_draft
from kernels.inputs import SamplingSpec

PAPER = "leviathan"
TARGET = "target alone"  # the arm that a draft is compared with
LENIENCES = (1.0, 0.5, 0.3, 0.1)
LAMDA_TOP_K = 40
LARGER_THAN_A_DEVICE = ("meta-llama/Llama-3.1-70B",)  # 141 GB in half precision


@dataclass(frozen=True, kw_only=True)
class _Setup:
    """A setting of the paper: its task here, the role of its target, and the roles of its drafters by the paper's names."""

    task: str
    target: str
    drafts: dict[str, str]
    ngrams: str | None = None
    prompt_style: str = "instruction"
    chat_template: bool = False
    top_k: int | None = None


T5_DRAFTS = {"T5-small": "t5-small", "T5-base": "t5-base", "T5-large": "t5-large"}
SETUPS = {
    "GPT-like (97M)": _Setup(task="text", target="gpt-target", drafts={"GPT-like (6M)": "gpt-draft"}, ngrams="ngram-gpt"),
    "EnDe": _Setup(task="wmt-en-de", target="t5-xxl", drafts=T5_DRAFTS, ngrams="ngram-t5-en-de", prompt_style="t5"),
    "CNNDM": _Setup(task="cnndm", target="t5-xxl", drafts=T5_DRAFTS, ngrams="ngram-t5-cnndm", prompt_style="t5"),
    "LaMDA (137B)": _Setup(
        task="text",
        target="lamda-137b",
        drafts={"LaMDA (100M)": "lamda-100m", "LaMDA (2B)": "lamda-2b", "LaMDA (8B)": "lamda-8b"},
        top_k=LAMDA_TOP_K,
    ),
}

# A real summarizer is a chat model, and a real translator of captions another one.
SUMMARY_DRAFTS = {name: f"summary-{name.removeprefix('T5-').lower()}" for name in T5_DRAFTS}
POCKET_SETUPS = SETUPS | {
    "EnDe": replace(SETUPS["EnDe"], task="multi30k-en-de"),
    "CNNDM": _Setup(task="cnndm", target="summarizer", drafts=SUMMARY_DRAFTS, ngrams="ngram-summarizer", chat_template=True),
}

TABLES_OF_COUNTS = {name: f"zoo:{name}" for name in ("ngram-gpt", "ngram-t5-en-de", "ngram-t5-cnndm")}
ZOO: dict[str, str | Missing] = {
    **{name: f"zoo:{name}" for name in ("t5-xxl", "t5-large", "t5-base", "t5-small", "gpt-target", "gpt-draft")},
    **TABLES_OF_COUNTS,
    "lamda-137b": "zoo:gpt-target",
    "lamda-8b": Missing("no draft of that size stands in"),
    "lamda-2b": Missing("no draft of that size stands in"),
    "lamda-100m": "zoo:gpt-draft",
}
SMOLLM2 = "pocket:smollm2"
SMOLLM2_DRAFTS = {size: f"pocket:smollm2-draft-{size}" for size in ("small", "base", "large")}
NOT_COUNTED = Missing("n-grams of this tokenizer are not counted in this profile; name a table for this role")
POCKET: dict[str, str | Missing] = {
    "t5-xxl": "zoo:captions-target",
    **{f"t5-{size}": f"zoo:captions-{size}" for size in ("small", "base", "large")},
    "summarizer": SMOLLM2,
    **{f"summary-{size}": name for size, name in SMOLLM2_DRAFTS.items()},
    "gpt-target": SMOLLM2,
    "gpt-draft": SMOLLM2_DRAFTS["base"],
    **dict.fromkeys((*TABLES_OF_COUNTS, "ngram-summarizer"), NOT_COUNTED),
    "lamda-137b": SMOLLM2,
    "lamda-8b": SMOLLM2_DRAFTS["large"],
    "lamda-2b": SMOLLM2_DRAFTS["base"],
    "lamda-100m": SMOLLM2_DRAFTS["small"],
}
ROLES: dict[str, dict[str, str | Missing]] = {
    "toy": ZOO,
    "test": ZOO,
    "pocket": POCKET,
    "small": {
        "t5-xxl": "google-t5/t5-large",
        "t5-large": Missing("T5-large is this profile's target"),
        "t5-base": "google-t5/t5-base",
        "t5-small": "google-t5/t5-small",
        "gpt-target": "openai-community/gpt2-large",
        "gpt-draft": "distilbert/distilgpt2",
        **TABLES_OF_COUNTS,
        "lamda-137b": "HuggingFaceTB/SmolLM2-1.7B",
        "lamda-8b": Missing("SmolLM2 has two smaller sizes, not three"),
        "lamda-2b": "HuggingFaceTB/SmolLM2-360M",
        "lamda-100m": "HuggingFaceTB/SmolLM2-135M",
    },
    "paper": {
        "t5-xxl": "google-t5/t5-11b",
        "t5-large": "google-t5/t5-large",
        "t5-base": "google-t5/t5-base",
        "t5-small": "google-t5/t5-small",
        "gpt-target": "zoo:gpt-target",
        "gpt-draft": "zoo:gpt-draft",
        **TABLES_OF_COUNTS,
        "lamda-137b": "meta-llama/Llama-3.1-70B",
        "lamda-8b": "meta-llama/Llama-3.1-8B",
        "lamda-2b": "meta-llama/Llama-3.2-3B",
        "lamda-100m": "meta-llama/Llama-3.2-1B",
    },
}

ALPHA_BATCH = 16  # rows do not influence each other, and nothing is timed


@dataclass(frozen=True, kw_only=True)
class _Sizes:
    """The sizes of a profile: numbers of examples for alpha (by task, else ``alpha_limit``) and for speed, lengths of texts.

    At the paper's size alpha sees about 10 K tokens a setting; LIMIT raises the others to that. A second thread slows toy
    models down: what is timed has one.
    """

    alpha_limits: Mapping[str, int] = field(default_factory=dict)
    alpha_limit: int
    speed_limit: int
    speed_repeats: int = 1
    max_new_tokens: int = 128
    max_t5_source: int = 512
    num_threads: int | None = None


SIZES = {
    "toy": _Sizes(
        alpha_limits={"text": 90, "wmt-en-de": 280, "cnndm": 170}, alpha_limit=50, speed_limit=100,
        max_new_tokens=80, max_t5_source=160, num_threads=1,
    ),
    "test": _Sizes(alpha_limit=4, speed_limit=3, max_new_tokens=24, max_t5_source=160),
    "pocket": _Sizes(alpha_limit=100, speed_limit=100, max_new_tokens=64, max_t5_source=640),
    "small": _Sizes(alpha_limit=100, speed_limit=100),
    "paper": _Sizes(alpha_limit=400, speed_limit=100, speed_repeats=3),
}  # fmt: skip


def setup_of(settings: Settings, key: str) -> _Setup:
    """Return a setting of the paper as a profile has it."""
    return (POCKET_SETUPS if settings.profile == "pocket" else SETUPS)[key]


def data_of(settings: Settings, arms: Sequence[Experiment]) -> str:
    """Say which data stand in for the paper's news in a table of these arms; empty where none do."""
    captions = POCKET_SETUPS["EnDe"].task
    return CAPTIONS_FOR_NEWS if any(arm.task == captions for arm in arms) else ""


model_of = partial(role_model, ROLES)  # (settings, role) -> the name of the model that fills it, or why none does


def drafter(settings: Settings, setup: _Setup, name: str) -> DrafterSpec | Missing:
    """Return the drafter that the paper calls ``name``; "Unigram" and "Bigram" are the tables of counts."""
    role = setup.ngrams if name in ("Unigram", "Bigram") else setup.drafts[name]
    if role is None:
        return Missing(f"the paper has no {name} here")
    model = model_of(settings, role)
    if isinstance(model, Missing):
        return model
    return DrafterSpec(kind=name.lower() if role == setup.ngrams else "model", model=ModelSpec(name=model))


def drafters(settings: Settings, setup: _Setup, names: tuple[str, ...]) -> tuple[DrafterSpec, ...]:
    """Return those of the named drafters that the profile has."""
    found = (drafter(settings, setup, name) for name in names)
    return tuple(spec for spec in found if isinstance(spec, DrafterSpec))


def autoregressive(
    settings: Settings, setup: _Setup, temperature: float, *, timed: str = "", probes: tuple[Probe, ...] = ()
) -> Experiment:
    """Return plain decoding by the target. ``timed`` names the comparison whose speeds are measured; it has its own size."""
    target, sizes = needed_model(ROLES, settings, setup.target), SIZES[settings.profile]
    limit = sizes.speed_limit if timed else sizes.alpha_limits.get(setup.task, sizes.alpha_limit)
    repeats = (settings.repeats or sizes.speed_repeats) if timed else 1
    return plain_decoding(
        settings,
        task=setup.task,
        target=ModelSpec(name=target, device_map="auto" if target in LARGER_THAN_A_DEVICE else None),
        sampling=SamplingSpec(temperature=temperature, top_k=setup.top_k if temperature > 0 else None),
        limit=settings.limit or limit,
        repeats=repeats,
        batch_size=1 if timed else ALPHA_BATCH,
        max_new_tokens=sizes.max_new_tokens,
        max_input_tokens=sizes.max_t5_source if setup.prompt_style == "t5" or setup.chat_template else None,
        chat_template=setup.chat_template,
        num_threads=sizes.num_threads if timed else None,
        prompt_style=setup.prompt_style,
        comparison=comparison_id(PAPER, timed, settings.models) if timed else "",
        replicas=settings.replicas,
        retrained=settings.replicas > 1 and settings.profile != "pocket",  # whose models are trained once
        probes=probes,
    )


def speculative(
    baseline: Experiment | Missing, draft: DrafterSpec | Missing, gamma: int, lenience: float | None = None
) -> Experiment | Missing:
    """Return the same experiment with a draft; ``lenience`` also chooses the lenient rule."""
    rule: dict[str, Any] = {} if lenience is None else {"rule": "lenience", "lenience": lenience}
    return with_draft(baseline, draft, gamma=gamma, probes=(), **rule)


def overlaps(drafters: tuple[DrafterSpec, ...], leniences: tuple[float, ...] = (1.0,)) -> tuple[OverlapProbe, ...]:
    return tuple(OverlapProbe(drafter=drafter, leniences=leniences) for drafter in drafters)


def temperatures(rows: tuple[published.Row, ...]) -> list[float]:
    return sorted({float(row["temp"]) for row in rows})


def model_notes(settings: Settings, roles: list[str]) -> list[str]:
    """Say which model fills which role, and how it differs from the paper's."""
    filled = {role: name for role in roles if isinstance(name := model_of(settings, role), str)}
    notes = [f"Models here: {', '.join(f'{role} = {name}' for role, name in filled.items())}."]
    if any(name.startswith("zoo:") and not name.startswith("zoo:ngram") for name in filled.values()):
        notes.append("zoo: models of the same family, far smaller, trained here on the training part of the same data.")
    if any(name.startswith("google-t5/") for name in filled.values()):
        notes.append(
            "T5 is the public v1.0 multi-task checkpoint: the paper's v1.1 models, fine-tuned per task, are not public."
        )
    return notes


def trace_arms(settings: Settings) -> dict[str, Experiment]:
    """Return Figure 5's arms: a few translations at temperature 0, with the small draft at gamma 7 and 3, and without."""
    plain = autoregressive(settings, setup_of(settings, "EnDe"), 0.0, timed="trace").replace(
        repeats=1, limit=settings.limit or 5, replicas=1, retrained=False
    )
    drafted = {f"gamma = {gamma}": _drawn(settings, "leviathan-5", "EnDe", "T5-small", plain, gamma) for gamma in (7, 3)}
    return {**drafted, "no draft": plain}


def generation_arm(settings: Settings) -> Experiment:
    """Return Figure 1's arm: one text of the GPT-like pair at temperature 1."""
    plain = autoregressive(settings, setup_of(settings, "GPT-like (97M)"), 1.0).replace(
        limit=1, max_new_tokens=64, replicas=1, retrained=False
    )
    return _drawn(settings, "leviathan-1", "GPT-like (97M)", "GPT-like (6M)", plain, 5)


def _drawn(settings: Settings, figure: str, key: str, draft: str, plain: Experiment, gamma: int) -> Experiment:
    """Return an arm that a figure needs.

    Raises:
        UsageError: the profile has no such draft.
    """
    setup = setup_of(settings, key)
    arm = speculative(plain, drafter(settings, setup, draft), gamma)
    if isinstance(arm, Missing):
        role = setup.drafts[draft]
        raise UsageError(f"figure {figure} in profile {settings.profile!r}: {arm.why}; name a model for the role {role}")
    return arm
