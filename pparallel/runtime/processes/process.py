"""A process that was started: its end, its signals."""

from __future__ import annotations

import os
import select
import signal
import threading
import warnings
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import NamedTuple

from typing_extensions import override

from pparallel.runtime.forks import Inherited
from pparallel.runtime.processes import descriptors
from pparallel.runtime.processes.inheritance import (
    forget_in_children,
    no_fork,
    remember_in_children,
)
from pparallel.runtime.waits import milliseconds


class Exit(NamedTuple):
    """How a process ended.

    Attributes:
        code: its exit code, or minus the number of the signal that ended it; ``None``: nobody
            knows, as when something else in this program waits for any child at all.
        peak_rss: the most memory that was resident, of the process or of a child it waited for, in
            bytes; ``None``: it is not known.
    """

    code: int | None
    peak_rss: int | None


class Process(ABC):
    """A child of this process, or of its fork server. Any thread may use it.

    Attributes:
        pid: its number.
        name: what it was started as.
        pidfd: a descriptor that is readable once it has ended; this object's own.
        warns: whether it warns when it is garbage and was not closed; not so where its owner does:
            of what is garbage together, either may be first.
    """

    def __init__(self, pid: int, name: str, pidfd: int, *further: int) -> None:
        self.pid, self.name, self.pidfd = pid, name, pidfd
        self.warns = True
        self._exit: Exit | None = None
        self._descriptors: tuple[int, ...] = (pidfd, *further)
        self._lock = threading.Lock()
        forget_in_children(*self._descriptors)
        _processes.add(self)

    def ended(self, timeout: float | None = 0) -> Exit | None:
        """Return how it ended, waiting for that for *timeout* seconds; ``None``: for ever.

        Once :attr:`pidfd` is readable, this answers whatever the time-out is.

        Returns:
            ``None`` while it runs.

        Raises:
            ClosedError: it was closed before its end was known.
        """
        if self._exit is None:
            self._check_open()
            if not readable(self.pidfd, timeout):
                return None
            with self._lock:
                if self._exit is None:
                    self._check_open()
                    self._exit = self._learn()
        return self._exit

    def signal(self, number: int) -> None:
        """Send it a signal; nothing happens if it has ended or this is closed."""
        with self._lock:
            if self._descriptors:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self.pidfd, number)

    def close(self) -> None:
        """Give the descriptors back. A process that runs goes on, and nobody learns of its end."""
        with self._lock:
            held, self._descriptors = self._descriptors, ()
            if held:
                self._leave()
                with no_fork():
                    remember_in_children(*held)
                    descriptors.close(*held)

    @override
    def __repr__(self) -> str:
        state = "closed" if not self._descriptors else "open"
        return f"<{type(self).__name__} {self.name!r} {self.pid}, {self._exit or state}>"

    def __del__(self) -> None:
        if getattr(self, "_descriptors", ()):
            if self.warns:
                warnings.warn(f"process {self.name!r} was not closed", ResourceWarning, 2, self)
            self.close()

    @abstractmethod
    def _learn(self) -> Exit:
        """Return how it ended, now that it has."""

    @abstractmethod
    def _leave(self) -> None:
        """Do what is to be done before the descriptors are closed."""

    def _check_open(self) -> None:
        if not self._descriptors:
            from pparallel.errors import ClosedError

            raise ClosedError(f"process {self.name!r}")

    def _forget(self) -> None:
        # In a forked child the descriptors are those of /dev/null, and still this object's.
        self._lock = threading.Lock()
        descriptors.close(*self._descriptors)
        self._descriptors = ()


_processes = Inherited(Process._forget, once=True)


def watch(pid: int) -> int:
    """Return a pidfd of a child of this process that was just started, or end the child."""
    try:
        return descriptors.lifted(os.pidfd_open(pid))
    except OSError:  # no descriptor is left, or somebody else has waited for the child
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        raise


def readable(descriptor: int, timeout: float | None) -> bool:
    """Wait until *descriptor* is readable or at its end, for *timeout* seconds, 12 days at most."""
    watch = select.poll()
    watch.register(descriptor, select.POLLIN)
    return bool(watch.poll(milliseconds(timeout)))
