"""What is run: a frozen description whose signature covers every field.

Two experiments that differ in anything have different signatures, and a record file belongs to exactly one signature.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Self

from harness.core.errors import UsageError
from harness.core.files import made, plain, short_hash, written
from kernels.inputs import ROUNDINGS, Rounding, SamplingSpec
from methods.options import Unknown, options_class, unknown_options, values_of
from methods.parts import DRAFTERS, METHODS, RULES, SCHEDULES, Registry

ZOO = "zoo:"  # a model's name begins with it where the zoo's is meant
POCKET = "pocket:"  # and with this where a public model that `foretoken get` fetches is meant
FOLDER = "folder"  # stands for the path of a folder of data in what is committed: fingerprints say what was in it
TRANSLATED = ("tli", "slem")  # kinds of drafters whose model has another vocabulary than the target
ROUNDED = "rounded"  # the kind of drafter whose model is the target with narrower weights
UNSIGNED = ("limit", "repeats", "probes")  # how much, and what is measured over it
LATER = ("graphs", "attention")  # fields that experiments did not always have: at its default such a one is not written down
DTYPES = ("float32", "float64", "bfloat16", "float16")
WIDE_DTYPES = DTYPES[:2]  # which hold every number that weights are rounded to
ATTENTIONS = ("eager", "sdpa", "flash_attention_2")  # as transformers names them


def _reduced(spec: Any) -> tuple[Any, tuple[()]]:
    """Pickle a spec with its options by name, because the class of a plug-in's options exists in one process alone."""
    kind: Callable[..., Any] = type(spec)
    values = {one.name: getattr(spec, one.name) for one in fields(spec)}
    return partial(kind, **values | {"options": plain(spec.options)}), ()


def _settle(spec: Any, registry: Registry, name: str) -> None:
    """Make a part's options of what was given for them: an object, a dictionary, or None for the defaults."""
    kind = options_class(registry[name]) if name in registry else None
    given = spec.options
    if isinstance(given, Unknown) and kind is not None:  # its plug-in has been loaded since
        given = values_of(given)
    if not isinstance(given, Mapping | None):
        if kind is not None and type(given) is not kind:
            raise UsageError(f"options {given!r}: {name!r} has others; expected {kind.__name__}")
        return
    values = dict(given or {})
    kind = kind or unknown_options(tuple(values))
    try:
        object.__setattr__(spec, "options", kind(**values_of(made(kind, values))))
    except ValueError as error:
        raise UsageError(str(error)) from error


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A model by name: ``zoo:NAME``, ``pocket:NAME``, a local folder, a GGUF file, or a Hub id; behind ``bf16:`` or ``int8:``,
    with its weights rounded so.

    ``zoo:NAME@2`` is the third training of that model of the zoo, by a seed of its own; the first one has no number. A rounded
    model is another one: with a name, and so signatures, facts and verdicts of its own. ``revision`` pins what the name means:
    the recipe's hash for the zoo, the hash of the files for a folder or a GGUF file and
    of where they came from for pocket, a commit for the Hub. ``untrained`` puts seeded random weights
    in the place of its own. ``device_map`` "auto" spreads the layers of a model that is larger than a device over all that are
    there.
    """

    name: str
    revision: str | None = None
    untrained: bool = False
    device_map: str | None = None

    @property
    def rounding(self) -> Rounding | None:
        """Return what the name says that linear weights are rounded to; None where they stay."""
        return next((one for one in ROUNDINGS if self.name.startswith(f"{one}:")), None)

    @property
    def base(self) -> str:
        """Return the name of the model whose weights are rounded, or its own."""
        return self.name if self.rounding is None else self.name.partition(":")[2]

    @property
    def whole(self) -> "ModelSpec":
        """Return the model whose weights are rounded, or this one."""
        return replace(self, name=self.base)

    @property
    def narrower(self) -> "tuple[ModelSpec, ...]":
        """Return the models of the same weights in fewer bytes."""
        roundings = ROUNDINGS if self.rounding is None else ROUNDINGS[ROUNDINGS.index(self.rounding) + 1 :]
        return tuple(replace(self, name=f"{rounding}:{self.base}") for rounding in roundings)

    @property
    def zoo_name(self) -> str | None:
        """Return the name of a model of the zoo there, with the number of its training; None for any other model."""
        return self.base.removeprefix(ZOO) if self.base.startswith(ZOO) else None

    @property
    def short(self) -> str:
        """Return the name without the folders that lead to it; trainings of a model of the zoo share it."""
        name = self.base.partition("@")[0] if self.zoo_name is not None else Path(self.base).name
        return ("" if self.rounding is None else f"{self.rounding}:") + name


@dataclass(frozen=True, kw_only=True)
class DrafterSpec:
    """A drafter of ``methods.parts.DRAFTERS``; ``model`` for "model" and "hierarchical" (whose own drafter is ``inner``).

    For "rounded" ``model`` is the target with narrower weights, for "tli" and "slem" a model of another vocabulary, for the
    n-gram kinds the counted table, for "block" a block drafter, for "blockwise" trained heads.
    """

    kind: str
    model: ModelSpec | None = None
    inner: "DrafterSpec | None" = None
    options: Any = None
    __reduce__ = _reduced

    def __post_init__(self) -> None:
        _settle(self, DRAFTERS, self.kind)

    @property
    def is_model(self) -> bool:
        """Say whether a language model drafts."""
        return self.kind in ("model", ROUNDED, *TRANSLATED)

    @property
    def alone(self) -> "DrafterSpec":
        """Return a drafter that reads prompts itself: this one, or the model of one that goes on from what the target read."""
        return DrafterSpec(kind="model", model=self.model) if self.kind == ROUNDED else self

    @property
    def models(self) -> list[ModelSpec]:
        """Return all models that it names, those of what drafts for it too."""
        return ([] if self.model is None else [self.model]) + ([] if self.inner is None else self.inner.models)

    @property
    def label(self) -> str:
        """Return what tells it from other drafters of the same target."""
        if self.kind == ROUNDED:
            return f"rounded {self.name}"  # a model drafter may have the same model
        return self.name if self.is_model else self.kind

    @property
    def model_kind(self) -> str:
        """Say what ``model`` names: a "language" model (or an n-gram table), a "block" drafter, trained "heads" or "none"."""
        return getattr(DRAFTERS.get(self.kind), "reads", "language")

    @property
    def name(self) -> str:
        """The model's short name, or the kind of a drafter without one."""
        if self.model is None:
            return self.kind
        return self.model.short.replace("zoo:", "", 1) + (" untrained" if self.model.untrained else "")


class Probe:
    """A measurement over what an experiment generates. Its records lie in a file of their own, named by ``id``.

    A probe that ``decodes`` has the recorded text decoded once more, since what it measures disturbs the times of a generation;
    the others read the recorded text by teacher forcing.
    """

    decodes: ClassVar[bool] = False

    def to_json(self) -> str:
        """Canonical: keys sorted, floats at full precision."""
        return written(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Return a probe of this kind from what its JSON holds."""
        return made(cls, values)

    @cached_property
    def id(self) -> str:
        """The kind and a hash of all fields."""
        digest = short_hash(self.to_json(), 8)
        return f"{type(self).__name__.removesuffix('Probe').lower()}-{digest}"


@dataclass(frozen=True, kw_only=True)
class OverlapProbe(Probe):
    """A drafter's sum of min(p, q) with the target at every position, also at each value of ``leniences`` (min(p / l, q))."""

    drafter: DrafterSpec
    leniences: tuple[float, ...] = (1.0,)


@dataclass(frozen=True, kw_only=True)
class EarlyProbe(Probe):
    """The rank of every emitted token after each of ``layers``, by the model's own head (``heads`` None) or by trained ones."""

    layers: tuple[int, ...]
    heads: ModelSpec | None = None

    @property
    def label(self) -> str:
        """The paper's letter."""
        return "N" if self.heads is None else "Y"


@dataclass(frozen=True)
class MemoryProbe(Probe):
    """The peak of memory of every batch."""

    decodes: ClassVar[bool] = True


@dataclass(frozen=True)
class RuleTimesProbe(Probe):
    """The time of every call of the verify rule (harness.run.instruments), taken along with the generation on a CPU."""

    decodes: ClassVar[bool] = True


@dataclass(frozen=True)
class RuleSpec:
    """A verify rule of ``methods.parts.RULES``."""

    name: str = "speculative-sampling"
    options: Any = None
    __reduce__ = _reduced

    def __post_init__(self) -> None:
        _settle(self, RULES, self.name)


@dataclass(frozen=True)
class ScheduleSpec:
    """A schedule of ``methods.parts.SCHEDULES``."""

    name: str = "constant"
    options: Any = None
    __reduce__ = _reduced

    def __post_init__(self) -> None:
        _settle(self, SCHEDULES, self.name)


@dataclass(frozen=True, kw_only=True)
class MethodSpec:
    """A method of ``methods.parts.METHODS`` with the parts that it takes; rule and schedule are None where it takes none.

    ``heads`` names trained early heads in place of the model's own. ``MethodSpec.of`` is the short way to write one.
    """

    name: str
    options: Any = None
    __reduce__ = _reduced
    drafter: DrafterSpec | None = None
    rule: RuleSpec | None = None
    schedule: ScheduleSpec | None = None
    heads: ModelSpec | None = None

    def __post_init__(self) -> None:
        _settle(self, METHODS, self.name)
        takes = getattr(self.options, "takes", None)  # None: of a plug-in, which reads what it likes
        for part in ("drafter", "rule", "schedule", "heads"):
            if takes is not None and part not in takes and getattr(self, part) is not None:
                raise UsageError(f"{part}: method {self.name!r} takes none; leave it out")
        for part in ("drafter", "rule", "schedule"):
            if (spec := getattr(self, part)) is not None and isinstance(spec.options, Unknown):
                object.__setattr__(self, part, replace(spec))
        for part, default in (("rule", RuleSpec), ("schedule", ScheduleSpec)):
            if part in (takes or ()) and getattr(self, part) is None:
                object.__setattr__(self, part, default())

    @classmethod
    def of(
        cls,
        name: str,
        *,
        drafter: DrafterSpec | None = None,
        heads: ModelSpec | None = None,
        rule: str | None = None,
        schedule: str | None = None,
        **options: Any,
    ) -> Self:
        """Make a method of parts by name; each option goes to the method, the schedule or the rule that reads it.

        >>> MethodSpec.of("speculative", drafter=DrafterSpec(kind="copy"), rule="top-beta", beta=5, gamma=4)
        """
        takes = getattr(options_class(METHODS[name]), "takes", None) if name in METHODS else None
        own = _pop(METHODS, name, options)
        spec = cls(
            name=name,
            options=own,
            drafter=drafter,
            heads=heads,
            schedule=_chosen(ScheduleSpec, SCHEDULES, schedule, "schedule" in (takes or ()), options),
            rule=_chosen(RuleSpec, RULES, rule, "rule" in (takes or ()), options),
        )
        if options:
            raise UsageError(f"{next(iter(options))}: no part of {', '.join(map(str, spec.values.values()))} reads it")
        return spec

    def change(self, **changes: Any) -> Self:
        """Return a copy with other parts or options. Another rule or schedule begins with its own defaults."""
        kept: dict[str, Any] = {"name": self.name, "drafter": self.drafter, "heads": self.heads, **values_of(self.options)}
        for part in ("rule", "schedule"):
            if (spec := getattr(self, part)) is not None:
                kept |= {part: spec.name} | (values_of(spec.options) if part not in changes else {})
        return type(self).of(**(kept | changes))

    @property
    def values(self) -> dict[str, Any]:
        """The names of the method and its parts, and the options of all of them, by name."""
        found = {"method": self.name, **values_of(self.options)}
        if self.drafter is not None:
            found |= {"drafter": self.drafter.kind, **values_of(self.drafter.options)}
        for part in ("schedule", "rule"):
            if (spec := getattr(self, part)) is not None:
                found |= {part: spec.name, **values_of(spec.options)}
        return found

    @property
    def gamma(self) -> int:
        """Return how many tokens a round drafts at first; 0 if no part has this option."""
        return int(self.values.get("gamma", 0))

    @property
    def has_constant_gamma(self) -> bool:
        """Say whether gamma stays the same from round to round."""
        return self.schedule is None or self.schedule.name == "constant"

    @property
    def num_beams(self) -> int:
        return int(self.values.get("num_beams", 1))

    @property
    def is_pipeline(self) -> bool:
        """Say whether it is PPD, the only method with an ``execution``."""
        return "execution" in self.values


def _pop(registry: Registry, name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Take the options of a part out of those that were given."""
    if name not in registry:
        return {}
    return {one.name: options.pop(one.name) for one in fields(options_class(registry[name])) if one.name in options}


def _chosen(kind: type, registry: Registry, name: str | None, taken: bool, options: dict[str, Any]) -> Any:
    if name is None and not taken:
        return None
    name = name or kind().name
    return kind(name, _pop(registry, name, options))


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A description of what is generated (task, models, method, sampling), how much of it, and what is measured over it.

    The signature covers all of what is generated and how it is timed, and so every field but those of UNSIGNED: records of
    ``limit`` examples go on where a smaller limit stopped, and each of ``probes`` has records of its own.
    ``source_fingerprint`` pins the data. ``comparison`` names what an arm is timed beside (``comparison_id``): times of two
    arms are compared only where they took turns, so arms of different comparisons are recorded apart; it is empty where nobody
    reads the times. ``num_threads`` counts those of this process; None is all cores. A pipeline divides them among its
    processes while it decodes. With ``graphs`` sessions have fixed shapes (methods.static), on CUDA passes are graphs.
    ``attention`` names which of transformers' its models without a stack of their own run; None is transformers' choice.
    ``plugins`` are the identities of those that it names (harness.core.plugins), filled in when it
    is pinned.

    The examples of an experiment with ``replicas`` are divided: each replica is an experiment of its own (``divided``) that
    takes every so-manieth example and runs in a process of its own, so that intervals hold what differs between processes, too.
    ``replica`` is its number, None in the experiment that is divided. With ``retrained`` each also has its own training of
    every model of the zoo.
    """

    task: str
    source: str = "toy"
    source_fingerprint: str = ""
    profile: str = "toy"
    target: ModelSpec
    method: MethodSpec
    sampling: SamplingSpec = SamplingSpec()
    seed: int = 0
    batch_size: int = 1
    max_new_tokens: int = 128
    max_input_tokens: int | None = None
    ignore_eos: bool = False
    prompt_style: str = "instruction"
    prompt_template: str | None = None
    chat_template: bool = False
    comparison: str = ""
    device: str = "cpu"
    dtype: str = "float32"
    num_threads: int | None = None
    graphs: bool = False
    attention: str | None = None
    plugins: tuple[str, ...] = ()
    replicas: int = 1
    replica: int | None = None
    retrained: bool = False
    limit: int = 20
    repeats: int = 1
    probes: tuple[Probe, ...] = ()

    def __post_init__(self) -> None:
        for name in ("limit", "repeats", "batch_size", "max_new_tokens", "replicas"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} {getattr(self, name)!r}: expected an integer >= 1")
        if self.replica is not None and not 0 <= self.replica < self.replicas:
            raise UsageError(f"replica {self.replica!r}: expected one of the {self.replicas}, counted from 0")
        labels = [drafter.label for drafter in self.overlap]
        if len(set(labels)) != len(labels):
            raise UsageError(f"overlap {', '.join(labels)}: two drafters share a name; rename a model's folder")
        if RuleTimesProbe() in self.probes and self.batch_size > 1:
            raise UsageError(f"batch_size {self.batch_size}: calls of a rule are timed one row at a time; expected 1")
        if self.dtype not in DTYPES:
            raise UsageError(f"dtype {self.dtype!r}: expected one of {', '.join(DTYPES)}")
        if self.attention not in (None, *ATTENTIONS):
            raise UsageError(f"attention {self.attention!r}: expected one of {', '.join(ATTENTIONS)}")
        settings = {"sampling": self.sampling, "device": self.device, "num_threads": self.num_threads}
        method = self.method
        for part in (method, method.drafter, method.rule, method.schedule):
            if part is not None and hasattr(part.options, "check"):
                part.options.check(**settings)

    def replace(self, **changes: Any) -> Self:
        return replace(self, **changes)

    def divided(self) -> tuple[Self, ...]:
        """Return what is run for it: its replicas, as many as there are examples for; without any it is itself."""
        if self.replicas == 1 or self.replica is not None:
            return (self,)
        shares = (len(range(number, self.limit, self.replicas)) for number in range(self.replicas))
        parts = (self.replace(replica=number, limit=share, retrained=False) for number, share in enumerate(shares) if share)
        return tuple(part.with_models(_training_of(part.replica)) if self.retrained else part for part in parts)

    def with_models(self, change: Callable[[ModelSpec], ModelSpec]) -> Self:
        """Return the same with other models: what ``change`` makes of each, of those that draft and those of probes, too."""

        def drafter(spec: DrafterSpec | None) -> DrafterSpec | None:
            return None if spec is None else changed(spec)

        def changed(spec: DrafterSpec) -> DrafterSpec:
            return replace(spec, model=None if spec.model is None else change(spec.model), inner=drafter(spec.inner))

        def probe(one: Probe) -> Probe:
            if isinstance(one, OverlapProbe):
                return replace(one, drafter=changed(one.drafter))
            return replace(one, heads=change(one.heads)) if isinstance(one, EarlyProbe) and one.heads is not None else one

        method = self.method
        heads = None if method.heads is None else change(method.heads)
        return self.replace(
            target=change(self.target),
            method=replace(method, drafter=drafter(method.drafter), heads=heads),
            probes=tuple(map(probe, self.probes)),
        )

    def to_json(self) -> str:
        """Canonical: keys sorted, floats at full precision. Probes describe themselves beside their own records."""
        unchanged = [one.name for one in fields(self) if one.name in LATER and getattr(self, one.name) == one.default]
        return written(self.replace(probes=()), without=unchanged)

    @property
    def signed(self) -> Self:
        """Return the part that the signature covers: a copy with the fields of UNSIGNED at their defaults."""
        return self.replace(**{one.name: one.default for one in fields(self) if one.name in UNSIGNED})

    @property
    def portable(self) -> Self:
        """Return the same without the place of its data where that is a folder or a file of the user's."""
        return self.replace(source=portable_source(self.source))

    @cached_property
    def signature(self) -> str:
        """Return a hash of what is signed. Where the data's fingerprint is known it does not matter where they lie."""
        signed = self.portable.signed if self.source_fingerprint else self.signed
        return short_hash(signed.to_json())

    @property
    def draft_models(self) -> tuple[ModelSpec, ...]:
        """The models that draft: the method's own, and those whose overlap is measured."""
        drafters = (*([self.method.drafter] if self.method.drafter else []), *self.overlap)
        return tuple(dict.fromkeys(one.model for one in drafters if one.model is not None))

    @property
    def num_runs(self) -> int:
        """Return how many records it has when it is complete."""
        return self.limit * self.repeats

    @property
    def overlap(self) -> tuple[DrafterSpec, ...]:
        """The drafters whose overlap with the target is measured."""
        return tuple(one.drafter for one in self.probes if isinstance(one, OverlapProbe))

    @property
    def early(self) -> tuple[EarlyProbe, ...]:
        return tuple(one for one in self.probes if isinstance(one, EarlyProbe))

    def takes_along(self, probe: Probe) -> bool:
        """Say whether a probe measures during or right after generation, and not while the text is decoded once more."""
        return not probe.decodes or (isinstance(probe, RuleTimesProbe) and self.device == "cpu")

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """UsageError, naming the field, for what is no description of this version."""
        try:
            return made(cls, values)
        except ValueError as error:
            raise UsageError(f"experiment: {error}; expected its description as a run writes it") from error


@dataclass(frozen=True)
class Comparison:
    """Arms that share task, data and target and run interleaved, example by example; one arm alone is a comparison too.

    With ``decoded_for`` they are recorded already and decoded once more, for that probe.
    """

    arms: tuple[Experiment, ...]
    decoded_for: Probe | None = None

    @property
    def replica(self) -> int | None:
        """The replica that its arms are, if they are one."""
        return self.arms[0].replica

    def divided(self) -> tuple["Comparison", ...]:
        """Return the comparisons that are run for it: one a replica."""
        return tuple(Comparison(arms) for arms in zip(*(arm.divided() for arm in self.arms), strict=True))

    @property
    def holds_memory(self) -> bool:
        """Say whether it is decoded to measure memory, so that its times do not count."""
        return isinstance(self.decoded_for, MemoryProbe)

    @property
    def is_timed(self) -> bool:
        """Say whether its times are shown: those of arms that are compared, undisturbed, and of profiled rules.

        An arm alone (alpha, match rates, quality) has records with times that nothing reads.
        """
        if self.decoded_for is not None:
            return not self.holds_memory
        return len(self.arms) > 1 or RuleTimesProbe() in self.arms[0].probes

    def __post_init__(self) -> None:
        own = {"method", "probes", "num_threads", "plugins"}
        for field in fields(Experiment):
            values = {getattr(arm, field.name) for arm in self.arms} if field.name not in own else set()
            if len(values) > 1:
                raise UsageError(f"comparison: arms differ in {field.name} ({', '.join(map(str, values))}); expected the same")


def arms_of(plan: Iterable[Comparison]) -> list[Experiment]:
    """Return the arms of comparisons in their order, one that several share once."""
    return list(dict.fromkeys(arm for comparison in plan for arm in comparison.arms))


def portable_source(source: str) -> str:
    """Return what is committed as the source of data."""
    return source if source in ("toy", "hub") else FOLDER


def _training_of(number: int | None) -> Callable[[ModelSpec], ModelSpec]:
    """Return what names the training of this number of a model of the zoo; the first one has its recipe's name alone."""

    def named(spec: ModelSpec) -> ModelSpec:
        return replace(spec, name=f"{spec.name}@{number}") if number and spec.zoo_name is not None else spec

    return named


def comparison_id(paper: str, name: str, *chosen: object) -> str:
    """Return a short name for a comparison of a paper; with a hash of what was ``chosen`` for it in place of the defaults."""
    words = re.sub("[^a-z0-9.]+", "-", f"{paper} {name}".lower()).strip("-")
    told = [repr(one) for one in chosen if one]
    return f"{words}-{short_hash('/'.join(told), 8)}" if told else words


def plain_arms(plain: Experiment, method: MethodSpec) -> tuple[Experiment, ...]:
    """Return what a method is timed against: plain decoding, and for a pipeline of one-threaded processes also on one thread.

    Small models are often faster on one thread than on all; the faster arm is the baseline.
    """
    if not method.is_pipeline or plain.num_threads is not None or plain.device != "cpu":
        return (plain,)
    return (plain, plain.replace(num_threads=1))
