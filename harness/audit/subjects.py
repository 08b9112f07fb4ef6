"""What is audited: every method, drafter, rule, kernel and schedule on the smallest models that exercise its path.

Whether a subject is exact or lossy is declared in one place, the ``guarantee`` of its rule or method; nothing here repeats it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.assisted import EXIT, LOOKUP
from harness.experiment import DrafterSpec, Experiment, MethodSpec, ModelSpec
from kernels.verify.registry import EXACT
from methods.ppd.pipeline import EXECUTIONS
from methods.sampling import Sampling

DRAWN = Sampling(temperature=1.0)
FILTERED = Sampling(temperature=0.8, top_k=20, top_p=0.95)
GAMMA = 3
BATCH = 4
EXACT_RULES = ("speculative-sampling", *EXACT)
Fields = tuple[dict[str, Any], ...]
LOSSY_SAMPLED: Fields = ({"rule": "lenience", "lenience": 0.3}, {"rule": "sigmoid"}, {"rule": "sigmoid-released"})
LOSSY_GREEDY: Fields = ({"rule": "lenience", "lenience": 0.1}, {"rule": "top-beta", "beta": 3, "tau": 2.0})
SCHEDULES: Fields = ({"schedule": "heuristic"}, {"schedule": "optimal", "alpha": 0.7, "cost": 0.1})
PLAIN, BEAM = MethodSpec(name="autoregressive"), MethodSpec(name="beam", num_beams=4)
GENERATE = MethodSpec(name="transformers")


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much is looked at: prompts and their outputs' lengths (greedy), samples of each of ``prefixes`` and rows decoded
    together (sampling), and how often plain sampling is tested for false alarms."""

    prompts: int
    new_tokens: int
    samples: int
    batch: int = 250
    prefixes: int = 2
    prefix_tokens: int = 12
    false_alarms: int = 10


SIZES = {
    "test": Sizes(prompts=3, new_tokens=16, samples=1500, prefixes=1, false_alarms=2),
    "toy": Sizes(prompts=16, new_tokens=48, samples=2500),
    "own": Sizes(prompts=16, new_tokens=48, samples=2000),
}


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A method beside the plain arm that it must equal, whose sampling, batch size and models it shares.

    ``plain.method`` is plain decoding, or beam search for what searches as it does.
    """

    pair: str
    session: str
    plain: Experiment
    method: MethodSpec

    @property
    def experiment(self) -> Experiment:
        return self.plain.replace(method=self.method)

    @property
    def name(self) -> str:
        batch = f", batch {self.plain.batch_size}" if self.plain.batch_size > 1 else ""
        return f"{self.pair}: {label_of(self.method)}, {shown_sampling(self.plain.sampling)}{batch}"


def shown_sampling(sampling: Sampling) -> str:
    filters = (("top-k", sampling.top_k), ("top-p", sampling.top_p))
    shown = "".join(f", {name} {value:g}" for name, value in filters if value is not None)
    return "greedy" if sampling.greedy else f"temperature {sampling.temperature:g}{shown}"


def label_of(method: MethodSpec, numbers: bool = True) -> str:
    """A method with what is plugged into it, as far as that is not the default; ``numbers``: with its rule's."""
    parts = [method.name]
    if method.drafter is not None:
        parts.append(method.drafter.kind + (f" ({method.drafter.encoder} encoder)" if method.drafter.encoder != "own" else ""))
    if method.name == "speculative":
        set_by = {"lenience": f" {method.lenience:g}", "top-beta": f" beta {method.beta} tau {method.tau:g}"} if numbers else {}
        parts.append(method.rule + set_by.get(method.rule, ""))
        parts += [f"schedule {method.schedule}"] if method.schedule != "constant" else []
        parts += ["printed cap"] if method.cap != "released" else []
    if method.name == "ppd":
        parts.append(method.execution + (", trained heads" if method.heads is not None else ""))
    parts += [f"{method.num_beams} beams"] if method.num_beams > 1 else []
    return " / ".join(parts)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A target, how its prompts are made, and what drafts for it: ``drafters`` beside the draft model (the first of them).

    ``early_layer`` is where transformers' loop lets the target draft for itself, in families that can.
    """

    name: str
    session: str
    plain: Experiment
    drafters: tuple[DrafterSpec, ...]
    early_layer: int | None = None

    def greedy(self, *methods: MethodSpec, batch: int = 1, against: MethodSpec = PLAIN) -> Iterator[Subject]:
        return self._subjects(methods, self.plain.replace(method=against, batch_size=batch))

    def sampled(self, *methods: MethodSpec, sampling: Sampling = DRAWN) -> Iterator[Subject]:
        return self._subjects(methods, self.plain.replace(sampling=sampling))

    def _subjects(self, methods: Sequence[MethodSpec], plain: Experiment) -> Iterator[Subject]:
        return (Subject(pair=self.name, session=self.session, plain=plain, method=method) for method in methods)

    def method(self, drafter: DrafterSpec | None = None, **fields: Any) -> MethodSpec:
        return MethodSpec(name="speculative", drafter=drafter or self.drafters[0], **({"gamma": GAMMA} | fields))

    def theirs(self) -> list[MethodSpec]:
        """transformers' assisted generation, by everything that drafts there."""
        drafters = [self.drafters[0], DrafterSpec(kind=LOOKUP)]
        methods = [replace(GENERATE, drafter=drafter, gamma=GAMMA) for drafter in drafters]
        exits = DrafterSpec(kind=EXIT)
        early = (
            [] if self.early_layer is None else [replace(GENERATE, drafter=exits, gamma=GAMMA, early_layer=self.early_layer)]
        )
        return [*methods, *early]


def whole(pair: Pair) -> list[Subject]:
    """Every rule and kernel with the draft model, every drafter with speculative sampling, schedules, batches and beams."""
    first, others = pair.method(), [pair.method(drafter) for drafter in pair.drafters[1:]]
    rules = [pair.method(rule=rule) for rule in EXACT_RULES[1:]]
    schedules = [pair.method(**schedule) for schedule in SCHEDULES]
    beams = MethodSpec(name="speculative-beam", drafter=pair.drafters[0], gamma=GAMMA, num_beams=4, draft_beams=8)
    strict = [pair.method(rule="top-1"), pair.method(rule="top-1", cap="printed")]
    return [
        *pair.greedy(GENERATE, *pair.theirs(), first, *rules, *strict, *others, *schedules),
        *pair.greedy(*(pair.method(**rule) for rule in LOSSY_GREEDY), BEAM),
        *pair.greedy(PLAIN, first, *others, batch=BATCH),
        *pair.greedy(beams, replace(GENERATE, num_beams=4), against=BEAM),
        *pair.greedy(BEAM, against=BEAM, batch=BATCH),
        *pair.sampled(PLAIN, GENERATE, first, *rules, *others, *schedules),
        *pair.sampled(*(pair.method(rule=rule) for rule in EXACT_RULES), sampling=FILTERED),
        *pair.sampled(*(pair.method(**rule) for rule in LOSSY_SAMPLED)),
    ]


def short(pair: Pair) -> list[Subject]:
    """The paths that a family of models adds: its sessions, alone and in batches, greedy and sampled, beams."""
    all_of, theirs = [pair.method(drafter) for drafter in pair.drafters], pair.theirs()
    beams = MethodSpec(name="speculative-beam", drafter=pair.drafters[0], gamma=GAMMA, num_beams=4, draft_beams=8)
    return [
        *pair.greedy(GENERATE, *theirs, *all_of),
        *pair.greedy(PLAIN, *all_of, batch=BATCH),
        *pair.greedy(beams, replace(GENERATE, num_beams=4), against=BEAM),
        *pair.greedy(BEAM, against=BEAM, batch=BATCH),
        *pair.sampled(PLAIN, *all_of, pair.method(rule="fused"), *(theirs if pair.early_layer else ())),
    ]


def blocks(pair: Pair) -> list[Subject]:
    """A block drafter: strict and relaxed rules, and the drafter alone."""
    relaxed = pair.method(rule="top-beta", beta=3, tau=2.0)
    return [
        *strict_blocks(pair),
        *pair.greedy(GENERATE, pair.method(rule="top-1", cap="printed")),
        *pair.greedy(relaxed, MethodSpec(name="drafter-alone", drafter=pair.drafters[0], gamma=GAMMA)),
        *pair.greedy(PLAIN, relaxed, batch=BATCH),
        *pair.sampled(PLAIN),
    ]


def strict_blocks(pair: Pair) -> list[Subject]:
    """What drafts blocks, greedy alone and in batches, and sampled."""
    strict = [pair.method(drafter, rule="top-1") for drafter in pair.drafters]
    drawn = [pair.method(drafter) for drafter in pair.drafters]
    return [*pair.greedy(*strict), *pair.greedy(*strict, batch=BATCH), *pair.sampled(*drawn)]


def pipelines(pair: Pair, early_layer: int, heads: ModelSpec | None = None) -> list[Subject]:
    """PPD's executions; it draws from the target alone, so also its samples must be plain decoding's, token for token."""
    ppd = MethodSpec(name="ppd", early_layer=early_layer, candidates=1)
    each = [replace(ppd, execution=one, candidates=1 if one == "process" else 2) for one in EXECUTIONS]
    methods = [*each, *([] if heads is None else [replace(ppd, heads=heads)])]
    return [*pair.greedy(*methods), *pair.sampled(*methods)]


def hearing(pair: Pair) -> list[Subject]:
    """A model that hears: exact and sigmoid verification."""
    rules = [pair.method(rule=rule) for rule in EXACT_RULES]
    return [
        *pair.greedy(GENERATE, *pair.theirs(), *rules),
        *pair.greedy(PLAIN, rules[0], batch=BATCH),
        *pair.sampled(PLAIN, *rules, *(pair.method(rule=rule) for rule in ("sigmoid", "sigmoid-released"))),
    ]


def key_of(experiment: Experiment) -> tuple[str, ...]:
    """What two experiments share if one's verdict is the other's: everything that is plugged in, and whether tokens are drawn.

    Models, sizes and numbers (gamma, lenience) are left out: they move speeds and distances, not whether a path is exact.
    """
    method, drafter = experiment.method, experiment.method.drafter
    plugged = () if drafter is None else (drafter.kind, drafter.encoder)
    rule = (method.rule, method.cap) if method.name == "speculative" else ()
    execution = (method.execution,) if method.name == "ppd" else ()
    beams = ("beams",) if method.num_beams > 1 else ()
    return (method.name, *plugged, *rule, *execution, *beams, "greedy" if experiment.sampling.greedy else "sampled")
