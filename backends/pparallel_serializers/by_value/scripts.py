"""The ``__main__`` of programs, as far as this process has them.

A process has one script of its own: the namespace of its ``__main__``. In a worker or a launched
member, which runs no script, that is the script of whoever started it. What comes from another
script (another program, other ranks under torchrun) has a namespace apart.
"""

from __future__ import annotations

import builtins
import hashlib
import itertools
import operator
import os
import sys
import threading
from typing import Any

from pparallel.runtime.processes import main_module
from pparallel_serializers.by_value import names

_TOKEN = os.urandom(8).hex()  #: inherited by forks: they run the same script
_pid = os.getpid()
_MOST_SCRIPTS = 256  #: scripts of others that are remembered
_missing = object()

#: held while names are looked at, changed or filled in
lock = threading.RLock()
#: for each object that is being read, the innermost last: nothing in it needs to be filled yet
loading: list[bool] = []


class Script:
    """A ``__main__``: its namespace, and the names that were sent and received.

    Attributes:
        uid: the same in all processes that have the script; empty until one has sent something
            to a process without a script.
        namespace: its globals.
        received: the names that came from other processes, with token and unit of the last time.
        pending: the names that have arrived and are not filled in yet, each with its entry.
        unfinished: functions and classes that are being filled in.
        named_values: the names and values of the last look, and names by the ids of values.
        sent: the unit of each name as it was sent last (:mod:`~.by_value.units`).
    """

    def __init__(self, uid: str, namespace: dict[str, Any]) -> None:
        self.uid, self.namespace = uid, namespace
        self.received: dict[str, tuple[str, Any]] = {}
        self.pending: dict[str, Any] = {}
        self.unfinished: dict[str, Any] = {}
        self.sent: dict[Any, Any] = {}
        self.named_values: tuple[list[str], list[Any], dict[int, tuple[str, Any]]] = [], [], {}

    def sent_uid(self) -> str:
        """Return the uid; a script without one that has names after all gets this process's."""
        if not self.uid:
            self.uid = _TOKEN
        return self.uid

    def find(self, path: str) -> Any:
        """Return the object of this *path*; raises ``AttributeError`` if there is no such name."""
        root, *rest = path.split(".")
        with lock:
            entry = self.pending.get(root)
            if entry is not None:
                entry.found(is_made=bool(loading) and loading[-1])
            found = self.unfinished.get(root, _missing)
            if found is _missing:
                found = self.namespace.get(root, _missing)
        if found is _missing:
            raise AttributeError(f"name {root!r} is neither in __main__ here nor was it sent")
        for part in rest:
            found = getattr(found, part)
        return found

    def path_of(self, obj: Any) -> str | None:
        """Return the name by which *obj*, a function or a class, is found here."""
        path: str = getattr(obj, "__qualname__", obj.__name__)
        root, *rest = path.split(".")
        found = self.namespace.get(root, _missing)
        for part in rest:
            found = getattr(found, part, _missing)
        if found is obj:
            return path
        return self.name_of(obj)

    def name_of(self, obj: Any) -> str | None:
        """Return the name whose value *obj* is."""
        values = [*self.namespace.values()]
        if not any(map(operator.is_, values, itertools.repeat(obj))):
            return None
        return next((name for name, each in [*self.namespace.items()] if each is obj), None)


#: names that this process had when it was forked, of its own script
inherited: frozenset[str] = frozenset()

_own: Script | None = None
_profiled: dict[str, Any] | None = None  # the script's globals under a profiler
_others: dict[str, Script] = {}


def token() -> str:
    """Return the mark of this process, with the pid: a fork's values go ways of their own."""
    return f"{_pid:x}-{_TOKEN}"


def own() -> Script:
    """Return the script of this process."""
    global _own
    namespace = vars(sys.modules["__main__"]) if _profiled is None else _profiled
    found = _own
    if found is None or found.namespace is not namespace:
        with lock:
            found = _own  # another thread may have been quicker
            if found is None or found.namespace is not namespace:
                found = _own = Script("" if main_module.is_blank else _uid(namespace), namespace)
    return found


def of(namespace: dict[str, Any]) -> Script | None:
    """Return the script that *namespace* is of; ``None``: of a module, or of nothing."""
    global _profiled
    if namespace.get("__name__") not in names.MAIN:
        return None
    mine = own()
    if mine.namespace is namespace:
        return mine
    for each in [*_others.values()]:
        if each.namespace is namespace:
            return each
    if _profiled is None and _is_run_by_profiler(namespace):
        _profiled = namespace
        return own()
    return None


def holding(obj: Any) -> tuple[Script, str] | None:
    """Return the script in which *obj*, code or what stands for a type, has a name; and that."""
    script = of(obj.__globals__) if hasattr(obj, "__globals__") else None
    among = [own(), *_others.values()] if obj.__module__ in names.MAIN else []
    for each in among if script is None else [script]:
        path = each.path_of(obj)
        if path is not None:
            return each, path
    return None


def with_uid(uid: str) -> Script:
    """Return the script of this *uid*, whose namespace is empty if nothing of it came yet."""
    with lock:
        mine = own()
        if not mine.uid:
            mine.uid = uid
        if mine.uid == uid:
            return mine
        found = _others.get(uid)
        if found is None:
            while len(_others) >= _MOST_SCRIPTS:
                del _others[next(iter(_others))]
            namespace = {"__name__": "__main__", "__builtins__": builtins}
            found = _others[uid] = Script(uid, namespace)
        return found


def find_named(uid: str, path: str) -> Any:
    """Return the object that has this name in the script of this *uid*."""
    return with_uid(uid).find(path)


def namespace_of(uid: str) -> dict[str, Any]:
    """Return the globals of the script of this *uid*."""
    return with_uid(uid).namespace


def _uid(namespace: dict[str, Any]) -> str:
    """Return the same in all processes that run the script."""
    try:
        with open(namespace["__file__"], "rb") as script:
            text = script.read()
    except (KeyError, OSError, TypeError):  # a notebook, ``python -c``: this process and its forks
        return _TOKEN
    name = os.path.basename(namespace["__file__"]).encode("utf-8", "replace")
    return hashlib.sha256(name + b"\0" + text).hexdigest()[:16]


def _is_run_by_profiler(namespace: dict[str, Any]) -> bool:
    """Return whether these are the globals that cProfile, profile or trace runs a script with."""
    file = namespace.get("__file__")
    return (
        file is not None
        and "__cached__" in namespace
        and file != getattr(sys.modules["__main__"], "__file__", None)
    )


def _be_a_fork() -> None:
    """Begin anew as a process that has what its parent had."""
    global inherited, lock, _pid
    lock = threading.RLock()  # a thread of the parent may have held it
    loading.clear()
    script = own()
    inherited = frozenset(script.namespace)
    parent, _pid = token(), os.getpid()
    sent = [(name, unit.sent) for name, unit in script.sent.items() if isinstance(name, str)]
    script.received = {name: (parent, each) for name, each in sent}


os.register_at_fork(after_in_child=_be_a_fork)
