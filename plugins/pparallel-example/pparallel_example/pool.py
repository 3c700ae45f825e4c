"""A pool of threads, each of which takes the next task of the batch that came first."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from time import monotonic

from pparallel.interfaces.pool import Batch, Pool, PoolState, Sink
from pparallel.runtime.member import Member
from pparallel.runtime.program_end import end_with_program
from pparallel.runtime.threads import Backlog, Slot
from typing_extensions import override

from pparallel_example.pool_config import ExamplePoolConfig


class ExamplePool(Pool):
    """Threads that take tasks; one that waits inside a task has another work in its place."""

    def __init__(self, config: ExamplePoolConfig, *, member: Member) -> None:
        self._config = config
        self._name = f"{member.name}-{config.backend}"
        self._backlog = Backlog(self)
        self._threads: set[threading.Thread] = set()
        self._here = threading.local()  # in a worker's thread: its slot

    @override
    def size(self) -> int:
        return self._config.workers

    @override
    def open(self) -> None:
        self._backlog.open()
        self._context = contextvars.copy_context()  # tasks belong to the member that opens it
        end_with_program(self)
        try:
            for number in range(self.size()):
                Slot(number, self._config.context(number)).employ(self._start_thread)
        except BaseException:  # there may be no room for another thread
            self.terminate()
            raise

    @override
    def carry(self, batch: Batch, sink: Sink) -> None:
        self._backlog.put(batch, sink)

    @override
    def close(self) -> None:
        self._backlog.close()

    @override
    def join(self) -> None:
        self._backlog.join(from_task=hasattr(self._here, "slot"))
        deadline = None
        if self._backlog.state is PoolState.TERMINATED:  # a task may never end
            deadline = monotonic() + self._config.patience
        for each in list(self._threads):
            each.join(None if deadline is None else max(0.0, deadline - monotonic()))

    @override
    def terminate(self) -> None:
        self._backlog.terminate()

    @override
    def attend(
        self,
        ready: Callable[[], bool],
        wait: Callable[[float | None], object],
        timeout: float | None,
    ) -> None:
        if hasattr(self._here, "slot"):  # a task waits for another, which may need its worker
            with self._here.slot.lent(self._start_thread):
                wait(timeout)
        else:
            wait(timeout)

    def _start_thread(self, slot: Slot) -> None:
        run = self._context.copy().run
        thread = threading.Thread(
            target=run, args=(self._serve, slot), name=self._name, daemon=True
        )
        thread.start()
        self._threads.add(thread)

    def _serve(self, slot: Slot) -> None:
        self._here.slot = slot
        self._backlog.serve(slot, self._config.initialize)
        self._threads.discard(threading.current_thread())
