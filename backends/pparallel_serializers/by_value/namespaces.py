"""The globals of functions that go by value."""

from __future__ import annotations

import builtins
import dis
import importlib
import os
import pickle
import sys
import weakref
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from typing_extensions import override

from pparallel.runtime.interrupts import raise_interrupt
from pparallel_serializers.by_value import names

if TYPE_CHECKING:
    from pparallel_serializers.by_value.pickler import CodePickler

_GLOBAL_OPERATIONS = {"LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_NAME"}
_GLOBAL_OPERATIONS |= {"LOAD_FROM_DICT_OR_GLOBALS"}
_INITIAL_NAMES = ("__name__", "__file__")
_PROCESS = os.urandom(8).hex()
_CONTAINERS = (dict, list, set, bytearray)
_SENDERS = 256  # processes whose ``__main__`` is remembered

_global_names: weakref.WeakKeyDictionary[CodeType, tuple[str, ...]] = weakref.WeakKeyDictionary()


class SentGlobal(NamedTuple):
    """A global as it was sent last.

    Attributes:
        value: the object.
        contents: what was in it, if it is a container that may have been changed here since.
    """

    value: object
    contents: bytes | None


class ReceivedMain(NamedTuple):
    """What stands here for the ``__main__`` of another process.

    Attributes:
        namespace: its globals, as far as they were sent or assigned here.
        sent: the values that came from there last.
    """

    namespace: dict[str, Any]
    sent: dict[str, SentGlobal]


_received: dict[str, ReceivedMain] = {}


class SentNamespace:
    """A function's globals on their way out: a reference to a module, or a dict to be filled."""

    def __init__(
        self, namespace: dict[str, Any], reduction: tuple[Any, ...], by_value: bool
    ) -> None:
        self.namespace = namespace  # kept: it is known by its id while the dump lasts
        self.reduction, self.by_value = reduction, by_value

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return self.reduction


class SentPackage:
    """A package on its way out together with the submodules that code reaches through it."""

    def __init__(self, package: ModuleType, imported: list[str]) -> None:
        self.package, self.imported = package, imported

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return submodules, (self.package, *self.imported)


def sent_for(pickler: CodePickler, function: FunctionType) -> SentNamespace:
    """Return the globals of *function*, the same for all functions that have them."""
    namespace = function.__globals__
    known = pickler.namespaces.get(id(namespace))
    if known is None:
        known = pickler.namespaces[id(namespace)] = _new_namespace(pickler, namespace)
    return known


def named_globals(function: FunctionType) -> dict[str, Any]:
    """Return those globals that *function*'s code names."""
    namespace, code = function.__globals__, function.__code__
    found = {key: namespace[key] for key in _names_used(code) if key in namespace}
    return {
        key: _with_submodules(value, code) if isinstance(value, ModuleType) else value
        for key, value in found.items()
    }


def make_namespace(process: str, initial: dict[str, Any]) -> dict[str, Any]:
    """Return globals to be filled: those of ``__main__`` are one for all that *process* sends.

    They are the live ones if they were taken from here.
    """
    if process == _this_process():
        return main_globals()
    if not process:
        return {"__builtins__": builtins, **initial}
    known = _received.get(process)
    if known is None:
        while len(_received) >= _SENDERS:
            _received.pop(next(iter(tuple(_received))), None)
        made = ReceivedMain({"__builtins__": builtins, **initial}, {})
        known = _received.setdefault(process, made)  # another thread may have been quicker
    return known.namespace


def fill_namespace(namespace: dict[str, Any], sent: dict[str, Any]) -> None:
    """Set the globals that a function brought along.

    In a ``__main__`` that is shared by all that one process sends, what code has assigned here
    since stays (an initializer's ``global env``), and so does what was put into a container which
    comes again as it came before (a ``cache = {}``).
    """
    mains = list(_received.values())  # a copy: other threads add to it
    received = next((each for each in mains if each.namespace is namespace), None)
    if received is None:
        namespace.update(sent)
        return
    before = received.sent
    for name, value in sent.items():
        known = before.get(name)
        if name in namespace and (known is None or namespace[name] is not known.value):
            continue  # assigned here
        contents = _contents(value)
        if known is None or contents is None or contents != known.contents:
            before[name] = SentGlobal(value, contents)
            namespace[name] = value


def _contents(value: object) -> bytes | None:
    """Return what is in a container, by which to see if it was changed where it comes from."""
    if type(value) not in _CONTAINERS:
        return None
    try:
        return pickle.dumps(value, 5)
    except Exception as error:  # noqa: BLE001 - what cannot be compared is taken to have changed
        raise_interrupt(error)
        return None


def module_namespace(name: str) -> dict[str, Any]:
    """Return the globals of an importable module."""
    return vars(importlib.import_module(name))


def submodules(module: ModuleType, *imported: str) -> ModuleType:
    """Return *module*, with those of its submodules loaded that a function reaches through it."""
    for name in imported:
        importlib.import_module(name)
    return module


def main_globals() -> dict[str, Any]:
    """Return the globals of this process's ``__main__``."""
    return vars(sys.modules["__main__"])


def _this_process() -> str:
    # With the pid: a forked child has its parent's token, and globals that may be out of date.
    return f"{os.getpid()}-{_PROCESS}"


def _new_namespace(pickler: CodePickler, namespace: dict[str, Any]) -> SentNamespace:
    name = namespace.get("__name__")
    module = sys.modules.get(name) if isinstance(name, str) else None
    is_of_module = module is not None and vars(module) is namespace
    by_value = pickler.recurse and not names.is_static(name)
    if is_of_module and name not in names.MAIN and not by_value:
        return SentNamespace(namespace, (module_namespace, (name,)), by_value=False)
    if is_of_module and names.is_static(name):
        return SentNamespace(namespace, (module_namespace, ("__main__",)), by_value=False)
    process = _this_process() if namespace is main_globals() else ""
    initial = {key: namespace[key] for key in _INITIAL_NAMES if key in namespace}
    return SentNamespace(namespace, (make_namespace, (process, initial)), by_value=True)


def _names_used(code: CodeType) -> tuple[str, ...]:
    known = _global_names.get(code)
    if known is None:
        used = dict.fromkeys(
            each.argval for each in dis.get_instructions(code) if each.opname in _GLOBAL_OPERATIONS
        )
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                used.update(dict.fromkeys(_names_used(constant)))
        known = _global_names[code] = tuple(used)
    return known


def _with_submodules(module: ModuleType, code: CodeType) -> ModuleType | SentPackage:
    """Name the submodules that *code* uses: ``import a.b`` binds ``a`` alone."""
    if not hasattr(module, "__path__"):
        return module
    imported: list[str] = []
    pending = [module.__name__]
    mentioned = _attributes_used(code)
    while pending:
        package = pending.pop()
        below = [f"{package}.{name}" for name in mentioned]
        pending += [name for name in below if name in sys.modules]
        imported += [name for name in below if name in sys.modules]
    return SentPackage(module, imported) if imported else module


def _attributes_used(code: CodeType) -> set[str]:
    used = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            used |= _attributes_used(constant)
    return used
