"""The process of a rank: torch's agent has started it, so that nobody here can wait for it."""

from __future__ import annotations

import os
import select
import signal
import threading
from contextlib import suppress

from pparallel.runtime.processes import close_private, private

_STATE, _STARTED, _CODE = 0, 19, 49  #: fields of /proc/PID/stat behind the name


class RankProcess:
    """A rank's process, as a process object of Python's.

    Attributes:
        pid: its number.
        rank: the rank's number in the job.
        local_rank: the rank's number on this machine.
        restart: how often ranks had been started again when it was.
    """

    def __init__(self, pid: int, rank: int, local_rank: int, restart: int) -> None:
        self.pid, self.rank, self.local_rank, self.restart = pid, rank, local_rank, restart
        self._lock = threading.Lock()
        self._ended = threading.Event()
        fields = _stat(pid)
        self._pidfd = private(lambda: os.pidfd_open(pid))
        self._started = fields[_STARTED] if fields else b""

    @property
    def name(self) -> str:
        """What it is called."""
        return f"rank-{self.rank}"

    def is_alive(self) -> bool:
        """Return whether it runs."""
        return not self._ended.is_set()

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended."""
        self._ended.wait(timeout)

    def kill(self) -> None:
        """End it by force."""
        with self._lock:
            if not self._ended.is_set():
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def says_something(self, connection: int) -> bool:
        """Wait until it has sent something, or ended; return whether there is something to read."""
        watch = select.poll()
        watch.register(connection, select.POLLIN)
        watch.register(self._pidfd, select.POLLIN)
        return any(number == connection for number, _ in watch.poll())

    def wait(self) -> int | None:
        """Wait for its end, and take note of it; by one thread, once.

        Returns:
            Its exit code, or minus the number of the signal that ended it; ``None`` if the agent
            was quicker to ask.
        """
        watch = select.poll()
        watch.register(self._pidfd, select.POLLIN)
        watch.poll()
        code = self._code()
        with self._lock:
            self._ended.set()
            close_private(self._pidfd)
        return code

    def _code(self) -> int | None:
        # The kernel keeps it in the dead process until its parent has asked for it.
        fields = _stat(self.pid)
        if fields is None or fields[_STATE] != b"Z" or fields[_STARTED] != self._started:
            return None
        return os.waitstatus_to_exitcode(int(fields[_CODE]))


def _stat(pid: int) -> list[bytes] | None:
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            return file.read(4096).rpartition(b")")[2].split()  # the name may hold anything
    except (FileNotFoundError, ProcessLookupError):
        return None
