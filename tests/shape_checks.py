"""Check the shapes in annotations while tests run, each kind of call once.

jaxtyping's import hook checks every call of every function, which costs more than most of the calls do. Whether a call passes
depends on the types, shapes and dtypes of its arguments and of its result alone, so a call that looks like one that has
passed is not checked again. Lists, dictionaries and long tuples are looked into as beartype does: not at every element.
"""

import dataclasses
import functools
import inspect
import threading
import types
from collections.abc import Callable
from typing import Any, cast
from unittest.mock import patch

import jaxtyping
from jaxtyping import _import_hook

Passed = dict[Any, set[Any]]  # looks of the arguments: looks of the results

LONGEST = 8  # of tuples whose annotation tells how many elements they have

_check = jaxtyping.jaxtyped
_look_of: dict[type, Callable[[Any], Any] | None] = {}
_inner: dict[types.CodeType, tuple[dict[str, Any], Passed]] = {}  # of functions inside others, by their lines


def install(modules: list[str]) -> None:
    """Check all functions of these packages; call it before they are imported."""
    jaxtyping.jaxtyped = checked_once
    _import_hook._JaxtypingLoader.exec_module = _exec_module
    jaxtyping.install_import_hook(modules, "beartype.beartype")


def _exec_module(loader: Any, module: types.ModuleType) -> None:
    """Run a module of these packages. Bytecode has names of its own for them, not also for what they import, as in jaxtyping:

    a process of tests compiled 1,500 modules of transformers and torch anew, as none of them lies under such a name.
    """
    own_name = functools.partial(_import_hook._optimized_cache_from_source, loader._typechecker.get_hash())
    with patch("importlib._bootstrap_external.cache_from_source", own_name):
        code = loader.get_code(module.__name__)
    exec(code, module.__dict__)


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
    """Return ``fn`` with checks of the calls that look like none that passed.

    A function inside another is made anew whenever that runs: what passed is known of all of them together, and the checks
    themselves, which take milliseconds to make, are made where a call looks new.
    """
    passed = _passed_by(fn)
    result = threading.local()

    def returning(*args: Any, **kwargs: Any) -> Any:
        return result.known.pop() if getattr(result, "known", None) else fn(*args, **kwargs)

    @functools.cache
    def check() -> Callable[..., Any]:
        # jaxtyping resolves names in annotations among the globals of the function that it is given.
        twin = types.FunctionType(returning.__code__, fn.__globals__, closure=returning.__closure__)
        return cast(Callable[..., Any], _check(functools.update_wrapper(twin, fn), typechecker=typechecker))

    @functools.wraps(fn)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if jaxtyping.config.jaxtyping_disable:
            return fn(*args, **kwargs)
        looks = tuple([_looks(value) for value in args])
        if kwargs:
            looks += tuple([(name, _looks(value)) for name, value in kwargs.items()])
        results = passed.get(looks)
        if results is None:
            value = check()(*args, **kwargs)
            passed[looks] = {_looks(value)}
            return value
        value = fn(*args, **kwargs)
        if (seen := _looks(value)) not in results:
            result.known = [value]
            check()(*args, **kwargs)
            results.add(seen)
        return value

    return checked


def _passed_by(fn: Callable[..., Any]) -> Passed:
    """Return the calls that passed: of this function, or of one made by the same lines with the same annotations."""
    if "<locals>" not in fn.__qualname__:
        return {}
    annotations, passed = _inner.setdefault(fn.__code__, (fn.__annotations__, {}))
    return passed if annotations == fn.__annotations__ else {}


def _looks(value: Any) -> Any:
    """Return what the checks can see of a value: type, shape and dtype, and the same of what a container holds."""
    kind = type(value)
    try:
        look = _look_of[kind]
    except KeyError:
        look = _look_of[kind] = _look_for(kind)
    return kind if look is None else look(value)


def _look_for(kind: type) -> Callable[[Any], Any] | None:
    """Return what tells values of a type apart; None where the checks see nothing but it."""
    if kind is str or kind is bool:
        return lambda value: value
    if hasattr(kind, "shape") and hasattr(kind, "dtype"):
        return lambda value: (kind, tuple(value.shape), value.dtype)
    if issubclass(kind, tuple):
        return lambda value: (kind, *[_looks(one) for one in (value if len(value) <= LONGEST else (value[0], value[-1]))])
    if issubclass(kind, list):
        return lambda value: (kind, _looks(value[0]), _looks(value[-1])) if value else (kind,)
    if issubclass(kind, dict):
        return lambda value: (kind, *map(_looks, next(iter(value.items())))) if value else kind
    return None
