"""The engine of the pool: its parts put together, the dispatcher, and the pool's calls.

The dispatcher, a thread, does everything: it sends, receives, tells the sinks and keeps the
accounts. Other threads hand it work and wake it.
"""

from __future__ import annotations

import logging
import os
import selectors
import threading
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from threading import get_ident
from time import monotonic
from typing import Any

from pparallel.errors import ClosedError
from pparallel.interfaces.pool import Batch, PoolState, Sink
from pparallel.interfaces.serializer import Serializer
from pparallel.runtime.forks import Inherited
from pparallel.runtime.pools import nesting
from pparallel.runtime.pools.board import Place
from pparallel.runtime.pools.functions import Functions
from pparallel.runtime.pools.jobs import Job
from pparallel.runtime.pools.messages import REPORT, Message
from pparallel.runtime.pools.values import unsent
from pparallel.runtime.processes import Exit
from pparallel.runtime.streams import Streams
from pparallel.runtime.waits import at_most
from pparallel_ray.cluster import Cluster
from pparallel_ray.pool.accounts.crew import Crew
from pparallel_ray.pool.accounts.worker import End, Link, Worker
from pparallel_ray.pool.config import RayPoolConfig
from pparallel_ray.pool.oversight import Oversight
from pparallel_ray.pool.receiving import Receiver
from pparallel_ray.pool.sending import Sender
from pparallel_ray.pool.staff.recruiter import Recruiter
from pparallel_ray.pool.staff.staffing import Staffing
from pparallel_ray.pool.wire.orders import ENDED, GROWN

logger = logging.getLogger(__name__)

_END = 5.0  #: seconds that an idle worker has to end by itself
_BOTH = selectors.EVENT_READ | selectors.EVENT_WRITE
_KILLED = 1.0  #: seconds in which workers that are ended by force are gone


class Engine:
    """Runs the batches of one pool.

    Args:
        config: the pool's.
        what: what errors call the pool.
        name: what the pool is called; its workers are named after it.
        serializer: what functions, items and results are turned into bytes with.
        streams: the pool's random streams.
    """

    def __init__(
        self,
        config: RayPoolConfig,
        what: str,
        name: str,
        serializer: Serializer,
        streams: Streams,
    ) -> None:
        self._what = what
        self._name = name
        self._state = PoolState.NEW
        self._cluster = Cluster(config.cluster)
        self._crew = Crew(config)
        self._functions = Functions(serializer)
        self._receiver = Receiver(self._crew, serializer)
        self._sender = Sender(self._crew, serializer, self._functions.gone)
        self._oversight = Oversight(self._crew)
        self._recruiter = Recruiter(config, name, serializer, streams)
        self._staffing = Staffing(
            self._crew, self._recruiter, self._receiver, self._post, self._join, self._part
        )
        self._posted: deque[Callable[[], object]] = deque()
        self._gone = threading.Event()  # set once no worker is left after terminate
        self._dispatcher: threading.Thread | None = None
        self._alarm = -1
        self._is_awake = True
        self._is_ending = False

    def open(self) -> None:
        """Connect to the cluster, and have the workers started; does not wait for them."""
        nesting.check("opens a pool")
        with self._crew.lock:
            self._state = self._state.opened(self._what)
        with ExitStack() as undo:
            self._cluster.open()
            undo.callback(self._cluster.close)
            self._recruiter.open(self._cluster.address)
            undo.callback(self._recruiter.close)
            self._selector = selectors.DefaultSelector()
            undo.callback(self._selector.close)
            self._alarm = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            undo.callback(self._close_alarm)
            self._selector.register(self._alarm, selectors.EVENT_READ, self._wake_up)
            self._staffing.start_all()
            self._dispatcher = threading.Thread(
                target=self._dispatch, name=f"{self._name}-dispatcher", daemon=True
            )
            self._dispatcher.start()
            _engines.add(self)
            self._release = undo.pop_all()

    def close(self) -> None:
        """Take no more calls."""
        with self._crew.lock:
            self._state = self._state.closed()

    def join(self) -> None:
        """Wait until no task is left, and end the workers."""
        crew = self._crew
        with crew.quiet:
            is_own = get_ident() == (self._dispatcher.ident if self._dispatcher else None)
            self._state.check_joinable(self._what, from_task=is_own)
            crew.quiet.wait_for(lambda: not crew.live)
            crew.is_over = True
            if self._state is PoolState.CLOSED:
                self._state = PoolState.JOINED
            dispatcher, self._dispatcher = self._dispatcher, None
        if dispatcher is not None:
            self._post(self._begin_to_end)
            dispatcher.join()
            self._release.close()
            self._gone.set()

    def terminate(self) -> None:
        """Fail what is not done, and end the workers."""
        with self._crew.lock:
            if self._state is not PoolState.INHERITED:
                self._state = PoolState.TERMINATED
            live = self._crew.abandon()
            dispatcher = self._dispatcher
        if dispatcher is not None:
            self._post(self._staffing.kill_all)
            if dispatcher.ident != get_ident():
                self._gone.wait(_KILLED)
        error = ClosedError(self._what, PoolState.TERMINATED.value)
        for job in live:
            job.sink.abort(error)

    def carry(self, batch: Batch, sink: Sink) -> None:
        """See :meth:`pparallel.Pool.carry`."""
        if self._state is not PoolState.OPEN:
            self._state.check_taking(self._what, continues=batch.continues)
        if not batch.items:
            self._functions.renew(batch.func)
            return
        try:
            function = self._functions.find(batch.func, continues=batch.continues)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - hooks of the user's objects
            sink.abort(unsent("the function", error))
            return
        with self._crew.lock:
            self._state.check_taking(self._what, continues=batch.continues)
            broken = self._staffing.broken
            if broken is None:
                self._crew.append(Job(batch, sink, function, range(len(batch.items))))
                if not self._is_awake:
                    self._wake()
        if broken is not None:
            sink.abort(broken)

    def attend(
        self,
        ready: Callable[[], bool],
        wait: Callable[[float | None], object],
        timeout: float | None,
    ) -> None:
        """See :meth:`pparallel.Pool.attend`: a callback that waits has the dispatcher go on."""
        dispatcher = self._dispatcher
        if dispatcher is None or dispatcher.ident != get_ident():
            wait(timeout)
            return
        deadline = None if timeout is None else monotonic() + timeout
        while not ready() and (deadline is None or monotonic() < deadline):
            self._turn(None if deadline is None else max(0.0, deadline - monotonic()))

    def pids(self) -> list[int]:
        """Return the process ids of the workers that run now, each on its own machine."""
        return [each.pid for each in list(self._crew.workers.values()) if each.is_ready]

    def leave_to_parent(self) -> None:
        """Forget everything, in a child that this program has forked."""
        self._state = PoolState.INHERITED
        self._crew.reset()
        if self._dispatcher is not None:
            self._dispatcher = None
            self._staffing.leave_to_parent()
            self._selector.close()
            os.close(self._alarm)

    def _post(self, call: Callable[[], object]) -> None:
        """Have the dispatcher call something."""
        with self._crew.lock:
            self._posted.append(call)
            self._wake()

    def _wake(self) -> None:
        """Wake the dispatcher; called with the lock held."""
        self._is_awake = True
        if self._alarm >= 0:
            os.eventfd_write(self._alarm, 1)

    def _close_alarm(self) -> None:
        with self._crew.lock:
            alarm, self._alarm = self._alarm, -1
            os.close(alarm)

    def _wake_up(self) -> None:
        os.eventfd_read(self._alarm)

    def _dispatch(self) -> None:
        """Do what is to be done until the pool ends."""
        while not self._has_ended:
            try:
                self._turn(None)
            except Exception as error:  # a fault of this module's: nobody is to wait for ever
                logger.exception("the dispatcher of %s has failed", self._what)
                self._staffing.give_up(error)
                break
        self._staffing.close()

    @property
    def _has_ended(self) -> bool:
        return self._is_ending and self._staffing.is_empty

    def _turn(self, timeout: float | None) -> None:
        """Do what is to be done now, then wait for more, at most *timeout* seconds."""
        while self._posted:
            self._posted.popleft()()
        self._sender.fill_all()
        for due in (self._staffing.look(), self._oversight.look()):
            if due is not None:
                timeout = due if timeout is None else min(due, timeout)
        if self._crew.is_over and self._staffing.is_empty:
            self._gone.set()
        if self._has_ended:  # nothing will ever wake it again
            return
        self._mind_room()
        self._is_awake = False
        if self._posted or self._crew.has_arrivals:  # it came before anybody saw that this waits
            timeout = 0.0
        events = self._selector.select(at_most(timeout))
        self._is_awake = True
        for key, _ in events:
            if key.fileobj in self._selector.get_map():
                key.data()

    def _mind_room(self) -> None:
        """Be told when there is room for what could not be sent at once."""
        watched = self._selector.get_map()
        for worker in self._crew.workers.values():
            wanted = _BOTH if worker.channel.is_backed_up else selectors.EVENT_READ
            key = watched.get(worker.channel.fileno)
            if key is not None and key.events != wanted:
                self._selector.modify(key.fileobj, wanted, key.data)

    def _begin_to_end(self) -> None:
        self._is_ending = True
        if self._state is not PoolState.TERMINATED:
            self._staffing.end_all(_END)

    def _join(self, member: Worker | Link) -> None:
        if isinstance(member, Worker):
            file, call = member.channel.fileno, partial(self._serve, member)
        else:
            file, call = member.control.fileno, partial(self._obey, member)
        self._selector.register(file, selectors.EVENT_READ, call)

    def _part(self, member: Worker | Link) -> None:
        channel = member.channel if isinstance(member, Worker) else member.control
        if channel.fileno in self._selector.get_map():
            self._selector.unregister(channel.fileno)

    def _serve(self, worker: Worker) -> None:
        """Take in what *worker* says."""
        channel = worker.channel
        try:
            if channel.is_backed_up:
                channel.flush()
            while (received := channel.receive()) is not None:
                self._hear(worker, *received)
        except (EOFError, OSError):
            worker.is_silent = True
            self._part(worker)

    def _hear(self, worker: Worker, message: Message, files: list[Any]) -> None:
        if message[0] != REPORT:
            self._staffing.hear(worker, message)
        elif self._receiver.take_report(worker, message, files):
            self._staffing.retire(worker)
        self._sender.fill(worker)

    def _obey(self, link: Link) -> None:
        """Take in what a supervisor says."""
        try:
            while (received := link.control.receive()) is not None:
                self._note(link, *received[0])
        except EOFError:
            self._staffing.lost(link)

    def _note(self, link: Link, kind: int, *content: Any) -> None:
        if kind == ENDED:
            pid, code, peak, lot, first, span, was_late, why = content
            end = End(pid, Exit(code, peak), Place(lot, first, span), was_late=was_late, why=why)
            self._staffing.ended(link, end)
        elif kind == GROWN:
            self._staffing.grown(link)
        else:
            recalled, *place = content
            worker = self._crew.workers.get(link.number)
            if worker is not None and worker.link is link:
                self._oversight.placed(worker, recalled, Place(*place))


_engines = Inherited(Engine.leave_to_parent, once=True)
