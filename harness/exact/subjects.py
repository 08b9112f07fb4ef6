"""The subjects of an audit: every method, drafter, rule, kernel and schedule, on the smallest models that exercise its path.

The models are the zoo's, the smallest of every family, or a pair that a user names.

Whether a subject is exact or lossy is declared in one place, the ``guarantee`` of its rule or method; nothing here repeats it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.core.experiment import ROUNDED, DrafterSpec, Experiment, MethodSpec, ModelSpec
from harness.measures.verdicts import label_of, shown_sampling
from harness.models.fit import knows_all_tokens
from harness.models.loading import share_vocabulary
from harness.models.names import hears, is_encoder_decoder, num_layers
from harness.run.refusals import EXIT, LOOKUP, why_not_static
from kernels.inputs import SamplingSpec
from kernels.verify.registry import EXACT
from methods.ppd.options import EXECUTIONS

DECODER, ENCODER_DECODER, HEARS = "decoder-only", "encoder-decoder", "hears"
DRAWN = SamplingSpec(temperature=1.0)
FILTERED = SamplingSpec(temperature=0.8, top_k=20, top_p=0.95)
GAMMA = 3
BATCH = 4
EXACT_RULES = ("speculative-sampling", *EXACT)
Fields = tuple[dict[str, Any], ...]
OTHER_EXACT = ("block-verification", "point-mass")
LOSSY_SAMPLED: Fields = (
    {"rule": "lenience", "lenience": 0.3},
    {"rule": "sigmoid"},
    {"rule": "sigmoid-released"},
    {"rule": "target-greedy"},
    {"rule": "typical"},
)
LOSSY_GREEDY: Fields = ({"rule": "lenience", "lenience": 0.1}, {"rule": "top-beta", "beta": 3, "tau": 2.0})
SCHEDULES: Fields = ({"schedule": "heuristic"}, {"schedule": "optimal", "alpha": 0.7, "cost": 0.1}, {"schedule": "sweep"})
PLAIN, BEAM = MethodSpec(name="autoregressive"), MethodSpec.of("beam", num_beams=4)
GENERATE = MethodSpec(name="transformers")


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The size of an audit.

    Greedy: ``prompts``, and ``new_tokens`` of each. Sampling: ``samples``, shared out among ``prefixes`` of ``prefix_tokens``
    and decoded ``batch`` rows at a time. ``false_alarms``: how often plain sampling is tested.
    """

    prompts: int
    new_tokens: int
    samples: int
    batch: int = 250
    prefixes: int = 2
    prefix_tokens: int = 12
    false_alarms: int = 4


SIZES = {
    "test": Sizes(prompts=3, new_tokens=16, samples=1500, prefixes=1, false_alarms=2),
    "toy": Sizes(prompts=16, new_tokens=48, samples=2000),
    "own": Sizes(prompts=16, new_tokens=48, samples=2000),
}


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A method, and the plain arm with which it is compared: both share models, sampling and batch size.

    ``plain.method`` is plain decoding, or beam search for a method that searches with beams.
    """

    pair: str
    session: str
    plain: Experiment
    method: MethodSpec

    @property
    def experiment(self) -> Experiment:
        return self.plain.replace(method=self.method)

    @property
    def has_static_form(self) -> bool:
        return not any(map(why_not_static, (self.plain, self.experiment)))

    @property
    def name(self) -> str:
        batch = f", batch {self.plain.batch_size}" if self.plain.batch_size > 1 else ""
        return f"{self.pair}: {label_of(self.method)}, {shown_sampling(self.plain.sampling)}{batch}"


@dataclass(frozen=True, kw_only=True)
class _Pair:
    """A target with its drafters, the first of which is mostly a draft model.

    ``early_layer`` is the layer behind which the target drafts for itself in transformers' loop; None in families that cannot.
    ``lends``: transformers' loop can draft with the first of the drafters.
    """

    name: str
    session: str
    plain: Experiment
    drafters: tuple[DrafterSpec, ...]
    early_layer: int | None = None
    lends: bool = True

    def greedy(self, *methods: MethodSpec, batch: int = 1, against: MethodSpec = PLAIN) -> Iterator[Subject]:
        return self._subjects(methods, self.plain.replace(method=against, batch_size=batch))

    def sampled(self, *methods: MethodSpec, sampling: SamplingSpec = DRAWN) -> Iterator[Subject]:
        return self._subjects(methods, self.plain.replace(sampling=sampling))

    def _subjects(self, methods: Sequence[MethodSpec], plain: Experiment) -> Iterator[Subject]:
        return (Subject(pair=self.name, session=self.session, plain=plain, method=method) for method in methods)

    def method(self, drafter: DrafterSpec | None = None, **fields: Any) -> MethodSpec:
        gamma = {} if fields.get("schedule") == "optimal" else {"gamma": GAMMA}
        return MethodSpec.of("speculative", drafter=drafter or self.drafters[0], **(gamma | fields))

    def transformers_methods(self) -> list[MethodSpec]:
        """Return transformers' assisted generation with everything that can draft there."""
        drafters = [*([self.drafters[0]] if self.lends else []), DrafterSpec(kind=LOOKUP)]
        methods = [GENERATE.change(drafter=drafter, gamma=GAMMA) for drafter in drafters]
        exits = DrafterSpec(kind=EXIT)
        early = [] if self.early_layer is None else [GENERATE.change(drafter=exits, gamma=GAMMA, early_layer=self.early_layer)]
        return [*methods, *early]


def whole(pair: _Pair) -> list[Subject]:
    """Return every rule and kernel with the draft model, every drafter with speculative sampling, schedules, batches, beams."""
    first, others = pair.method(), [pair.method(drafter) for drafter in pair.drafters[1:]]
    rules = [pair.method(rule=rule) for rule in EXACT_RULES[1:]]  # at temperature 0 all are speculative sampling
    schedules = [pair.method(**schedule) for schedule in SCHEDULES]
    beams = MethodSpec.of("speculative-beam", drafter=pair.drafters[0], gamma=GAMMA, num_beams=4, draft_beams=8)
    strict = [pair.method(rule="top-1"), pair.method(rule="top-1", cap="printed")]
    exact = [pair.method(rule=rule) for rule in OTHER_EXACT]
    return [
        *pair.greedy(GENERATE, *pair.transformers_methods(), first, *strict, *exact, *others, *schedules),
        *pair.greedy(*(pair.method(**rule) for rule in LOSSY_GREEDY), BEAM),
        *pair.greedy(PLAIN, first, *others, batch=BATCH),
        *pair.greedy(beams, GENERATE.change(num_beams=4), against=BEAM),
        *pair.greedy(BEAM, against=BEAM, batch=BATCH),
        *pair.sampled(PLAIN, GENERATE, first, *rules, *exact, *others, *schedules),
        *pair.sampled(*(pair.method(rule=rule) for rule in EXACT_RULES), *exact, sampling=FILTERED),
        *pair.sampled(*(pair.method(**rule) for rule in LOSSY_SAMPLED)),
    ]


def short(pair: _Pair) -> list[Subject]:
    """Return the paths that a family of models adds: its sessions, alone and in batches, greedy and sampled, with beams."""
    methods, assisted = [pair.method(drafter) for drafter in pair.drafters], pair.transformers_methods()
    beams = MethodSpec.of("speculative-beam", drafter=pair.drafters[0], gamma=GAMMA, num_beams=4, draft_beams=8)
    return [
        *pair.greedy(GENERATE, *assisted, *methods),
        *pair.greedy(PLAIN, *methods, batch=BATCH),
        *pair.greedy(beams, GENERATE.change(num_beams=4), against=BEAM),
        *pair.greedy(BEAM, against=BEAM, batch=BATCH),
        *pair.sampled(PLAIN, *methods, pair.method(rule="fused"), *(assisted if pair.early_layer else ())),
    ]


def others_words(pair: _Pair) -> list[Subject]:
    """Return the paths of drafts of another vocabulary: greedy and sampled, alone and in batches."""
    methods = [pair.method(drafter) for drafter in pair.drafters]
    return [*pair.greedy(*methods), *pair.greedy(PLAIN, *methods, batch=BATCH), *pair.sampled(PLAIN, *methods)]


def blocks(pair: _Pair) -> list[Subject]:
    """Return a block drafter's paths: strict and relaxed rules, the drafter alone, and the beams that it is timed beside."""
    relaxed = [pair.method(drafter, rule="top-beta", beta=3, tau=2.0) for drafter in pair.drafters]
    return [
        *strict_blocks(pair),
        *pair.greedy(GENERATE, pair.method(rule="top-1", cap="printed")),
        *pair.greedy(*relaxed, MethodSpec.of("drafter-alone", drafter=pair.drafters[0], gamma=GAMMA)),
        *pair.greedy(PLAIN, relaxed[0], batch=BATCH),
        *pair.greedy(GENERATE.change(num_beams=4), against=BEAM),
        *pair.sampled(PLAIN),
    ]


def strict_blocks(pair: _Pair) -> list[Subject]:
    """Return the paths of everything that drafts blocks: greedy, alone and in batches, and sampled."""
    strict = [pair.method(drafter, rule="top-1") for drafter in pair.drafters]
    drawn = [pair.method(drafter) for drafter in pair.drafters]
    return [*pair.greedy(*strict), *pair.greedy(*strict, batch=BATCH), *pair.sampled(*drawn)]


def pipelines(pair: _Pair, early_layer: int, heads: ModelSpec | None = None) -> list[Subject]:
    """Return PPD's executions. They draw from the target alone, so their samples must also equal plain decoding's."""
    ppd = MethodSpec.of("ppd", early_layer=early_layer, candidates=1)
    each = [ppd.change(execution=one, candidates=1 if one == "process" else 2) for one in EXECUTIONS]
    methods = [*each, *([] if heads is None else [ppd.change(heads=heads)])]
    return [*pair.greedy(*methods), *pair.sampled(*methods)]


def hearing(pair: _Pair) -> list[Subject]:
    """Return the paths of a speech model: exact and sigmoid verification."""
    rules, others = [pair.method(rule=rule) for rule in EXACT_RULES], [pair.method(one) for one in pair.drafters[1:]]
    return [
        *pair.greedy(GENERATE, *pair.transformers_methods(), rules[0], *others),
        *pair.greedy(PLAIN, rules[0], *others, batch=BATCH),
        *pair.sampled(PLAIN, *rules, *others, *(pair.method(rule=rule) for rule in ("sigmoid", "sigmoid-released"))),
    ]


def zoo_subjects(scale: str, source: str, sizes: Sizes, seed: int = 0) -> list[Subject]:
    """Return the zoo's subjects. The first pair has every rule, kernel, drafter and schedule; others add their paths."""

    def pair(name: str, session: str, task: str, target: str, *drafters: DrafterSpec) -> _Pair:
        style = "t5" if session == ENCODER_DECODER else "instruction"
        plain = _plain(sizes, task, source, seed, ModelSpec(name=f"zoo:{target}"), style).replace(profile=scale)
        return _Pair(name=name, session=session, plain=plain, drafters=drafters)

    gpt, table = _model("gpt-draft"), ModelSpec(name="zoo:ngram-gpt")
    free = [DrafterSpec(kind="copy"), DrafterSpec(kind="suffix"), DrafterSpec(kind="random")]
    counted = [DrafterSpec(kind=kind, model=table) for kind in ("unigram", "bigram")]
    gpt_itself, t5_itself, whisper_itself = (
        DrafterSpec(kind=ROUNDED, model=ModelSpec(name=f"int8:zoo:{name}"))
        for name in ("gpt-target", "t5-base", "whisper-target")
    )
    small = _model("llama-draft-small")
    stacked = DrafterSpec(kind="hierarchical", model=ModelSpec(name="zoo:llama-draft-large"), inner=small)
    t5_table = DrafterSpec(kind="bigram", model=ModelSpec(name="zoo:ngram-t5-en-de"))
    block = DrafterSpec(kind="block", model=ModelSpec(name="zoo:specdec-drafter"))
    sharing = DrafterSpec(kind="block", model=ModelSpec(name="zoo:specdec-drafter-shared"), options={"encoder": "shared"})
    blocked = (block, replace(block, options={"encoder": "concurrent"}), sharing)
    heads = DrafterSpec(kind="blockwise", model=ModelSpec(name="zoo:specdec-blockwise"))
    llama = pair("Llama", DECODER, "text", "llama-target", small, stacked)
    t5 = pair("T5", ENCODER_DECODER, "wmt-en-de", "t5-base", _model("t5-small"), t5_table, free[0], t5_itself)
    deep = pair("PPD's Llama", DECODER, "text", "llama-deep")
    translated = [DrafterSpec(kind=kind, model=small.model) for kind in ("tli", "slem")]  # the Llama's tokens are others
    depth = num_layers(deep.plain.target, scale)
    return [
        *whole(pair("GPT", DECODER, "text", "gpt-target", gpt, *counted, *free, DrafterSpec(kind="first-layers"), gpt_itself)),
        *others_words(pair("GPT with Llama's words", DECODER, "text", "gpt-target", *translated)),
        *short(replace(llama, early_layer=num_layers(llama.plain.target, scale) // 2)),
        *llama.sampled(*(llama.method(rule=rule) for rule in ("baseline", "exact", "sigmoid", "sigmoid-released"))),
        *short(t5),
        *t5.greedy(t5.method(**LOSSY_GREEDY[0])),
        *t5.sampled(t5.method(**LOSSY_SAMPLED[0])),
        *blocks(pair("SpecDec", ENCODER_DECODER, "wmt-en-de", "specdec-verifier", *blocked)),
        *strict_blocks(pair("Heads", ENCODER_DECODER, "wmt-en-de", "specdec-verifier", heads)),
        *pipelines(deep, depth // 2, ModelSpec(name="zoo:llama-deep-heads")),
        *hearing(pair("Whisper", HEARS, "librispeech-clean", "whisper-target", _model("whisper-draft"), whisper_itself)),
    ]


def own_subjects(target: str, draft: str, task: str, source: str, sizes: Sizes, seed: int = 0) -> list[Subject]:
    """Return the subjects of a user's two checkpoints, without tables, heads and block drafters, which would need training."""
    spec, drafting = ModelSpec(name=target), ModelSpec(name=draft)
    both, one_vocabulary = is_encoder_decoder(spec, "toy", source), share_vocabulary(spec, drafting)
    plain = _plain(sizes, task, source, seed, spec, "t5" if both else "instruction")
    model = DrafterSpec(kind="model" if one_vocabulary else "tli", model=drafting)
    own = [DrafterSpec(kind=ROUNDED, model=drafting)] if drafting in spec.narrower else []
    if hears(spec):
        return hearing(_Pair(name=spec.short, session=HEARS, plain=plain, drafters=(model, *own)))
    stacked = DrafterSpec(kind="hierarchical", model=model.model, inner=model)
    free = (DrafterSpec(kind="copy"), DrafterSpec(kind="suffix"), DrafterSpec(kind="random"))
    others = [stacked] if one_vocabulary else [DrafterSpec(kind="slem", model=model.model)]
    drafters = (model, *others, *own, *free)
    session = ENCODER_DECODER if both else DECODER
    lends = knows_all_tokens(drafting)
    pair = _Pair(name=spec.short, session=session, plain=plain, drafters=drafters, lends=lends)
    if both:
        return whole(pair)
    return [*whole(pair), *pipelines(pair, -(-num_layers(spec, "toy") // 2))]


def _plain(sizes: Sizes, task: str, source: str, seed: int, target: ModelSpec, style: str) -> Experiment:
    return Experiment(
        task=task,
        source=source,
        target=target,
        method=MethodSpec(name="autoregressive"),
        seed=seed,
        limit=sizes.prompts,
        max_new_tokens=sizes.new_tokens,
        max_input_tokens=64,
        prompt_style=style,
        num_threads=1,
    )


def _model(name: str) -> DrafterSpec:
    return DrafterSpec(kind="model", model=ModelSpec(name=f"zoo:{name}"))
