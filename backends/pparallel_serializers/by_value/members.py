"""What stands in the body of a class, and pickle refuses or takes apart wrongly."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pparallel_serializers.by_value import names, scripts

if TYPE_CHECKING:
    from pparallel_serializers.by_value.pickler import CodePickler
    from pparallel_serializers.outofband import Reduction

_SENTINELS = (
    "MISSING",
    "KW_ONLY",
    "_HAS_DEFAULT_FACTORY",
    "_FIELD",
    "_FIELD_CLASSVAR",
    "_FIELD_INITVAR",
)


def make_cached_property(
    function: Callable[[Any], Any], name: str | None
) -> functools.cached_property[Any]:
    """Return a ``cached_property``, whose lock (until Python 3.12) stays behind."""
    made = functools.cached_property(function)
    made.attrname = name
    return made


def make_type_variable(
    name: str, constraints: tuple[Any, ...], bound: Any, covariant: bool, contravariant: bool
) -> typing.TypeVar:
    """Return a new type variable."""
    made: Any = typing.TypeVar
    how = {"bound": bound, "covariant": covariant, "contravariant": contravariant}
    return made(name, *constraints, **how)  # type: ignore[no-any-return]


def _reduce_property(pickler: CodePickler, each: property) -> Reduction:
    return property, (each.fget, each.fset, each.fdel, each.__doc__)


def _reduce_wrapped(pickler: CodePickler, each: staticmethod[..., Any]) -> Reduction:
    return type(each), (each.__func__,)


def _reduce_cached(pickler: CodePickler, each: functools.cached_property[Any]) -> Reduction:
    return make_cached_property, (each.func, each.attrname)


def _reduce_sentinel(pickler: CodePickler, each: object) -> Reduction:
    for name in _SENTINELS:
        if vars(dataclasses).get(name) is each:
            return getattr, (dataclasses, name)
    return NotImplemented


def _reduce_typing(pickler: CodePickler, each: Any) -> Reduction:
    """Return a type variable or a ``NewType``, which pickle knows by name alone."""
    module = each.__module__
    if module not in names.MAIN and names.find(module, each.__name__) is each:
        return NotImplemented
    held = scripts.holding(each)
    if held is not None and not pickler.defines(*held):
        return pickler.named(*held)
    if isinstance(each, typing.NewType):
        return typing.NewType, (each.__name__, each.__supertype__)
    kind = (each.__constraints__, each.__bound__, each.__covariant__, each.__contravariant__)
    return make_type_variable, (each.__name__, *kind)


reducers: dict[type, Any] = {
    property: _reduce_property,
    staticmethod: _reduce_wrapped,
    classmethod: _reduce_wrapped,
    functools.cached_property: _reduce_cached,
    typing.NewType: _reduce_typing,
    typing.TypeVar: _reduce_typing,
    **{type(vars(dataclasses)[name]): _reduce_sentinel for name in _SENTINELS},
}
