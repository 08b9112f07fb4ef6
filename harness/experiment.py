"""What is run: a frozen description whose signature covers every field.

Two experiments that differ in anything have different signatures, and a record file belongs to exactly one signature.
"""

import hashlib
import json
from dataclasses import Field, dataclass, fields, is_dataclass, replace
from dataclasses import field as dataclass_field
from pathlib import Path
from typing import Any, Self

from harness.errors import UsageError
from harness.names import DRAFTING, DTYPES
from harness.typed import check_types
from methods.sampling import Sampling

GREEDY_RULES = ("top-1", "top-beta")


def later(default: Any) -> Any:
    """A field that descriptions did not have from the start: at its default it is left out of them, so that what was recorded
    before it came keeps its signature."""
    return dataclass_field(default=default, metadata={"later": True})


def _left_out(thing: Any, one: Field) -> bool:
    return "later" in one.metadata and getattr(thing, one.name) == one.default


def _shown(thing: Any) -> str:
    """As a dataclass shows itself, without what is left out: comparisons are told apart by what this says of a method."""
    shown = (f"{one.name}={getattr(thing, one.name)!r}" for one in fields(thing) if not _left_out(thing, one))
    return f"{type(thing).__qualname__}({', '.join(shown)})"


def _described(thing: Any) -> Any:
    """What JSON is made of."""
    if is_dataclass(thing):
        return {one.name: _described(getattr(thing, one.name)) for one in fields(thing) if not _left_out(thing, one)}
    return [_described(one) for one in thing] if isinstance(thing, tuple) else thing


@dataclass(frozen=True, kw_only=True, repr=False)
class ModelSpec:
    """A model by name: ``zoo:NAME``, a local folder, or a Hub id.

    ``revision`` pins what the name means: the recipe's hash for the zoo, the files' hash for a folder, a commit for the Hub.
    ``untrained`` puts seeded random weights in the place of its own. ``device_map`` "auto" spreads the layers of a model that
    is larger than a device over all that are there.
    """

    name: str
    revision: str | None = None
    untrained: bool = later(False)
    device_map: str | None = later(None)

    __repr__ = _shown


@dataclass(frozen=True, kw_only=True)
class DrafterSpec:
    """A drafter by kind; ``model`` for "model" and "hierarchical" (whose own drafter is ``inner``, drafting ``inner_gamma``).

    For the n-gram kinds ``model`` names the counted table, for "block" a block drafter, for "blockwise" trained heads.
    ``encoder`` says what encodes a source for kind "block": its "own" encoder, the target's ("shared"), or its own beside the
    target's, at the same time ("concurrent").
    """

    kind: str
    model: ModelSpec | None = None
    inner: "DrafterSpec | None" = None
    inner_gamma: int = 2
    encoder: str = "own"

    @property
    def label(self) -> str:
        return self.name if self.kind == "model" else self.kind

    @property
    def name(self) -> str:
        """The model's short name, or the kind of a drafter without one."""
        if self.model is None:
            return self.kind
        return Path(self.model.name).name.removeprefix("zoo:") + (" untrained" if self.model.untrained else "")


@dataclass(frozen=True, kw_only=True)
class EarlySpec:
    """Where a match rate is read: after each of ``layers``, by the model's own head (``heads`` None) or by trained ones."""

    layers: tuple[int, ...]
    heads: ModelSpec | None = None

    @property
    def label(self) -> str:
        """The paper's letter."""
        return "N" if self.heads is None else "Y"


@dataclass(frozen=True, kw_only=True, repr=False)
class MethodSpec:
    """A decoding method by name with what is plugged into it; see harness.build for the names.

    ``beta``, ``tau`` and ``score`` are those of rule "top-beta", ``cap`` also of "top-1" (methods.specdec.rules). ``scale`` and
    ``half_logits`` are those of the sigmoid rules (methods.speculative.rules); None is a rule's own default.
    For "ppd" ``early_layer`` and ``candidates`` are chosen from measurements where they are None, and ``heads`` names trained
    early heads in place of the model's own.
    """

    name: str
    drafter: DrafterSpec | None = None
    rule: str = "speculative-sampling"
    lenience: float = 1.0
    as_described: bool = False
    beta: int = 3
    tau: float = 1.0
    score: str = "verifier"
    cap: str = "released"
    schedule: str = "constant"
    gamma: int = 5
    alpha: float | None = None
    cost: float | None = None
    num_beams: int = 1
    draft_beams: int = 1
    early_layer: int | None = None
    candidates: int | None = None
    execution: str = "process"
    heads: ModelSpec | None = None
    scale: float | None = later(None)
    half_logits: bool = later(False)

    __repr__ = _shown


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One arm: a task, models, a method, how to sample, how often, on what.

    ``source_fingerprint`` pins the data. ``overlap`` names the drafters whose sum of min(p, q) with the target is measured by
    teacher forcing over this arm's output, also at each value of ``leniences`` (sum of min(p / l, q)). ``early`` names the
    layers and heads whose rank of every emitted token is measured likewise. ``beside`` says what a plain arm was interleaved
    with, so that its times belong to one comparison alone. ``num_threads`` counts those of this process; None is all cores. A
    pipeline divides them among its processes while it decodes. With ``memory`` the peak of every batch is measured, which
    disturbs its times: they are not shown. With ``profiled`` every call of a verify rule is (harness.profiled). ``plugins`` are
    the identities of those that it names (harness.plugins), filled in when it is pinned.
    """

    task: str
    source: str = "toy"
    source_fingerprint: str = ""
    profile: str = "toy"
    target: ModelSpec
    method: MethodSpec
    sampling: Sampling = Sampling()
    seed: int = 0
    limit: int = 20
    repeats: int = 1
    batch_size: int = 1
    max_new_tokens: int = 128
    max_input_tokens: int | None = None
    ignore_eos: bool = False
    prompt_style: str = "instruction"
    prompt_template: str | None = None
    chat_template: bool = False
    overlap: tuple[DrafterSpec, ...] = ()
    leniences: tuple[float, ...] = (1.0,)
    early: tuple[EarlySpec, ...] = ()
    beside: str = ""
    memory: bool = False
    device: str = "cpu"
    dtype: str = "float32"
    num_threads: int | None = None
    profiled: bool = later(False)
    plugins: tuple[str, ...] = later(())

    def __post_init__(self) -> None:
        for name, least in (("limit", 1), ("repeats", 1), ("batch_size", 1), ("max_new_tokens", 1)):
            if getattr(self, name) < least:
                raise UsageError(f"{name} {getattr(self, name)!r}: expected an integer >= {least}")
        labels = [drafter.label for drafter in self.overlap]
        if len(set(labels)) != len(labels):
            raise UsageError(f"overlap {', '.join(labels)}: two drafters share a name; rename a model's folder")
        if self.method.name == "speculative" and self.method.rule in GREEDY_RULES and not self.sampling.greedy:
            raise UsageError(
                f"temperature {self.sampling.temperature!r}: rule {self.method.rule!r} is defined at temperature 0 only; "
                "use rule 'speculative-sampling'"
            )
        drafter = self.method.drafter
        if drafter is not None and drafter.encoder == "concurrent" and self.device == "cpu" and self.num_threads != 1:
            raise UsageError(
                f"encoder 'concurrent': num_threads {self.num_threads or 'of all cores'}; on a CPU expected 1: two encoders "
                "with several threads each keep taking the cores from one another: use one thread (--threads 1)"
            )
        if self.profiled and (self.batch_size > 1 or self.memory):
            raise UsageError("profiled: calls are told apart one row at a time, undisturbed; expected batch_size 1, no memory")
        if self.dtype not in DTYPES:
            raise UsageError(f"dtype {self.dtype!r}: expected one of {', '.join(DTYPES)}")
        if self.method.name in DRAFTING and self.method.gamma < 1:
            raise UsageError(
                f"gamma {self.method.gamma}: expected an integer >= 1; for plain decoding use --method autoregressive"
            )

    def replace(self, **changes: Any) -> Self:
        return replace(self, **changes)

    def to_json(self) -> str:
        """Canonical: keys sorted, floats at full precision."""
        return json.dumps(_described(self), sort_keys=True, ensure_ascii=False, separators=(",", ":"))

    @property
    def signature(self) -> str:
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        return _revive(cls, values)


@dataclass(frozen=True)
class Comparison:
    """Arms that share task, data and target and run interleaved, example by example; one arm alone is a comparison too."""

    arms: tuple[Experiment, ...]

    def __post_init__(self) -> None:
        own = {"method", "overlap", "leniences", "early", "beside", "num_threads", "plugins"}
        for field in fields(Experiment):
            values = {getattr(arm, field.name) for arm in self.arms} if field.name not in own else set()
            if len(values) > 1:
                raise UsageError(f"comparison: arms differ in {field.name} ({', '.join(map(str, values))}); expected the same")


def plain_arms(plain: Experiment, method: MethodSpec) -> tuple[Experiment, ...]:
    """What a method is timed against: plain decoding, and for a pipeline of one-threaded processes also on one thread.

    Small models are often faster on one thread than on all; the faster arm is the baseline.
    """
    if method.name != "ppd" or plain.num_threads is not None or plain.device != "cpu":
        return (plain,)
    return (plain, plain.replace(num_threads=1))


_NESTED = {
    "target": ModelSpec,
    "model": ModelSpec,
    "heads": ModelSpec,
    "method": MethodSpec,
    "drafter": DrafterSpec,
    "inner": DrafterSpec,
    "sampling": Sampling,
}
_LISTED = {"overlap": DrafterSpec, "early": EarlySpec}


def _revive(kind: type, values: dict[str, Any]) -> Any:
    """Rebuild a frozen description from what ``asdict`` and JSON made of it."""
    if not isinstance(values, dict):
        raise UsageError(f"{kind.__name__}: is {str(values)[:40]!r}, expected an object of its fields")
    known = {field.name for field in fields(kind)}
    if unknown := sorted(set(values) - known):
        raise UsageError(f"{kind.__name__} field {unknown[0]!r}: not known to this version; expected some of {sorted(known)}")
    revived: dict[str, Any] = {}
    for name, value in values.items():
        if name in _NESTED and value is not None:
            value = _revive(_NESTED[name], value)
        elif isinstance(value, list):
            value = tuple(_revive(_LISTED[name], item) if name in _LISTED else item for item in value)
        revived[name] = value
    try:
        check_types(kind, revived)
        return kind(**revived)
    except TypeError as error:
        raise UsageError(f"{kind.__name__}: {error}; expected every field that has no default, each of its type") from error
