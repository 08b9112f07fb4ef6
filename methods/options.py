"""The parts of methods: their options, and the files that trained ones are kept in. Imports no torch, so that plans need none.

The options of a part are a frozen dataclass: its fields are flags of ``foretoken run`` and stand in an experiment's signature.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, fields, make_dataclass
from functools import cache, partial
from importlib import import_module
from typing import Any, ClassVar, get_type_hints

from kernels.inputs import InputError, SamplingSpec

SCALARS = (bool, int, float, str, bool | None, int | None, float | None, str | None)
EARLY_HEADS, BLOCKWISE_HEADS, NGRAM_TABLE = "heads.safetensors", "blockwise.safetensors", "ngram.safetensors"


def option(default: Any, text: str, choices: tuple[str, ...] = (), least: int | None = None) -> Any:
    """A field of options: its default, what `foretoken run --help` says of it, and its values or the least integer."""
    return field(default=default, metadata={"help": text, "choices": choices, "least": least})


def check_gamma(gamma: int) -> None:
    """Raise InputError for a round that would draft nothing."""
    if gamma < 1:
        raise InputError(f"gamma {gamma!r}: expected an integer >= 1; for plain decoding use --method autoregressive")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Base of all options, and the options of a part that has none. ``label``: what of them stands behind a rule's name."""

    label: ClassVar[str] = ""

    def check(self, *, sampling: SamplingSpec, device: str, num_threads: int | None) -> None:
        """Raise InputError where the part cannot run under these settings of an experiment."""

    def __post_init__(self) -> None:
        for one in fields(self):
            value, choices = getattr(self, one.name), one.metadata.get("choices", ())
            if choices and value not in choices:
                raise InputError(f"{one.name} {value!r}: expected one of {', '.join(choices)}")
            least = one.metadata.get("least")
            if least is not None and value is not None and value < least:
                raise InputError(f"{one.name} {value!r}: expected an integer >= {least}")


@dataclass(frozen=True)
class MethodOptions(Options):
    """``takes`` names the parts that a method is put together from, of drafter, rule, schedule and heads."""

    takes: ClassVar[tuple[str, ...]] = ()
    needs_drafter: ClassVar[bool] = False


@dataclass(frozen=True)
class Part:
    """A part by name: its options are known at once, its class is imported when it is first made.

    ``path`` is "module:name". ``options`` None reads them off the signature, as for a plug-in, which imports the module.
    ``reads`` is what a drafter's model is: a "language" model (or an n-gram table), a "block" drafter, trained "heads", "none".
    """

    path: str
    options: type[Any] | None = None
    reads: str = "language"

    def load(self) -> Callable[..., Any]:
        module, _, name = self.path.partition(":")
        made: Callable[..., Any] = getattr(import_module(module), name)
        return made

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self.load()(*arguments, **options)


@cache
def options_class(entry: Callable[..., Any]) -> type[Any]:
    """The options of a registered part. Those of a plug-in are the parameters that have a default and a plain type."""
    if isinstance(entry, Part):
        return entry.options or options_class(entry.load())
    function = entry.func if isinstance(entry, partial) else entry
    hints = get_type_hints(vars(function).get("__init__", function) if isinstance(function, type) else function)
    found = [
        (one.name, hints[one.name], field(default=one.default))
        for one in inspect.signature(entry).parameters.values()
        if one.default is not one.empty and hints.get(one.name) in SCALARS
    ]
    return make_dataclass(f"{getattr(entry, '__name__', 'Plugin')}Options", found, frozen=True, kw_only=True)


class Unknown:
    """Base of the options of a part that this process does not know, as records of a plug-in have them."""


@cache
def unknown_options(names: tuple[str, ...]) -> type[Any]:
    return make_dataclass("UnknownOptions", [(name, Any) for name in names], bases=(Unknown,), frozen=True, kw_only=True)


def values_of(options: Any) -> dict[str, Any]:
    """The options of a part by name."""
    return {one.name: getattr(options, one.name) for one in fields(options)}
