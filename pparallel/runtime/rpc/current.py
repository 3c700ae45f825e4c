"""Which endpoint the calling thread works for."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from pparallel.errors import ClosedError
from pparallel.runtime import member

if TYPE_CHECKING:
    from pparallel.runtime.rpc.endpoint import Endpoint

_current: ContextVar[Endpoint | None] = ContextVar("pparallel_endpoint", default=None)
_open: weakref.WeakSet[Endpoint] = weakref.WeakSet()
_open_lock = threading.Lock()


def endpoint() -> Endpoint:
    """Return the endpoint of the calling thread, or else the only one open in this process.

    Raises:
        ClosedError: there is none, or several and this thread belongs to none of them.
    """
    found = _current.get()
    if found is not None:
        return found
    with _open_lock:
        candidates = list(_open)
    if len(candidates) == 1:
        return candidates[0]
    if not candidates:
        raise ClosedError("the runtime", "is not open: groups and references live inside one")
    names = ", ".join(sorted(each.name for each in candidates))
    message = f"is not known in this thread: it belongs to none of the members here ({names})"
    raise ClosedError("the runtime", message)


def opened(endpoint: Endpoint) -> None:
    """Count *endpoint* among the open ones."""
    with _open_lock:
        _open.add(endpoint)


def closed(endpoint: Endpoint) -> None:
    """Count *endpoint* no longer."""
    with _open_lock:
        _open.discard(endpoint)


def count() -> int:
    """Return how many endpoints are open in this process."""
    with _open_lock:
        return len(_open)


@contextmanager
def acting_for(endpoint: Endpoint) -> Iterator[None]:
    """Have groups and references that are met inside belong to *endpoint*."""
    token = _current.set(endpoint)
    try:
        with member.acting_as(endpoint.member):
            yield
    finally:
        _current.reset(token)
