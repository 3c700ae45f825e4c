"""Functions of users that are called when a call has ended."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from sys import modules
from typing import Any

from typing_extensions import override

from pparallel.errors import ClosedError
from pparallel.runtime.rpc.handlers import Handlers
from pparallel.runtime.user_code import run

logger = logging.getLogger(__name__)

MOST = 64  #: callbacks that run at once, at the most

Callback = Callable[[Future[Any]], object]


class Callbacks:
    """Calls users' callbacks on threads of their own, for those that receive must not be kept.

    Nor do handler threads run them: a function may keep the last of those until its callback runs.
    """

    def __init__(
        self, handlers: Handlers, name: str, acting: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """Call nothing yet.

        Args:
            handlers: whose threads run functions, which may wait for callbacks.
            name: of the member.
            acting: returns what is entered while one runs.
        """
        self.handlers = handlers
        self._name, self._acting = name, acting
        self._threads = Handlers(MOST, f"{name}-callbacks")
        self._due: deque[tuple[Callback, Future[Any]]] = deque()

    def put(self, callback: Callback, future: Future[Any]) -> None:
        """Have *callback* called with *future*, after those put before it."""
        self._due.append((callback, future))
        try:
            self._threads.submit(id(future), self._run_next)
        except ClosedError:
            self._run_next()

    def count_loop(self) -> None:
        """Have a handler thread count as waiting whenever its event loop, if it runs one, does."""
        if not self.handlers.is_running_here() or (asyncio := modules.get("asyncio")) is None:
            return
        selector = getattr(asyncio._get_running_loop(), "_selector", None)
        if selector is None or "select" in vars(selector):
            return
        select = selector.select

        def select_waiting(timeout: float | None = None) -> Any:
            if timeout is not None and timeout <= 0:
                return select(timeout)
            with self.handlers.waiting():
                return select(timeout)

        selector.select = select_waiting

    def close(self) -> None:
        """Call what is left, and then nothing more; safe to call again."""
        self._threads.close(runs_rest=True)

    def join(self, timeout: float) -> None:
        """Wait until what is called has ended; call here what no thread could be started for."""
        if self._threads.join(timeout):
            while self._due:
                self._run_next()

    def _run_next(self) -> None:
        try:
            callback, future = self._due.popleft()
        except IndexError:  # another thread has called it
            return
        try:
            with self._acting():
                run(callback, (future,))
        except BaseException:  # also SystemExit: it would end a thread that has other work
            logger.exception("%s: what was called when a call had ended failed", self._name)


class Waiters(list[Any]):
    """What :mod:`concurrent.futures` puts beside a future in ``wait`` and ``as_completed``.

    A handler thread that waits so does not count as running, as in ``result``.
    """

    def __init__(self, handlers: Handlers) -> None:
        super().__init__()
        self._handlers = handlers

    @override
    def append(self, waiter: Any) -> None:
        # Each future's condition is held, so that nobody has set the event yet.
        if self._handlers.is_running_here() and type(waiter.event) is threading.Event:
            waiter.event = _Event(self._handlers, waiter.event)
        super().append(waiter)


class _Event(threading.Event):
    def __init__(self, handlers: Handlers, replaced: threading.Event) -> None:
        super().__init__()
        self._handlers = handlers
        if replaced.is_set():
            self.set()

    @override
    def wait(self, timeout: float | None = None) -> bool:
        if self.is_set():
            return True
        with self._handlers.waiting():
            return super().wait(timeout)
