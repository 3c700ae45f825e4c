"""The globals of functions that go by value, and the names that code uses."""

from __future__ import annotations

import builtins
import dis
import importlib
import re
import sys
import weakref
from collections.abc import Iterable
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from typing_extensions import override

from pparallel_serializers.by_value import names, scripts

if TYPE_CHECKING:
    from pparallel_serializers.by_value.pickler import CodePickler

_GLOBAL_OPERATIONS = {"LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_NAME"}
_GLOBAL_OPERATIONS |= {"LOAD_FROM_DICT_OR_GLOBALS"}
_INITIAL_NAMES = ("__name__", "__file__")
_BY_TEXT = frozenset({"eval", "exec", "globals", "modules", "vars"})  #: ways to names in text
_IDENTIFIER = re.compile(r"[^\W\d]\w*")


class _Read(NamedTuple):
    """What code says of globals.

    Attributes:
        names: those that it loads, stores or deletes.
        mentioned: these and the attributes that it uses.
        by_text: it may reach others by names in text.
    """

    names: tuple[str, ...]
    mentioned: set[str]
    by_text: bool


_codes: weakref.WeakKeyDictionary[CodeType, _Read] = weakref.WeakKeyDictionary()


class SentNamespace:
    """A function's globals on their way out: a reference, or a dict to be filled.

    Attributes:
        namespace: the globals; kept, for they are known by their id while the dump lasts.
        reduction: how they are found or made by the receiver.
        script: the script that they are of; its names are sent on their own.
        filled: the function brings the globals that it names.
    """

    def __init__(
        self,
        namespace: dict[str, Any],
        reduction: tuple[Any, ...],
        script: scripts.Script | None = None,
        *,
        filled: bool = False,
    ) -> None:
        self.namespace, self.reduction = namespace, reduction
        self.script, self.filled = script, filled

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return self.reduction


def sent_for(pickler: CodePickler, function: FunctionType) -> SentNamespace:
    """Return the globals of *function*, the same for all functions that have them."""
    namespace = function.__globals__
    known = pickler.namespaces.get(id(namespace))
    if known is None:
        known = pickler.namespaces[id(namespace)] = _new_namespace(pickler, namespace)
    return known


def named_globals(function: FunctionType, sent: SentNamespace) -> dict[str, Any]:
    """Return those globals that *function* brings along.

    With a module that the receiver imports those are the names that only a rewriter of the source
    can have put there, as pytest does for ``assert``.
    """
    namespace = function.__globals__
    found = {key: namespace[key] for key in names_used(function.__code__) if key in namespace}
    if sent.filled:
        return found
    return {key: value for key, value in found.items() if not key.isidentifier()}


def uses(function: FunctionType, namespace: dict[str, Any]) -> list[str]:
    """Return the names of a script that *function* uses: in code, annotations, or by text."""
    read = _read(function.__code__)
    found = [name for name in read.names if name in namespace]
    if function.__annotations__:
        found += named_in(function.__annotations__, namespace)
    if read.by_text:
        found += [
            name
            for name, value in [*namespace.items()]
            if isinstance(value, (FunctionType, type)) and value.__module__ in names.MAIN
        ]
    return found


def named_in(annotations: dict[str, Any], namespace: dict[str, Any]) -> list[str]:
    """Return the names of a script in the text of *annotations*."""
    texts = [each for each in annotations.values() if type(each) is str]
    return [name for text in texts for name in _IDENTIFIER.findall(text) if name in namespace]


def submodules_used(function: FunctionType) -> list[str]:
    """Return the modules to import for *function*: ``import a.b`` binds ``a`` alone."""
    namespace, (names_read, mentioned, _) = function.__globals__, _read(function.__code__)
    used = [namespace.get(name) for name in names_read]
    packages = [each for each in used if isinstance(each, ModuleType) and hasattr(each, "__path__")]
    if not packages:
        return []
    imported: list[str] = []
    pending = [package.__name__ for package in packages]
    while pending:
        package = pending.pop()
        below = [f"{package}.{name}" for name in mentioned]
        found = sorted(name for name in below if name in sys.modules)
        pending += found
        imported += found
    return imported


def make_namespace(initial: dict[str, Any]) -> dict[str, Any]:
    """Return globals of no module, to be filled."""
    return {"__builtins__": builtins, **initial}


def fill_namespace(
    namespace: dict[str, Any], sent: dict[str, Any], imported: Iterable[str]
) -> None:
    """Set the globals that a function brought along, and import what it reaches by a package."""
    for name, value in sent.items():
        namespace.setdefault(name, value)
    for name in imported:
        importlib.import_module(name)


def module_namespace(name: str) -> dict[str, Any]:
    """Return the globals of an importable module."""
    return vars(importlib.import_module(name))


def names_used(code: CodeType) -> tuple[str, ...]:
    """Return the globals that *code* loads, stores or deletes, also in code within."""
    return _read(code).names


def _new_namespace(pickler: CodePickler, namespace: dict[str, Any]) -> SentNamespace:
    name = namespace.get("__name__")
    module = sys.modules.get(name) if isinstance(name, str) else None
    is_of_module = module is not None and vars(module) is namespace
    if is_of_module and names.is_static(name):
        where = "__main__" if name in names.MAIN else name
        return SentNamespace(namespace, (module_namespace, (where,)))
    script = scripts.of(namespace)
    if script is not None:
        return SentNamespace(namespace, (scripts.namespace_of, (script.sent_uid(),)), script)
    if is_of_module and not pickler.recurse:
        return SentNamespace(namespace, (module_namespace, (name,)))
    initial = {key: namespace[key] for key in _INITIAL_NAMES if key in namespace}
    return SentNamespace(namespace, (make_namespace, (initial,)), filled=True)


def _read(code: CodeType) -> _Read:
    known = _codes.get(code)
    if known is None:
        used = dict.fromkeys(
            each.argval for each in dis.get_instructions(code) if each.opname in _GLOBAL_OPERATIONS
        )
        mentioned = set(code.co_names)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                used.update(dict.fromkeys(_read(constant).names))
                mentioned |= _read(constant).mentioned
        known = _codes[code] = _Read(tuple(used), mentioned, not _BY_TEXT.isdisjoint(mentioned))
    return known
