"""The event loop of a member, on which coroutines of called functions run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any

from pparallel.errors import ClosedError
from pparallel.runtime.resources import start_thread


class Loop:
    """Runs coroutines in a thread of its own, which starts with the first."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()  # guards the start and the end
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def run(self, coroutine: Coroutine[Any, Any, Any], timeout: float) -> Future[Any]:
        """Run *coroutine*, and cancel it after *timeout* seconds, 0 for no limit.

        Raises:
            ClosedError: after :meth:`close`.
            ResourceExhaustedError: there is no thread or descriptor for it.
        """
        try:
            loop = self._started()
            return asyncio.run_coroutine_threadsafe(_limited(coroutine, timeout), loop)
        except BaseException:
            coroutine.close()
            raise

    def close(self) -> None:
        """Cancel what runs and end the thread; safe to call again."""
        with self._lock:
            self._is_closed = True
            loop, self._loop = self._loop, None
        if loop is not None and self._thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            if self._thread is not threading.current_thread():
                self._thread.join(1.0)

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._is_closed:
                raise ClosedError("the runtime")
            if self._loop is None:
                loop = asyncio.new_event_loop()
                thread = threading.Thread(
                    target=_serve, args=(loop,), name=f"{self._name}-loop", daemon=True
                )
                try:
                    start_thread(thread)
                except BaseException:
                    loop.close()
                    raise
                self._loop, self._thread = loop, thread
            return self._loop


async def _limited(coroutine: Coroutine[Any, Any, Any], timeout: float) -> Any:
    return await asyncio.wait_for(coroutine, timeout or None)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks, timeout=1.0))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
