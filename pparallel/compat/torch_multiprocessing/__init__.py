"""What ``torch.multiprocessing`` offers, on pparallel's processes, pool and queues.

``spawn``, ``Pool``, ``Queue``, ``SimpleQueue`` and what belongs to them are pparallel's; every
other name is that of ``torch.multiprocessing``, and so are the objects that a context makes
(``get_context("spawn").Pool``). Importing this changes no global setting and imports no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pparallel.compat.torch_multiprocessing.encoding import (
        MaybeEncodingError as MaybeEncodingError,
    )
    from pparallel.compat.torch_multiprocessing.errors import ProcessException as ProcessException
    from pparallel.compat.torch_multiprocessing.errors import (
        ProcessExitedException as ProcessExitedException,
    )
    from pparallel.compat.torch_multiprocessing.errors import (
        ProcessRaisedException as ProcessRaisedException,
    )
    from pparallel.compat.torch_multiprocessing.pool import Pool as Pool
    from pparallel.compat.torch_multiprocessing.queues import Queue as Queue
    from pparallel.compat.torch_multiprocessing.queues import SimpleQueue as SimpleQueue
    from pparallel.compat.torch_multiprocessing.spawning import ProcessContext as ProcessContext
    from pparallel.compat.torch_multiprocessing.spawning import SpawnContext as SpawnContext
    from pparallel.compat.torch_multiprocessing.spawning import spawn as spawn
    from pparallel.compat.torch_multiprocessing.spawning import start_processes as start_processes

_ORIGINAL = "torch.multiprocessing"
_HOMES = {
    "MaybeEncodingError": "encoding",
    "Pool": "pool",
    "ProcessContext": "spawning",
    "ProcessException": "errors",
    "ProcessExitedException": "errors",
    "ProcessRaisedException": "errors",
    "Queue": "queues",
    "SimpleQueue": "queues",
    "SpawnContext": "spawning",
    "spawn": "spawning",
    "start_processes": "spawning",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        found = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = found
        return found
    if name == "__all__":
        return [each for each in __dir__() if not each.startswith("_")]
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_ORIGINAL), name)


def __dir__() -> list[str]:
    original = importlib.import_module(_ORIGINAL)
    return sorted({*_HOMES, *original.__all__, *(each for each in dir(original) if each[0] != "_")})
