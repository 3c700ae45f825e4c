"""Sees members of this machine end, or stop, whatever they are busy with."""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from pparallel.errors import ResourceExhaustedError
from pparallel.runtime.links.process import ProcessId
from pparallel.runtime.resources import explaining, start_thread

logger = logging.getLogger(__name__)

Ended = Callable[[str, str], None]  #: (name, what is known of its end)

#: A stopped process is given up after this part of the bound. The rest is for looking: it is looked
#: at ten times in a bound.
_STOPPED = 0.9
_LOOK = 0.1


@dataclass(slots=True, eq=False)
class _Watched:
    name: str
    process: ProcessId
    judged: bool
    pidfd: int = -1  # -1: there was no descriptor for it yet
    stopped: float | None = None  # since when it was seen to be


class Watch:
    """Watches processes of this machine, in one thread, and reports each end once.

    That of a process is seen by a pidfd, at once, whoever holds copies of its sockets. One that a
    signal has stopped for *bound* seconds is given up as well. One that computes, or holds the GIL,
    is not: nothing is asked of it. A look that fails, as for want of descriptors, is made again.
    """

    def __init__(self, bound: float, ended: Ended) -> None:
        self._bound, self._ended, self._pause = bound, ended, bound * _LOOK
        self._lock = threading.RLock()
        self._watched: dict[str, _Watched] = {}
        self._epoll: select.epoll | None = None  # of pidfds, and of what wakes the thread
        self._wake = -1
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, name: str, process: ProcessId, *, judged: bool) -> None:
        """Watch member *name*; what this process cannot watch is left out.

        Args:
            name: of the member.
            process: where it lives.
            judged: whether it is for this member to say that it has been stopped for too long.
        """
        if not process.watchable:
            return
        watched = _Watched(name, process, judged)
        with self._lock:
            if self._closed:
                return
            self._watched[name] = watched
        self._try(partial(self._open, watched))
        self._try(self.start)

    def start(self) -> None:
        """Make sure that a thread runs, if there is anybody to watch.

        Raises:
            ResourceExhaustedError: none can be started.
        """
        with self._lock:
            if self._thread is None and not self._closed and self._watched:
                thread = threading.Thread(target=self._run, name="pparallel-watch", daemon=True)
                self._thread = start_thread(thread)

    def remove(self, name: str) -> None:
        """Watch member *name* no more; harmless if it was not watched."""
        with self._lock:
            watched = self._watched.pop(name, None)
            if watched is not None and watched.pidfd >= 0 and self._epoll is not None:
                self._epoll.unregister(watched.pidfd)
                os.close(watched.pidfd)

    def close(self) -> None:
        """Watch nobody any more; safe to call again."""
        with self._lock:
            self._closed, thread = True, self._thread
            if thread is None:
                self._release()
            elif self._wake >= 0:
                os.eventfd_write(self._wake, 1)
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _try(self, act: Callable[[], object]) -> None:
        try:
            act()
        except ResourceExhaustedError as error:
            logger.warning("It is tried again: %s", error)

    def _open(self, watched: _Watched) -> None:
        """Have the end of a process seen by a pidfd; report it if it has ended.

        Raises:
            ResourceExhaustedError: there is no descriptor.
        """
        what = f"watching the process of member {watched.name!r}"
        with explaining(what), suppress(ProcessLookupError), self._lock:
            if watched.pidfd >= 0 or self._watched.get(watched.name) is not watched:
                return
            if self._wake < 0:
                self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            if self._epoll is None:
                self._epoll = select.epoll()
                self._epoll.register(self._wake, select.EPOLLIN)
            pidfd = os.pidfd_open(watched.process.pid)
            try:
                if watched.process.lives():
                    self._epoll.register(pidfd, select.EPOLLIN)
                    watched.pidfd = pidfd
                    return
            finally:
                if watched.pidfd < 0:
                    os.close(pidfd)
        self._report(watched, "has died")

    def _run(self) -> None:
        try:
            while not self._closed:
                try:
                    self._look()
                except Exception:  # what fails once is tried again: nobody else looks
                    logger.exception("A look at the processes of other members failed")
                    time.sleep(min(self._pause, 0.1))
        finally:
            with self._lock:
                self._release()

    def _look(self) -> None:
        with self._lock:
            everybody = list(self._watched.values())
        for each in everybody:
            if each.pidfd < 0:
                self._try(partial(self._open, each))
        if self._epoll is None:
            time.sleep(self._pause)
            return
        # Only of one that had its pidfd before, and has it still, epoll may have spoken.
        watched = {each.pidfd: each for each in everybody if each.pidfd >= 0}
        for number, _ in self._epoll.poll(self._pause):
            if number in watched:
                self._report(watched.pop(number), "has died")
        for each in watched.values():
            if each.judged and self._is_given_up(each):
                self._report(each, f"was stopped by a signal for {self._bound:g} s")

    def _is_given_up(self, watched: _Watched) -> bool:
        try:
            is_stopped = watched.process.is_stopped()
        except OSError as error:  # as for want of descriptors: it says nothing of the member
            logger.warning("Member %s could not be looked at: %s", watched.name, error)
            return False
        now = time.monotonic()
        watched.stopped = (watched.stopped or now) if is_stopped else None
        return is_stopped and now - (watched.stopped or now) >= self._bound * _STOPPED

    def _report(self, watched: _Watched, how: str) -> None:
        with self._lock:
            if self._watched.get(watched.name) is not watched:
                return
            self.remove(watched.name)
        self._ended(watched.name, f"{how} (process {watched.process.pid})")

    def _release(self) -> None:
        """Close the descriptors; called with the lock held."""
        self._closed = True
        for name in list(self._watched):
            self.remove(name)
        if self._epoll is not None:
            self._epoll.close()
            self._epoll = None
        if self._wake >= 0:
            os.close(self._wake)
            self._wake = -1
