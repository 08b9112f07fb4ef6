"""The models, data and sizes that each profile has in place of Optimized's (Wagner et al.), and the experiments made of them.

A comparison is all the arms that share a data set, a target and a sampling: plain decoding first, on whose output the exact
alpha of the pair is measured, then one arm for each verify rule. Tables that read the same comparison share its records.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

from harness.core.experiment import DrafterSpec, Experiment, ModelSpec, OverlapProbe, RuleTimesProbe, comparison_id
from harness.core.settings import Settings
from harness.measures.statistics import Missing
from harness.tables.roles import Roles, plain_decoding, role_model, with_draft
from kernels.inputs import SamplingSpec
from tasks.summarization import SUMMARY_TEMPLATE

PAPER = "optimized"
GAMMA = 5


@dataclass(frozen=True, kw_only=True)
class _DataSet:
    """A test set of the paper, as its tables name it; ``num_examples`` are those of the whole set."""

    name: str
    subset: str = ""
    task: str
    num_examples: int
    is_speech: bool = False

    @property
    def label(self) -> str:
        return f"{self.name} {self.subset}".strip()


@dataclass(frozen=True, kw_only=True)
class _Pair:
    """A target and its draft: their names in the paper's tables, and their roles."""

    target: str
    draft: str
    target_role: str
    draft_role: str


CLEAN = _DataSet(name="LibriSpeech", subset="clean", task="librispeech-clean", num_examples=2620, is_speech=True)
OTHER = _DataSet(name="LibriSpeech", subset="other", task="librispeech-other", num_examples=2939, is_speech=True)
TEDLIUM = _DataSet(name="TED-LIUM", subset="release3", task="tedlium", num_examples=1155, is_speech=True)
CV16 = _DataSet(name="CV16", subset="en", task="common-voice", num_examples=16_393, is_speech=True)
CNNDM = _DataSet(name="CNN/DM", task="cnndm", num_examples=11_490)
XSUM = _DataSet(name="XSum", task="xsum", num_examples=11_334)
SPEECH, SUMMARIES = (CLEAN, OTHER, TEDLIUM, CV16), (CNNDM, XSUM)

SMALL_EN = _Pair(target="Small.EN", draft="Distil Small.EN", target_role="small.en", draft_role="distil-small.en")
LARGE_V2 = _Pair(target="Large V2", draft="Distil Large V2", target_role="large-v2", draft_role="distil-large-v2")
LLAMA_7B = _Pair(target="Llama2 7B", draft="Sheared Llama 1.3B", target_role="llama2-7b", draft_role="sheared-for-7b")
LLAMA_13B = _Pair(target="Llama2 13B", draft="Sheared Llama 1.3B", target_role="llama2-13b", draft_role="sheared-for-13b")
QWEN = _Pair(target="Qwen 7B", draft="Qwen 0.5B", target_role="qwen-7b", draft_role="qwen-0.5b")
GEMMA = _Pair(target="Gemma 7B", draft="Gemma 2B", target_role="gemma-7b", draft_role="gemma-2b")
WHISPERS, READERS = (SMALL_EN, LARGE_V2), (LLAMA_7B, LLAMA_13B, QWEN, GEMMA)

NO_STAND_IN = Missing("the zoo has no second Whisper pair, no Qwen and no Gemma; name a model for both roles of the pair")
TOO_LARGE = Missing("too large for profile small; use profile paper, or name a model for both roles of the pair")
ZOO: dict[str, str | Missing] = {
    **{role: NO_STAND_IN for pair in (LARGE_V2, QWEN, GEMMA) for role in (pair.target_role, pair.draft_role)},
    "small.en": "zoo:whisper-target",
    "distil-small.en": "zoo:whisper-draft",
    "llama2-7b": "zoo:llama-target",
    "sheared-for-7b": "zoo:llama-draft-large",
    "llama2-13b": "zoo:llama-target",
    "sheared-for-13b": "zoo:llama-draft-small",
}
ONE_PAIR = Missing("this profile has no second model of this kind; name a model for both roles of the pair")
UNDRAFTED = Missing("no draft of this model is published; distil one and name its folder for this role")
POCKET: dict[str, str | Missing] = {
    **{role: ONE_PAIR for pair in (QWEN, GEMMA) for role in (pair.target_role, pair.draft_role)},
    "small.en": "pocket:whisper-tiny.en",
    "distil-small.en": UNDRAFTED,
    "large-v2": "pocket:whisper-base",
    "distil-large-v2": "pocket:whisper-tiny.en",
    "llama2-7b": "pocket:smollm2",
    "sheared-for-7b": "pocket:smollm2-draft-large",
    "llama2-13b": "pocket:smollm2",
    "sheared-for-13b": "pocket:smollm2-draft-small",
}
TWO_VOCABULARIES = (("pocket:whisper-base", "pocket:whisper-tiny.en"),)  # pairs of which the draft has another one
PAPERS: dict[str, str | Missing] = {
    "small.en": "openai/whisper-small.en",
    "distil-small.en": "distil-whisper/distil-small.en",
    "large-v2": "openai/whisper-large-v2",
    "distil-large-v2": "distil-whisper/distil-large-v2",
    "llama2-7b": "meta-llama/Llama-2-7b-hf",
    "sheared-for-7b": "princeton-nlp/Sheared-LLaMA-1.3B",
    "llama2-13b": "meta-llama/Llama-2-13b-hf",
    "sheared-for-13b": "princeton-nlp/Sheared-LLaMA-1.3B",
    "qwen-7b": "Qwen/Qwen1.5-7B",
    "qwen-0.5b": "Qwen/Qwen1.5-0.5B",
    "gemma-7b": "google/gemma-7b",
    "gemma-2b": "google/gemma-2b",
}
PUBLIC_SMALL: dict[str, str | Missing] = {
    "small.en": "openai/whisper-small.en",
    "distil-small.en": "distil-whisper/distil-small.en",
    "qwen-7b": "Qwen/Qwen1.5-1.8B",
    "qwen-0.5b": "Qwen/Qwen1.5-0.5B",
}
ROLES: Roles = {
    "toy": ZOO,
    "test": ZOO,
    "pocket": POCKET,
    "small": {role: PUBLIC_SMALL.get(role, TOO_LARGE) for role in PAPERS},
    "paper": PAPERS,
}

# The paper does not say how it sampled: transformers' default filter, and none.
SAMPLINGS = {"top-k 50": SamplingSpec(temperature=1.0, top_k=50), "unfiltered": SamplingSpec(temperature=1.0)}
FILTERED = "top-k 50"

# The rules, as the tables call them.
BASELINE, EXACT, FUSED = "baseline", "exact", "fused (ours)"
SIGMOID, RELEASED = "sigmoid, described", "sigmoid, released"
RULES = {BASELINE: "baseline", EXACT: "exact", FUSED: "fused", SIGMOID: "sigmoid", RELEASED: "sigmoid-released"}
LOSSY = (SIGMOID, RELEASED)
UNTRAINED = "untrained: "
UNTRAINED_RULES = (BASELINE, SIGMOID, RELEASED)
PLAIN = "plain decoding"
SCALES = {True: 1e3, False: 1e4}  # by whether it is speech; the paper's, unconfirmed
Arms = dict[str, Experiment | Missing]

MAX_NEW_TOKENS = {True: 256, False: 100}  # by whether it is speech


@dataclass(frozen=True, kw_only=True)
class _Sizes:
    """The sizes of a profile: examples of speech and of summaries, and of their seeded samples (None: all, and a tenth).

    ``gammas`` are the initial numbers of drafts in the figures.
    """

    limits: tuple[int, int] | None = None
    samples: tuple[int, int] | None = None
    max_article: int
    num_threads: int | None = None
    gammas: tuple[int, ...] = tuple(range(1, 21))


SIZES = {
    "toy": _Sizes(limits=(40, 16), samples=(15, 10), max_article=320, num_threads=1, gammas=(1, 3, 5, 8, 12, 16, 20)),
    "test": _Sizes(limits=(2, 2), samples=(2, 2), max_article=96, num_threads=1, gammas=(1, 20)),
    "pocket": _Sizes(limits=(100, 100), samples=(30, 30), max_article=640, gammas=(1, 3, 5, 8, 12)),
    "small": _Sizes(limits=(200, 100), samples=(50, 25), max_article=1024),
    "paper": _Sizes(max_article=3900),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A comparison's data set, pair of models and sampling."""

    data: _DataSet
    pair: _Pair
    sampling: str


def cases(*pairs: tuple[_Pair, _DataSet]) -> list[Case]:
    return [Case(data=data, pair=pair, sampling=sampling) for pair, data in pairs for sampling in SAMPLINGS]


ALL_CASES = cases(
    *((pair, data) for pair in WHISPERS for data in SPEECH), *((pair, data) for data in SUMMARIES for pair in READERS)
)
WITH_UNTRAINED = ((SMALL_EN, CLEAN), (LLAMA_7B, XSUM))
POCKET_CASES = cases((LARGE_V2, CLEAN))
LEFT_OUT = Missing("left out of this profile, so that two cores record its table in half an hour")


model_of = partial(role_model, ROLES)  # (settings, role) -> the name of the model that fills it, or why none does


def num_examples(settings: Settings, data: _DataSet, sampled: bool) -> int:
    """Return how many examples are run: of the whole test set, or of its seeded sample."""
    sizes = SIZES[settings.profile].samples if sampled else SIZES[settings.profile].limits
    if settings.limit is not None:
        return settings.limit
    if sizes is None:
        return -(-data.num_examples // 10) if sampled else data.num_examples
    return sizes[0 if data.is_speech else 1]


def plain_arm(settings: Settings, case: Case, group: str, *, sampled: bool = False) -> Experiment | Missing:
    """Return plain decoding at batch 1; its times belong to the comparison that ``group`` names."""
    target, draft = model_of(settings, case.pair.target_role), model_of(settings, case.pair.draft_role)
    if isinstance(target, Missing):
        return target
    if isinstance(draft, Missing):
        return draft
    verifier, sizes, data = ModelSpec(name=target), SIZES[settings.profile], case.data
    kind = "tli" if (target, draft) in TWO_VOCABULARIES else "model"
    drafters = [ModelSpec(name=draft)]
    with_untrained = (case.pair, data) in WITH_UNTRAINED and settings.profile != "pocket"
    drafters += [ModelSpec(name=draft, untrained=True)] if with_untrained else []
    return plain_decoding(
        settings,
        task=data.task,
        target=verifier,
        sampling=SAMPLINGS[case.sampling],
        limit=num_examples(settings, data, sampled),
        repeats=settings.repeats or 1,
        max_new_tokens=MAX_NEW_TOKENS[data.is_speech],
        max_input_tokens=None if data.is_speech else sizes.max_article,
        prompt_style="t5" if data.is_speech else "instruction",
        prompt_template=None if data.is_speech or from_zoo(verifier) else SUMMARY_TEMPLATE,
        chat_template=not data.is_speech and settings.profile == "pocket",  # whose reader is a chat model
        comparison=comparison_id(PAPER, f"{group} {case.pair.target}", settings.models),
        probes=tuple(OverlapProbe(drafter=DrafterSpec(kind=kind, model=model)) for model in drafters),
        num_threads=sizes.num_threads,
        replicas=settings.replicas,
    )


def ruled(
    plain: Experiment | Missing, case: Case, rule: str, *, gamma: int = GAMMA, untrained: bool = False,
    scale: float | None = None, half_logits: bool = False,
) -> Experiment | Missing:  # fmt: skip
    """Return speculative sampling by a rule; the number of drafts begins at gamma, then follows the +2 / -1 heuristic.

    The draft is the first that ``plain`` measures the overlap with, or the second, which is ``untrained``.
    """
    if isinstance(plain, Missing):
        return plain
    scaling: dict[str, Any] = {}
    if rule in LOSSY:
        scaling = {"scale": scale or SCALES[case.data.is_speech], "half_logits": half_logits}
    return with_draft(
        plain,
        plain.overlap[untrained],
        probes=(RuleTimesProbe(),),
        rule=RULES[rule],
        schedule="heuristic",
        gamma=gamma,
        **scaling,
    )


def arms_of(settings: Settings, case: Case) -> Arms:
    """Return plain decoding, every rule, and for a pair of each kind some rules with an untrained draft."""
    plain = plain_arm(settings, case, "main")
    if settings.profile == "pocket" and isinstance(plain, Experiment) and case not in POCKET_CASES:
        plain = LEFT_OUT
    arms = {PLAIN: plain, **{rule: ruled(plain, case, rule) for rule in RULES}}
    if isinstance(plain, Experiment) and len(plain.overlap) > 1:
        arms |= {f"{UNTRAINED}{rule}": ruled(plain, case, rule, untrained=True) for rule in UNTRAINED_RULES}
    return arms


def without_profiler(settings: Settings, arms: Arms) -> Arms:
    """Return the arms for times by the clock alone: torch's profiler, which only CUDA needs, takes time of its own."""
    if not settings.device.startswith("cuda"):
        return arms

    def untimed(arm: Experiment) -> Experiment:
        return arm.replace(probes=tuple(probe for probe in arm.probes if probe != RuleTimesProbe()))

    return {name: arm if isinstance(arm, Missing) else untimed(arm) for name, arm in arms.items()}


def from_zoo(model: ModelSpec) -> bool:
    return model.zoo_name is not None
