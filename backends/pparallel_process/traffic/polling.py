"""Wait until a worker has said something, or has ended."""

from __future__ import annotations

import contextlib
import os
import select
import threading

from pparallel.runtime.waits import at_most
from pparallel_process.accounts.worker import Worker

_WHILE = 0.1  #: seconds


class Polling:
    """What the engine waits for: the workers' channels and processes, and a nudge."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        try:
            self._nudge = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        except BaseException:
            self._poll.close()
            raise
        self._poll.register(self._nudge, select.EPOLLIN)
        self._channels: dict[int, Worker] = {}
        self._processes: dict[int, Worker] = {}
        self._closing = threading.Lock()
        self._is_closed = False

    def watch(self, worker: Worker) -> None:
        """Wait for *worker* too."""
        self._channels[worker.channel.fileno] = worker
        self._processes[worker.process.pidfd] = worker
        self._poll.register(worker.channel.fileno, select.EPOLLIN)
        self._poll.register(worker.process.pidfd, select.EPOLLIN)

    def mute(self, worker: Worker) -> None:
        """Wait for nothing but the end of *worker*."""
        self._drop(self._channels, worker.channel.fileno, worker)

    def forget(self, worker: Worker) -> None:
        """Wait for *worker* no longer; safe to call again."""
        self.mute(worker)
        self._drop(self._processes, worker.process.pidfd, worker)

    def wait(self, timeout: float | None) -> tuple[list[Worker], list[Worker]]:
        """Return who has said something, and who has ended; nobody after *timeout* seconds."""
        said: list[Worker] = []
        ended: list[Worker] = []
        if self._is_closed:
            return said, ended
        for fd, _ in self._poll.poll(at_most(timeout)):
            if fd == self._nudge:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._nudge)
            elif (worker := self._channels.get(fd)) is not None:
                said.append(worker)
            elif (worker := self._processes.get(fd)) is not None:
                ended.append(worker)
        return said, ended

    def wait_for(self, worker: Worker) -> bool:
        """Wait a while for *worker* to say something; return False if it is not all that happened.

        Whoever waits may have been told meanwhile, by a thread that cancelled the call, say.
        """
        if self._is_closed:
            return False
        events = self._poll.poll(_WHILE)
        return len(events) == 1 and events[0][0] == worker.channel.fileno

    def nudge(self) -> None:
        """Have whoever waits return; safe at any time."""
        with self._closing:
            if not self._is_closed:
                os.eventfd_write(self._nudge, 1)

    def leave_to_parent(self) -> None:
        """Give the descriptors back, in a fork: whoever held the lock is not in this process."""
        self._closing = threading.Lock()
        self.close()

    def close(self) -> None:
        """Give the descriptors back; safe to call again. Nobody may be waiting."""
        with self._closing:
            if not self._is_closed:
                self._is_closed = True
                self._poll.close()
                os.close(self._nudge)

    def _drop(self, watched: dict[int, Worker], fd: int, worker: Worker) -> None:
        # Once it is closed, the number may be another worker's.
        if watched.get(fd) is worker:
            del watched[fd]
            if not self._is_closed:
                with contextlib.suppress(OSError):
                    self._poll.unregister(fd)
