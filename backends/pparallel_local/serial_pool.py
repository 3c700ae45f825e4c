"""Serial pool: tasks run in the thread that hands them over."""

from __future__ import annotations

import itertools
import logging
import threading
from typing import TYPE_CHECKING

from typing_extensions import override

from pparallel.errors import ClosedError
from pparallel.interfaces.pool import Pool, PoolState
from pparallel.runtime.threads import below

if TYPE_CHECKING:
    from pparallel.interfaces.pool import Batch, Sink
    from pparallel.runtime.member import Member
    from pparallel_local.config import SerialPoolConfig

logger = logging.getLogger(__name__)


class SerialPool(Pool):
    """Runs each task at once, in the caller, one after the other: for debugging.

    ``imap`` runs a task when its result is asked for. A task that blocks blocks its caller.
    """

    def __init__(self, config: SerialPoolConfig, *, member: Member) -> None:
        self._config = config
        self._state = PoolState.NEW
        self._broken: Exception | SystemExit | None = None
        self._turns = itertools.count()
        self._callers: list[int] = []
        self._idle = threading.Condition(threading.Lock())

    @override
    def size(self) -> int:
        return self._config.workers

    @override
    def lookahead(self) -> int:
        return 0

    @override
    def open(self) -> None:
        self._state = self._state.opened(self)
        try:
            self._config.initialize()
        except (Exception, SystemExit) as error:
            logger.exception("The initializer of %r failed", self)
            self._broken = error

    @override
    def close(self) -> None:
        with self._idle:
            self._state = self._state.closed()

    @override
    def join(self) -> None:
        with self._idle:
            self._state.check_joinable(self, from_task=threading.get_ident() in self._callers)
            self._idle.wait_for(lambda: not self._callers or self._is_terminated())
            if self._state is PoolState.CLOSED:
                self._state = PoolState.JOINED

    @override
    def terminate(self) -> None:
        with self._idle:
            self._state = PoolState.TERMINATED
            self._idle.notify_all()

    @override
    def carry(self, batch: Batch, sink: Sink) -> None:
        with self._idle:
            self._state.check_taking(self, continues=batch.continues)
            self._callers.append(threading.get_ident())
        try:
            if not batch.items:
                return
            if self._broken is not None:
                sink.abort(self._broken)
            elif sink.begin():
                self._run(batch, sink)
        finally:
            with self._idle:
                self._callers.remove(threading.get_ident())
                self._idle.notify_all()

    def _is_terminated(self) -> bool:
        return self._state is PoolState.TERMINATED

    def _run(self, batch: Batch, sink: Sink) -> None:
        calls = [batch.bound(*self._config.context(worker)) for worker in range(self.size())]
        for index, item in enumerate(batch.items):
            if self._is_terminated():
                sink.abort(ClosedError(repr(self), self._state.value))
            if sink.cancelled:
                break
            worker = next(self._turns) % len(calls)
            if sink.observed:
                sink.started(index, f"worker-{worker}")
            try:
                value = calls[worker](item)
            except BaseException as error:
                sink.failed(index, below(error))
                if isinstance(error, KeyboardInterrupt):
                    raise
            else:
                sink.done(index, (value,))
