"""Waiting for other participants, known to whoever has to wake or replace the waiting thread."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TypeVar

from pparallel.errors import ClosedError
from pparallel.runtime import stopping
from pparallel.runtime.rpc import context

T = TypeVar("T")


def wait_for(
    future: Future[T],
    timeout: float | None,
    expire: Callable[[Future[T]], object],
    stop: Callable[[BaseException], object],
) -> T:
    """Return what *future* ends with.

    Args:
        future: what to wait for.
        timeout: seconds; ``None`` for no limit.
        expire: called when these have passed; it ends the future, or knows that it will end.
        stop: called with the reason, in any thread, when the calling rank is told to stop; it ends
            the future.
    """
    try:
        with waking(stop), _known_to_the_rpc_layer():
            with suppress(concurrent.futures.TimeoutError):
                future.exception(timeout)
            if not future.done():
                expire(future)
            return future.result()
    finally:
        del future  # else the traceback of what it raises would keep it, and it the exception


def waking(stop: Callable[[BaseException], object]) -> AbstractContextManager[None]:
    """Have *stop* called with the reason when the calling rank is told to stop meanwhile."""

    def tell() -> None:
        stop(ClosedError("the wait for others", "is over: the job ends", consequence=True))

    return stopping.telling(tell)


@contextmanager
def _known_to_the_rpc_layer() -> Iterator[None]:
    """Let a member run another function meanwhile, if it runs this one for somebody else."""
    try:
        executor = context.endpoint().executor
    except ClosedError:
        yield
        return
    with executor.blocked():
        yield
