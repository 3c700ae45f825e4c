"""Attributes of a package that are imported when they are first asked for, as in PEP 562."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module


def attributes(
    package: str, homes: Mapping[str, Iterable[str]]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` for the module *package*.

    Args:
        package: its ``__name__``.
        homes: names, by the module that has them.
    """
    home = {name: module for module, names in homes.items() for name in names}

    def imported(name: str) -> object:
        if name not in home:
            from pparallel.errors import did_you_mean

            message = f"module {package!r} has no attribute {name!r}.{did_you_mean(name, home)}"
            raise AttributeError(message, name=name, obj=None)  # obj=None: Python adds no hint
        value = getattr(import_module(home[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def listed() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home})

    return imported, listed
