"""What is to be done once a module has been imported, whenever that may be."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

from typing_extensions import override


def when_loaded(module: str, act: Callable[[], object]) -> None:
    """Call *act* now if *module* has been imported, else as soon as it has."""
    if module in sys.modules:
        act()
    else:
        sys.meta_path.insert(0, _WhenLoaded(module, act))


class _WhenLoaded(importlib.abc.MetaPathFinder):
    def __init__(self, module: str, act: Callable[[], object]) -> None:
        self._module = module
        self._act = act

    @override
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._module:
            return None
        self._module = ""  # or the search below would end here again
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                self._act()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
