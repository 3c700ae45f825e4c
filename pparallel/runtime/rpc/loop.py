"""The event loop of a member, on which coroutines of called functions run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from functools import partial
from typing import Any

from pparallel.errors import ClosedError
from pparallel.runtime.future import LeanFuture, fail, settle
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

        To cancel the future that this returns cancels it, too.

        Raises:
            ClosedError: after :meth:`close`.
            ResourceExhaustedError: there is no thread or descriptor for it.
        """
        found: LeanFuture[Any] = LeanFuture()
        try:
            self._started().call_soon_threadsafe(_start, coroutine, timeout, found)
        except BaseException:
            coroutine.close()
            raise
        return found

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


def _start(coroutine: Coroutine[Any, Any, Any], timeout: float, found: LeanFuture[Any]) -> None:
    if found.cancelled():
        coroutine.close()  # else Python warns that it was never awaited
        return
    loop = asyncio.get_running_loop()
    task = loop.create_task(asyncio.wait_for(coroutine, timeout or None))
    task.add_done_callback(partial(_copy, found))
    # A cancellation comes after the first step of the task, which is in the loop's queue by now.
    found.when_done(lambda _: found.cancelled() and loop.call_soon_threadsafe(task.cancel))


def _copy(found: LeanFuture[Any], task: asyncio.Task[Any]) -> None:
    if task.cancelled():
        found.cancel()
    elif (error := task.exception()) is not None:
        fail(found, error)
    else:
        settle(found, task.result())


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
        # Python warns of a coroutine that never began: each takes its first step.
        loop.run_until_complete(asyncio.sleep(0))
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks, timeout=1.0))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
