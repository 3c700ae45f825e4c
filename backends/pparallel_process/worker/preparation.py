"""What a worker does before its first task."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from typing_extensions import override

from pparallel.runtime.streams import SEEDED, Streams
from pparallel_process.config import ProcessPoolConfig


def prepare(
    initializer: Any, initargs: tuple[Any, ...], context: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Run the initializer; return what is passed first to each function."""
    ProcessPoolConfig(initializer=initializer, initargs=initargs).initialize()
    return context


def seed(streams: Streams) -> None:
    """Give the process-wide generators the worker's streams, a library's once it is imported."""
    streams.seed_globals()
    late = {name for name in SEEDED if name not in sys.modules}
    if late:
        sys.meta_path.insert(0, _WhenLoaded(late, streams.seed_library))


class _WhenLoaded(importlib.abc.MetaPathFinder):
    """Calls a function with a module's name when one of some modules has been loaded."""

    def __init__(self, names: set[str], call: Callable[[str], None]) -> None:
        self._names = names
        self._call = call

    @override
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._names:
            return None
        self._names.discard(fullname)  # or the search below would end here again
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                self._call(fullname)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
