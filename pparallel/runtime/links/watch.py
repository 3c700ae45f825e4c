"""Sees members of this machine end, or stop, whatever they are busy with."""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from pparallel.errors import ResourceExhaustedError
from pparallel.runtime.event_fd import EventFd
from pparallel.runtime.links.process import ProcessId
from pparallel.runtime.processes import close_private, private
from pparallel.runtime.resources import explaining, start_thread

logger = logging.getLogger(__name__)

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
    is not: nothing is asked of it. A look that fails, as for want of descriptors, is made again.
    """

    def __init__(self, bound: float, ended: Ended) -> None:
        self._bound, self._ended = bound, ended
        self._lock = threading.RLock()
        self._watched: dict[int, _Watched] = {}  # by pidfd
        self._stopped: dict[int, float] = {}  # since when it was seen to be
        self._dropped: list[int] = []  # to be closed by the thread that polls them
        self._late: list[_Watched] = []  # for which there was no descriptor
        self._nudge: EventFd | None = None
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
        watched, pidfd = _Watched(name, process, judged), -1
        try:
            with explaining(f"watching the process of member {name!r}"):
                pidfd = private(lambda: _opened(process))
        except ResourceExhaustedError as error:
            logger.warning("It is tried again: %s", error)
            self._late.append(watched)
        else:
            if pidfd < 0:
                self._ended(name, f"has died (process {process.pid})")
                return
        with self._lock:
            if self._closed:
                close_private(*([pidfd] if pidfd >= 0 else ()))
                return
            if pidfd >= 0:
                self._watched[pidfd] = watched
            self._start_or_nudge()

    def start(self) -> None:
        """Make sure that a thread runs, if there is anybody to watch.

        Raises:
            ResourceExhaustedError: none can be started.
        """
        with self._lock:
            wanted = self._watched or self._late or self._dropped
            if self._thread is None and not self._closed and wanted:
                thread = threading.Thread(target=self._run, name="pparallel-watch", daemon=True)
                self._thread = start_thread(thread)

    def remove(self, name: str) -> None:
        """Watch member *name* no more; harmless if it was not watched."""
        self._late = [each for each in self._late if each.name != name]
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
            else:
                self._give_back()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _start_or_nudge(self) -> None:
        """Have the thread look; it waits for the lock before it does."""
        if self._nudge is None and not self._closed:
            with suppress(OSError):  # no descriptor: the thread looks now and then
                self._nudge = EventFd()
        if self._thread is None:
            try:
                self.start()
            except ResourceExhaustedError as error:
                logger.warning("The next member that comes or goes has it tried again: %s", error)
        elif self._nudge is not None:
            self._nudge.set()

    def _run(self) -> None:
        try:
            while not self._closed:
                try:
                    self._look()
                except Exception:  # what fails once is tried again: nobody else looks
                    logger.exception("A look at the processes of other members failed")
                    time.sleep(min(self._bound * _LOOK, 0.1))
        finally:
            self._give_back()

    def _look(self) -> None:
        late, self._late = self._late, []
        for each in late:
            self.add(each.name, each.process, judged=each.judged)
        ready = self._wait()
        now = time.monotonic()
        with self._lock:
            all_watched = list(self._watched.items())
        for pidfd, watched in all_watched:
            if pidfd in ready:
                self._report(pidfd, watched, f"has died (process {watched.process.pid})")
            elif watched.judged and self._is_given_up(pidfd, watched, now):
                how = f"was stopped by a signal for {self._bound:g} s"
                self._report(pidfd, watched, f"{how} (process {watched.process.pid})")

    def _wait(self) -> set[int]:
        poll = select.poll()
        with self._lock:
            for pidfd in self._dropped:
                self._stopped.pop(pidfd, None)
            close_private(*self._dropped)
            self._dropped.clear()
            nudge, judged = self._nudge, [each for each in self._watched.values() if each.judged]
            looks = nudge is None or self._late or judged
            for number in (*self._watched, *([] if nudge is None else [nudge.fd])):
                poll.register(number, select.POLLIN)
        ready = {number for number, _ in poll.poll(self._bound * _LOOK * 1000 if looks else None)}
        if nudge is not None:
            nudge.clear()
        return ready

    def _is_given_up(self, pidfd: int, watched: _Watched, now: float) -> bool:
        try:
            is_stopped = watched.process.is_stopped()
        except OSError as error:  # as for want of descriptors: it says nothing of the member
            logger.warning("Member %s could not be looked at: %s", watched.name, error)
            return False
        if not is_stopped:
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
            close_private(*self._watched, *self._dropped)
            self._watched.clear()
            self._dropped.clear()
            if self._nudge is not None:
                self._nudge.close()


def _opened(process: ProcessId) -> int:
    """Return a pidfd of a process that lives; -1: it does not."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return -1
    lives = False
    try:
        lives = process.lives()
    finally:
        if not lives:
            os.close(pidfd)
    return pidfd if lives else -1
