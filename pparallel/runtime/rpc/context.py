"""Which endpoint the calling thread works for, and whether others wait for that thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from pparallel.errors import ClosedError
from pparallel.interfaces.transport import Frames
from pparallel.runtime import member
from pparallel.runtime.forks import Inherited
from pparallel.runtime.state_lock import refuse_reentry

if TYPE_CHECKING:
    from pparallel.runtime.rpc.endpoint import Endpoint

_open = Inherited["Endpoint"](lambda each: each.forked())
_open_lock = threading.Lock()
os.register_at_fork(after_in_child=_open_lock._at_fork_reinit)  # type: ignore[attr-defined]


class _Here(threading.local):
    internal = False  #: whether it receives for others or reports losses: it must not wait


here = _Here()


@contextmanager
def internal() -> Iterator[None]:
    """Say that others wait for the calling thread inside: it must not wait for them."""
    before, here.internal = here.internal, True
    try:
        yield
    finally:
        here.internal = before


def refuse_to_wait() -> None:
    """Refuse that the calling thread waits where others wait for it.

    Raises:
        RuntimeError: it does.
    """
    refuse_reentry()
    if here.internal:
        message = (
            f"thread {threading.current_thread().name!r} receives for others, or tells of what has"
            " ended, and cannot wait for an answer: have a callback of when_lost, a finalizer"
            " (__del__, weakref.finalize, gc.callbacks) and what an object runs as it is unpickled"
            " start calls with rpc_async, and not wait for them"
        )
        raise RuntimeError(message)


def endpoint() -> Endpoint:
    """Return the endpoint of the calling thread, or else the only one open in this process.

    Raises:
        ClosedError: there is none, or several and this thread belongs to none of them.
    """
    context = member.context.get()
    found: Endpoint | None = None if context is None else context.endpoint
    if found is not None and not found.closed:
        return found
    with _open_lock:
        candidates = list(_open)
    if found is not None and (found in candidates or not candidates):
        return found  # it says why it has ended; another one was left in another thread or task
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


def act_for(endpoint: Endpoint) -> None:
    """Have what the calling thread does from now on be done for *endpoint*."""
    member.context.set(endpoint.context)


def acting_for(endpoint: Endpoint) -> AbstractContextManager[None]:
    """Have groups and references that are met inside belong to *endpoint*."""
    return member.acting_for(endpoint.context)


def loads(endpoint: Endpoint, body: Frames) -> Any:
    """Return the object that *body* holds, and that belongs to *endpoint*."""
    with acting_for(endpoint):
        return endpoint.serializer.loads(body)
