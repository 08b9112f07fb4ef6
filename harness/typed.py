"""What comes out of files, held against the types that its dataclass declares: JSON keeps no promise about them."""

import json
from collections.abc import Callable, Mapping
from functools import cache
from itertools import chain
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

Check = Callable[[Any], bool]


def parsed(text: str | bytes) -> Any:
    """JSON that can be written again: ValueError also for NaN, for infinities, and for half of a surrogate pair."""
    values = json.loads(text, parse_constant=_no_number)
    if "\\u" in text if isinstance(text, str) else b"\\u" in text:
        json.dumps(values, ensure_ascii=False).encode()
    return values


def _no_number(name: str) -> None:
    raise ValueError(f"{name}, which is no number")


def check_types(kind: type, values: Mapping[str, Any]) -> None:
    """TypeError, naming the field, for a value that is not of the type that ``kind`` declares for it. An integer counts as a
    float, a truth value as neither; what a dataclass holds must have been made one."""
    for name, fits in _checks(kind).items():
        if name in values and not fits(values[name]):
            raise TypeError(f"{name} is {str(values[name])[:40]!r}")


@cache
def _checks(kind: type) -> dict[str, Check]:
    return {name: _check(declared) for name, declared in get_type_hints(kind).items()}


def _check(declared: Any) -> Check:
    if (exact := _exact(declared)) is not None:
        return lambda value: type(value) in exact
    origin, inner = get_origin(declared), get_args(declared)
    if declared is Any:
        return lambda value: True
    if origin is Literal:
        return lambda value: value in inner
    if origin in (Union, UnionType):
        checks = [_check(one) for one in inner]
        return lambda value: any(check(value) for check in checks)
    if origin is dict:
        keys, held = _all(inner[0]), _all(inner[1])
        return lambda value: type(value) is dict and keys(value) and held(value.values())
    if origin in (list, tuple):
        held = _all(inner[0])
        return lambda value: type(value) is origin and held(value)
    return lambda value: isinstance(value, declared)


def _all(declared: Any) -> Check:
    """The same of everything that a collection holds: long lists of numbers are looked through without a call for each."""
    if (exact := _exact(declared)) is not None:
        return lambda values: exact.issuperset(map(type, values))
    if get_origin(declared) is list and (within := _exact(get_args(declared)[0])) is not None:
        return lambda values: {list}.issuperset(map(type, values)) and within.issuperset(map(type, chain(*values)))
    check = _check(declared)
    return lambda values: all(map(check, values))


def _exact(declared: Any) -> frozenset[type] | None:
    """The types of a scalar, or of one of several scalars; None for all else."""
    if get_origin(declared) in (Union, UnionType):
        kinds = [_exact(one) for one in get_args(declared)]
        return None if None in kinds else frozenset().union(*kinds)  # type: ignore[arg-type]
    if declared is float:
        return frozenset((float, int))
    return frozenset((declared,)) if declared in (int, str, bool, NoneType) else None
