"""Sees members of this machine end, or stop, whatever they are busy with."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from pparallel.runtime.links.process import ProcessId
from pparallel.runtime.processes import forget_in_children, remember_in_children

Ended = Callable[[str, str], None]  #: (name, what is known of its end)

#: A stopped process is given up after this part of the bound. The rest is for looking: it is looked
#: at ten times in a bound.
_STOPPED = 0.9
_LOOK = 0.1


class _Watched(NamedTuple):
    name: str
    process: ProcessId
    judged: bool


class Watch:
    """Watches processes of this machine, in one thread, and reports each end once.

    That of a process is seen by a pidfd, at once, whoever holds copies of its sockets. One that a
    signal has stopped for *bound* seconds is given up as well. One that computes, or holds the GIL,
    is not: nothing is asked of it.
    """

    def __init__(self, bound: float, ended: Ended) -> None:
        self._bound, self._ended = bound, ended
        self._lock = threading.Lock()
        self._watched: dict[int, _Watched] = {}  # by pidfd
        self._stopped: dict[int, float] = {}  # since when it was seen to be
        self._dropped: list[int] = []  # to be closed by the thread that polls them
        self._nudge = -1
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
        try:
            pidfd = os.pidfd_open(process.pid)
        except ProcessLookupError:
            pidfd = -1
        if pidfd < 0 or not process.lives():
            if pidfd >= 0:
                os.close(pidfd)
            self._ended(name, f"has died (process {process.pid})")
            return
        forget_in_children(pidfd)
        with self._lock:
            if not self._closed:
                self._watched[pidfd] = _Watched(name, process, judged)
                self._start_or_nudge()
                return
        _close(pidfd)

    def remove(self, name: str) -> None:
        """Watch member *name* no more; harmless if it was not watched."""
        with self._lock:
            for pidfd in [each for each, found in self._watched.items() if found.name == name]:
                del self._watched[pidfd]
                self._dropped.append(pidfd)
                self._start_or_nudge()

    def close(self) -> None:
        """Watch nobody any more; safe to call again."""
        with self._lock:
            self._closed = True
            thread = self._thread
            if thread is not None:
                self._start_or_nudge()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _start_or_nudge(self) -> None:
        if self._thread is None:
            self._nudge = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            forget_in_children(self._nudge)
            self._thread = threading.Thread(target=self._run, name="pparallel-watch", daemon=True)
            self._thread.start()
        elif self._nudge >= 0:
            os.eventfd_write(self._nudge, 1)

    def _run(self) -> None:
        try:
            while not self._closed:
                ready = self._wait()
                now = time.monotonic()
                for pidfd, watched in self._all():
                    if pidfd in ready:
                        self._report(pidfd, watched, f"has died (process {watched.process.pid})")
                    elif watched.judged and self._is_given_up(pidfd, watched, now):
                        how = f"was stopped by a signal for {self._bound:g} s"
                        self._report(pidfd, watched, f"{how} (process {watched.process.pid})")
        finally:
            self._give_back()

    def _all(self) -> list[tuple[int, _Watched]]:
        with self._lock:
            return list(self._watched.items())

    def _wait(self) -> set[int]:
        poll = select.poll()
        with self._lock:
            for pidfd in self._dropped:
                _close(pidfd)
                self._stopped.pop(pidfd, None)
            self._dropped.clear()
            judged = any(each.judged for each in self._watched.values())
            for pidfd in (*self._watched, self._nudge):
                poll.register(pidfd, select.POLLIN)
        ready = {number for number, _ in poll.poll(self._bound * _LOOK * 1000 if judged else None)}
        if self._nudge in ready:
            os.eventfd_read(self._nudge)
        return ready

    def _is_given_up(self, pidfd: int, watched: _Watched, now: float) -> bool:
        if not watched.process.is_stopped():
            self._stopped.pop(pidfd, None)
            return False
        return now - self._stopped.setdefault(pidfd, now) >= self._bound * _STOPPED

    def _report(self, pidfd: int, watched: _Watched, reason: str) -> None:
        with self._lock:
            if self._watched.pop(pidfd, None) is None:
                return
            self._dropped.append(pidfd)
        self._ended(watched.name, reason)

    def _give_back(self) -> None:
        with self._lock:
            self._closed = True
            for pidfd in (*self._watched, *self._dropped, self._nudge):
                _close(pidfd)
            self._watched.clear()
            self._dropped.clear()
            self._nudge = -1


def _close(descriptor: int) -> None:
    remember_in_children(descriptor)
    os.close(descriptor)
