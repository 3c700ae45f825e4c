"""The thread of a member that accepts connections and receives messages."""

from __future__ import annotations

import logging
import os
import select
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from pparallel.runtime.resources import start_thread
from pparallel.runtime.waits import Spin

logger = logging.getLogger(__name__)

READ, WRITE = select.EPOLLIN, select.EPOLLOUT
TICK = 0.1  #: seconds between two looks at what has no descriptor
LAST = 1.0  #: seconds that the end waits for what is being received

Event = Callable[[int], object]  #: called with what epoll says of a descriptor


class Dispatcher:
    """Calls the owner of a descriptor when there is something to read, in one thread.

    The functions that it calls do not block. Any thread may register and unregister.
    """

    def __init__(
        self, name: str, tick: Callable[[], float | None], failed: Callable[[], object]
    ) -> None:
        """Make the descriptors that it needs.

        Args:
            name: of the member.
            tick: called after each round; returns the seconds after which it is to be called
                again at the latest.
            failed: called by the thread if it ends before :meth:`close`.

        Raises:
            OSError: there is no descriptor for it.
        """
        self._tick, self._failed = tick, failed
        self._epoll = select.epoll()
        try:
            self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        except OSError:
            self._epoll.close()
            raise
        self._epoll.register(self._wake, READ)
        self._events: dict[int, Event] = {}
        self._calls: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._lock = threading.Lock()  # guards the descriptors against being closed
        self._is_closed = False
        self._pause: float | None = None
        self._thread = threading.Thread(target=self._run, name=f"{name}-dispatcher", daemon=True)

    def start(self) -> None:
        """Start the thread.

        Raises:
            ResourceExhaustedError: there is none.
        """
        start_thread(self._thread)

    def register(self, descriptor: int, event: Event) -> None:
        """Have *event* called when *descriptor* is readable, or what :meth:`watch` says."""
        with self._lock:
            if not self._is_closed:
                self._events[descriptor] = event
                self._epoll.register(descriptor, READ)

    def watch(self, descriptor: int, mask: int) -> None:
        """Have the event of *descriptor* called for what *mask* says; harmless if it has none."""
        with self._lock:
            if not self._is_closed and descriptor in self._events:
                self._epoll.modify(descriptor, mask)

    def unregister(self, descriptor: int) -> None:
        """Watch a descriptor no more; safe to call again. It is closed afterwards."""
        with self._lock:
            if self._events.pop(descriptor, None) is not None and not self._is_closed:
                with suppress(OSError):
                    self._epoll.unregister(descriptor)

    def call(self, act: Callable[[], object]) -> None:
        """Have *act* called by the thread soon; here and now if it has ended."""
        self._calls.put(act)
        if not self.wake():
            self._do_calls()

    def wake(self) -> bool:
        """Begin another round, after which the tick is; return whether the thread has not ended."""
        with self._lock:
            if not self._is_closed:
                os.eventfd_write(self._wake, 1)
            return not self._is_closed

    def close(self) -> None:
        """End the thread, unless it calls this; safe to call again."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            os.eventfd_write(self._wake, 1)
        is_here = threading.current_thread() is self._thread
        if self._thread.ident is not None and not is_here:
            self._thread.join(LAST)
        if not self._thread.is_alive() or is_here:
            self._release()

    def _release(self) -> None:
        with self._lock:
            self._epoll.close()
            if self._wake >= 0:
                os.close(self._wake)
                self._wake = -1
        self._do_calls()

    def _run(self) -> None:
        try:
            self._receive()
        finally:
            with self._lock:
                is_failing, self._is_closed = not self._is_closed, True
            if is_failing:
                logger.critical("The thread that receives has ended")
                self._do(self._failed)
                self._release()

    def _receive(self) -> None:
        receive = Spin(self._wait, self._look).receive
        while not self._is_closed:
            for descriptor, mask in receive():
                if descriptor == self._wake:
                    os.eventfd_read(self._wake)
                    self._do_calls()
                elif (event := self._events.get(descriptor)) is not None:
                    self._do(event, mask)
            self._pause = self._do(self._tick)

    def _wait(self) -> list[tuple[int, int]]:
        return self._epoll.poll(self._pause)

    def _look(self) -> list[tuple[int, int]] | None:
        return self._epoll.poll(0) or None

    def _do_calls(self) -> None:
        with suppress(Empty):
            while True:
                self._do(self._calls.get_nowait())

    def _do(self, act: Callable[..., Any], *args: object) -> Any:
        try:
            return act(*args)
        except Exception:
            logger.exception("An event of the dispatcher failed")
            return None
