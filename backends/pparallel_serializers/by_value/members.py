"""What stands in the body of a class, and pickle refuses or takes apart wrongly."""

from __future__ import annotations

import dataclasses
import functools
import threading
import typing
import uuid
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pparallel_serializers.by_value import names

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

_lock = threading.Lock()
_type_variables: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()


def make_cached_property(
    function: Callable[[Any], Any], name: str | None
) -> functools.cached_property[Any]:
    """Return a ``cached_property``, whose lock (until Python 3.12) stays behind."""
    made = functools.cached_property(function)
    made.attrname = name
    return made


def find_type_variable(
    uid: str, name: str, constraints: tuple[Any, ...], bound: Any, covariant: bool, contra: bool
) -> Any:
    """Return the type variable of this *uid*, or make it."""
    with _lock:
        found = _type_variables.get(uid)
        if found is None:
            found = typing.TypeVar(  # type: ignore[misc]
                name,
                *constraints,
                bound=bound,
                covariant=covariant,
                contravariant=contra,
            )
            _type_variables[uid] = found
        return found


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


def _reduce_type_variable(pickler: CodePickler, each: typing.TypeVar) -> Reduction:
    module = each.__module__
    if module not in names.MAIN and names.find(module, each.__name__) is each:
        return NotImplemented
    with _lock:
        found = [uid for uid, known in _type_variables.items() if known is each]
        uid = found[0] if found else uuid.uuid4().hex
        _type_variables[uid] = each
    kind = (each.__covariant__, each.__contravariant__)
    return find_type_variable, (uid, each.__name__, each.__constraints__, each.__bound__, *kind)


reducers: dict[type, Any] = {
    property: _reduce_property,
    staticmethod: _reduce_wrapped,
    classmethod: _reduce_wrapped,
    functools.cached_property: _reduce_cached,
    typing.TypeVar: _reduce_type_variable,
    **{type(vars(dataclasses)[name]): _reduce_sentinel for name in _SENTINELS},
}
