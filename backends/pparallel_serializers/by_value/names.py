"""Functions and classes that a receiver can import by name."""

from __future__ import annotations

import sys
from types import FunctionType, ModuleType
from typing import Any

MAIN = frozenset({"__main__", "__mp_main__"})  #: the second is multiprocessing's name for it

_static: set[str] = set()
_missing = object()


def mark_static_module(module: ModuleType | str) -> None:
    """Have everything that *module* defines pickled by reference, in every serializer.

    For modules that are the same in every process and whose contents cannot be sent, such as one
    that holds pointers into a C library. It may be marked before it is imported.
    """
    _static.add(module if isinstance(module, str) else module.__name__)


def is_static(name: str | None) -> bool:
    """Return whether the module of this *name* is marked as static."""
    return name in _static


def is_importable(obj: Any) -> bool:
    """Return whether a receiver finds *obj*, a function or a class, under its own name."""
    name = obj.__module__
    return name not in MAIN and find(name, obj.__qualname__) is obj


def find(module_name: str | None, qualname: str) -> Any:
    """Return the object of this name in a loaded module, or one that nothing else is."""
    found: Any = sys.modules.get(module_name or "", _missing)
    for part in qualname.split("."):
        found = getattr(found, part, _missing)
    return found


def resolve(module_name: str, qualname: str) -> Any:
    """Import what goes by a name in a module that pickle itself would not find or take."""
    __import__(module_name)
    found = find(module_name, qualname)
    if found is _missing:
        raise AttributeError(f"module {module_name!r} has no {qualname!r}")
    return found


def by_reference(obj: FunctionType | type) -> Any:
    """Return how *obj* goes by name: NotImplemented leaves it to pickle, None says it cannot."""
    if is_importable(obj):
        return NotImplemented
    if is_static(obj.__module__) and "<" not in obj.__qualname__:
        return resolve, (obj.__module__, obj.__qualname__)
    return None
