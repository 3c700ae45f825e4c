"""``__main__`` in a process that runs no script: a real module, filled as functions arrive."""

from __future__ import annotations

import builtins
import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

#: ``__file__``, ``__package__`` and the name of the ``__spec__`` of a ``__main__``
Description = tuple[str | None, str | None, str | None]

#: modules that ``python -m`` runs a script with, whose globals are not in ``sys.modules``
_PROFILERS = frozenset({"cProfile", "profile", "trace"})

is_blank = False  #: whether this process's ``__main__`` was made by :func:`install`
follows_caller = False  #: whether this process is a pool's worker, whose globals are its caller's


def describe() -> Description:
    """Return what the children of this process get for their ``__main__``."""
    main = sys.modules.get("__main__")
    file, package = getattr(main, "__file__", None), getattr(main, "__package__", None)
    name = getattr(getattr(main, "__spec__", None), "name", None)
    if name in _PROFILERS:
        return None, None, None
    if file is not None:
        file = None if str(file).startswith("<") else os.path.abspath(str(file))  # "<stdin>"
    return file, package, name


def install(described: Description) -> None:
    """Give this process a ``__main__`` without contents; the script is not run again."""
    global is_blank
    file, package, name = described
    main = ModuleType("__main__")
    vars(main).update(__builtins__=builtins, __package__=package)
    if name is not None:
        main.__spec__ = ModuleSpec(name, None, origin=file)
    if file is not None:
        main.__file__ = file
    # By the second name multiprocessing's children send what belongs to the script.
    sys.modules["__main__"] = sys.modules["__mp_main__"] = main
    is_blank = True
