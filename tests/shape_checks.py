"""Check the shapes in annotations while tests run, each kind of call once.

jaxtyping's import hook checks every call of every function, which costs more than most of the calls do. Whether a call passes
depends on the types, shapes and dtypes of its arguments and of its result alone, so a call that looks like one that has
passed is not checked again. Lists and dictionaries are looked into as beartype does: not at every element.
"""

import dataclasses
import functools
import inspect
import threading
import types
from collections.abc import Callable
from typing import Any

import jaxtyping

_check = jaxtyping.jaxtyped


def install(modules: list[str]) -> None:
    """Check all functions of these packages; call it before they are imported."""
    jaxtyping.jaxtyped = checked_once
    jaxtyping.install_import_hook(modules, "beartype.beartype")


def checked_once(fn: Any = None, *, typechecker: Any) -> Any:
    """Return a function or dataclass whose calls are checked where they look new; it takes the place of jaxtyping.jaxtyped."""
    if fn is None:
        return functools.partial(checked_once, typechecker=typechecker)
    if inspect.isclass(fn):
        if dataclasses.is_dataclass(fn) and "__init__" in vars(fn) and not hasattr(fn.__init__, "__wrapped__"):
            fn.__init__ = _once(fn.__init__, typechecker)
        return fn
    reads_values = any("{" in str(annotation) for annotation in getattr(fn, "__annotations__", {}).values())
    if reads_values or not inspect.isfunction(fn) or inspect.isgeneratorfunction(fn):
        return _check(fn, typechecker=typechecker)
    return _once(fn, typechecker)


def _once(fn: Callable[..., Any], typechecker: Any) -> Callable[..., Any]:
    """Return ``fn`` with checks of the calls that look like none that passed."""
    passed: dict[Any, set[Any]] = {}  # looks of the arguments: looks of the results
    result = threading.local()

    def returning(*args: Any, **kwargs: Any) -> Any:
        return result.known.pop() if getattr(result, "known", None) else fn(*args, **kwargs)

    # jaxtyping resolves names in annotations among the globals of the function that it is given.
    twin = functools.update_wrapper(types.FunctionType(returning.__code__, fn.__globals__, closure=returning.__closure__), fn)
    check = _check(twin, typechecker=typechecker)

    @functools.wraps(fn)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if jaxtyping.config.jaxtyping_disable:
            return fn(*args, **kwargs)
        looks = (*map(_looks, args), *((name, _looks(value)) for name, value in kwargs.items()))
        results = passed.get(looks)
        if results is None:
            value = check(*args, **kwargs)
            passed[looks] = {_looks(value)}
            return value
        value = fn(*args, **kwargs)
        if (seen := _looks(value)) not in results:
            result.known = [value]
            check(*args, **kwargs)
            results.add(seen)
        return value

    return checked


def _looks(value: Any) -> Any:
    """Return what the checks can see of a value: type, shape and dtype, and the same of what a container holds."""
    kind = type(value)
    if kind is str or kind is bool:
        return value
    if (shape := getattr(value, "shape", None)) is not None and (dtype := getattr(value, "dtype", None)) is not None:
        return kind, tuple(shape), dtype
    if isinstance(value, tuple):
        return kind, tuple(map(_looks, value))
    if isinstance(value, list):
        return (kind, _looks(value[0]), _looks(value[-1])) if value else (kind,)
    if isinstance(value, dict) and value:
        return (kind, *map(_looks, next(iter(value.items()))))
    return kind
