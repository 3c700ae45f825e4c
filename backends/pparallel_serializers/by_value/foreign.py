"""Parts of functions and classes that pickle refuses and dill knows how to take apart.

dill's own pickler is written in Python. Here it only says how it would reduce an object; the C
pickler does the work. It is imported when the first such object turns up (89 ms).
"""

from __future__ import annotations

import functools
import io
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pparallel_serializers.by_value.pickler import CodePickler
    from pparallel_serializers.outofband import Reduction

CACHED = type(functools.lru_cache(len))  #: what ``lru_cache`` makes

TYPES: tuple[type, ...] = (
    super,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.MappingProxyType,
    type({}.keys()),
    type({}.values()),
    type({}.items()),
)


def reduce(pickler: CodePickler, obj: Any) -> Reduction:
    """Return *obj* as dill reduces it."""
    recorder = _recorder()
    recorder.dispatch[type(obj)](recorder, obj)
    if len(recorder.reductions) != 1:
        raise TypeError(f"cannot pickle {type(obj).__name__!r} object")
    return recorder.reductions[0]


def import_dill() -> Any:
    """Import dill and undo what that does to the standard library's Python pickler."""
    loaded = "dill" in sys.modules
    import dill

    if not loaded:
        dill.extend(use_dill=False)
    return dill


def _recorder() -> Any:
    dill = import_dill()

    class Recorder(dill.Pickler):  # type: ignore[misc, name-defined]
        """Notes a reduction instead of writing it."""

        def __init__(self) -> None:
            super().__init__(io.BytesIO(), 5)
            self.reductions: list[tuple[Any, ...]] = []

        def save_reduce(self, *reduction: Any, obj: Any = None) -> None:
            self.reductions.append(reduction)

    return Recorder()
