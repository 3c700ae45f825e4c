"""A table by type, also of libraries that may never be imported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TypeVar

T = TypeVar("T")


class ByType(dict[type, T]):
    """Says what to do with objects of exactly these types.

    A library that is not imported here has no objects here: its types are asked for once it is,
    so that importing it is never needed.

    Args:
        known: the types that are always there.
        late: by library, what returns its types once it has been imported.
    """

    def __init__(
        self, known: Mapping[type, T], late: Mapping[str, Callable[[], Mapping[type, T]]]
    ) -> None:
        super().__init__(known)
        self.waiting = dict(late)
        self._loaded = 0  # how many modules there were at the last look

    def look(self) -> None:
        """Take up the types of libraries imported since the last call; any thread may."""
        if len(sys.modules) == self._loaded:
            return
        self._loaded = len(sys.modules)
        for name, types_of in self.waiting.copy().items():  # threads take them out
            library = sys.modules.get(name)
            if library is not None and not _is_half_imported(library):
                self.update(types_of())
                self.waiting.pop(name, None)


def _is_half_imported(library: ModuleType) -> bool:
    return bool(getattr(library.__spec__, "_initializing", False))
