"""Ranks that torch's agent keeps, seen from the launching process."""

from __future__ import annotations

import json
import logging
import marshal
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import override

from pparallel.errors import SerializationError, WorkerLostError
from pparallel.interfaces.launcher import GRACE, LaunchContext, RankSpec
from pparallel.runtime import processes, remote_errors, stopping
from pparallel.runtime.links import peer
from pparallel.runtime.processes import lifeline
from pparallel.runtime.resources import is_exhausted, start_thread
from pparallel_torch.torchrun import wire
from pparallel_torch.torchrun.ledger import Ledger
from pparallel_torch.torchrun.order import FAILED, PATH, RETURNED, RUN, SOCKET, TOLD, Order
from pparallel_torch.torchrun.plan import Plan, Report
from pparallel_torch.torchrun.process import RankProcess

if TYPE_CHECKING:
    from pparallel.interfaces.serializer import Serializer
    from pparallel.runtime.processes import Process

logger = logging.getLogger(__name__)

_AGENT = "pparallel_torch.torchrun.agent"
_PAUSE = 0.1  #: seconds after which a rank that could not be let in is tried again
_PATIENCE = 30.0  #: seconds that a rank waits for a descriptor that watches it


class TorchrunContext(LaunchContext):
    """Ranks that torch's agent keeps.

    The agent runs in a process of its own: it blocks, waits for signals, which only a main thread
    can, and is to be ended by force when need be. The ranks, which it starts as programs, connect
    to this process, which tells them what to run and is told what came of it.
    """

    def __init__(
        self,
        ranks: Sequence[RankSpec],
        serializer: Serializer,
        plan: Plan,
        at_end: Callable[[], None],
    ) -> None:
        self._here = plan.nproc_per_node
        super().__init__(ranks[: self._here])  # which they are in truth, the agent will say
        self._serializer = serializer
        directory, self._at_end = plan.directory, at_end
        self._ranks = {each.rank: each for each in ranks}
        self._orders = {
            each.rank: Order.of(each, serializer, plan.shutdown_timeout) for each in ranks
        }
        self._patience = 2 * plan.monitor_interval + plan.shutdown_timeout + GRACE
        self._ledger = Ledger(self._here, plan.max_restarts, self.succeeded, self.failed)
        self._told_to_end = False
        self._lock = threading.RLock()  # a signal handler may stop the ranks
        self._listeners: list[threading.Thread] = []
        self._connections: set[socket.socket] = set()
        self._unserved: socket.socket | None = None  # accepted, and no thread could be started
        with ExitStack() as undo:
            self._open(plan, directory, undo)
            undo.pop_all()
        self._forget_outer = stopping.follow(self.stop)

    def _open(self, plan: Plan, directory: str, undo: ExitStack) -> None:
        lifeline.reader()  # which ranks are handed: what needs descriptors comes first
        path = json.dumps([str(each) or os.getcwd() for each in sys.path])
        Path(directory, PATH).write_text(path)
        self._door = undo.enter_context(socket.socket(socket.AF_UNIX))
        self._door.bind(str(Path(directory, SOCKET)))
        self._door.listen(len(self._ranks))
        self._report, reported = os.pipe2(os.O_CLOEXEC)
        undo.callback(os.close, self._report)
        try:
            self._agent = _start(plan, reported)
        finally:
            os.close(reported)
        undo.callback(self._end_agent)
        keeper = threading.Thread(target=self._keep, name="pparallel-torchrun", daemon=True)
        self._keeper = start_thread(keeper)

    def _end_agent(self) -> None:
        self._agent.signal(signal.SIGKILL)
        self._agent.ended(None)
        self._agent.close()

    @property
    @override
    def processes(self) -> Sequence[RankProcess]:
        return self._ledger.processes()

    @override
    def pids(self) -> list[int]:
        return [each.pid for each in self.processes]

    @override
    def stop(self, reason: BaseException | None = None) -> None:
        with self._lock:
            first, self._told_to_end = not self._told_to_end, True
        if first:
            self._agent.signal(signal.SIGTERM)

    @override
    def kill(self) -> None:
        self._told_to_end = True
        self._agent.signal(signal.SIGKILL)
        for each in self._ledger.known():
            each.kill()

    @override
    def reap(self) -> None:
        self._keeper.join()
        self._forget_outer()

    # -- the agent ----------------------------------------------------------------------------

    def _keep(self) -> None:
        """Let ranks in until the agent has ended, and then see to it that all is over."""
        watch = select.poll()
        for descriptor in (self._door.fileno(), self._agent.pidfd):
            watch.register(descriptor, select.POLLIN)
        while self._agent.pidfd not in (ready := self._ready(watch)):
            if ready or self._unserved is not None:
                self._let_in()
        self._door.close()
        if self._unserved is not None:
            self._unserved.close()
        self._ledger.stop_waiting()
        for each in self._ledger.known():
            each.kill()
        for connection in list(self._connections):
            with suppress(OSError):  # it may have been closed just now
                connection.shutdown(socket.SHUT_RD)
        for listener in self._listeners:
            listener.join()
        self._conclude()

    def _ready(self, watch: select.poll) -> set[int]:
        pause = None if self._unserved is None else _PAUSE * 1000
        return {number for number, _ in watch.poll(pause)}

    def _conclude(self) -> None:
        ended = self._agent.ended(None)
        with open(self._report, "rb") as file:
            data = file.read()
        report = Report.loads(data) if data else None
        lost = None
        if report is None and not self._told_to_end:
            code = ended.code if ended else None
            lost = WorkerLostError(self._agent.pid, code, "it was torch's elastic agent")
        self._agent.close()
        self._at_end()
        self._ledger.close(report, lost)

    # -- the ranks ----------------------------------------------------------------------------

    def _let_in(self) -> None:
        """Accept a rank and serve it; what fails, as for want of descriptors, is tried again."""
        try:
            if self._unserved is None:
                self._unserved, _ = self._door.accept()
            listener = threading.Thread(
                target=self._serve, args=(self._unserved,), name="pparallel-rank", daemon=True
            )
            self._connections.add(self._unserved)
            self._listeners.append(start_thread(listener))
            self._unserved = None
        except Exception:
            logger.exception("A rank could not be let in, which is tried again")
            time.sleep(_PAUSE)

    def _serve(self, connection: socket.socket) -> None:
        try:
            # A rank may end at any time: then the agent says how.
            with connection, suppress(EOFError, ConnectionError):
                self._accompany(connection)
        except Exception:
            logger.exception("The connection of a rank is given up")
        finally:
            self._connections.discard(connection)

    def _accompany(self, connection: socket.socket) -> None:
        pid = peer(connection)
        _, (numbers,), _ = wire.receive(connection)
        process = self._watched(pid, struct.unpack("!III", numbers))
        self._belongs_here(process)
        self._ledger.came(process)
        reported = False
        try:
            order = self._orders[process.rank].frames()
            wire.send(connection, RUN, order, [lifeline.reader()])
            while not reported and process.says_something(connection.fileno()):
                reported = self._take(process, *wire.receive(connection)[:2])
        finally:
            code = process.wait()
            if not reported:
                self._ledger.fell_silent(process, code, self._patience)

    def _watched(self, pid: int, numbers: tuple[int, int, int]) -> RankProcess:
        """Return the process of a rank, which takes a descriptor: without one it waits."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                return RankProcess(pid, *numbers)
            except OSError as error:
                if not is_exhausted(error) or time.monotonic() > deadline:
                    raise
            time.sleep(_PAUSE)

    def _belongs_here(self, process: RankProcess) -> None:
        """Learn from one rank of this machine which the others are: the agents have agreed on it.

        That may change while nothing is reported, as all are started again.
        """
        first = process.rank - process.local_rank
        with self._changed:
            if not self._values and not self._failures:
                self._pending = set(range(first, first + self._here))

    def _take(self, process: RankProcess, kind: int, frames: list[bytearray]) -> bool:
        """Take in what a rank has said; return whether that was the last of it."""
        where = f"rank {process.rank}"
        try:
            if kind == FAILED:
                envelope = marshal.loads(frames[0])
                error = remote_errors.unpack(
                    envelope, where, self._serializer, exits=True, kind="process"
                )
                self._ledger.raised(process, error)
            elif kind == RETURNED:
                self._ledger.returned(process, self._serializer.loads(frames))
            else:
                self._hear(process.rank, self._serializer.loads(frames))
        except Exception as error:  # noqa: BLE001 - raised where the ranks are joined
            what = f"what {where} said"
            self._ledger.raised(process, SerializationError(what, repr(error), loading=True))
        return kind != TOLD

    def _hear(self, rank: int, told: object) -> None:
        hear = self._ranks[rank].hear
        if hear is not None:
            try:
                hear(told)
            except Exception:
                logger.exception("what rank %d told could not be heard", rank)


def _start(plan: Plan, reported: int) -> Process:
    return processes.start(
        f"{_AGENT}:main", plan.dumps(), [reported], name="torchrun", preload=(_AGENT,)
    )
