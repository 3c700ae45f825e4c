"""A worker, and who looks after it, as the pool sees them."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from pparallel.runtime.pools.board import Place
from pparallel.runtime.pools.lots import Lot
from pparallel.runtime.processes import Exit
from pparallel_ray.pool.wire.channel import Channel

_LOG = 5  #: lines of a worker's log that are shown when it is lost


class HiredHost(NamedTuple):
    """The actor that looks after this program's workers on one machine.

    Attributes:
        address: where it listens.
        key: what it asks for.
        running: what Ray returns when it ends.
        actor: Ray's handle of it.
    """

    address: tuple[str, int]
    key: bytes
    running: Any
    actor: Any


class Link:
    """The connection to the supervisor of one of the pool's workers.

    Attributes:
        number: the worker's place in the pool.
        name: what the host knows the supervisor by.
        host: where it is.
        control: the channel to it.
    """

    def __init__(self, number: int, name: bytes, host: HiredHost, control: Channel) -> None:
        self.number = number
        self.name = name
        self.host = host
        self.control = control


class End:
    """How a worker has ended.

    Attributes:
        pid: its process.
        how: its exit code and memory; ``None``: nobody knows.
        place: which task it ran; ``None``: nobody knows.
        why: what is known beside that.
        was_late: its task took too long.
    """

    def __init__(
        self,
        pid: int,
        how: Exit | None,
        place: Place | None,
        *,
        why: str = "",
        was_late: bool = False,
    ) -> None:
        self.pid = pid
        self.how = how
        self.place = place
        self.why = why
        self.was_late = was_late


class Worker:
    """One worker's process and what it was given.

    Attributes:
        number: its place in the pool.
        name: what it is called.
        link: to its supervisor.
        channel: to it.
        pid: its process; 0: it has not said yet.
        lots: what it was sent and has not ended, by number, in order.
        known: the functions that it has.
        forgotten: functions that it need not keep.
        tasks: how many tasks it was given.
        is_ready: it has started.
        is_retiring: it gets nothing more.
        is_leaving: it was told to end.
        is_silent: its channel has ended.
        recalled: when it was last asked to give back what has not started.
        end: how it ended; ``None``: nobody has said so.
        failure: why it could not start.
        is_killed: it was ended by force.
        deadline: when it is no longer waited for.
        log: the last lines of its log.
    """

    def __init__(self, link: Link, name: str, channel: Channel) -> None:
        self.number = link.number
        self.name = name
        self.link = link
        self.channel = channel
        self.pid = 0
        self.lots: dict[int, Lot] = {}
        self.known: set[int] = set()
        self.forgotten: list[int] = []
        self.tasks = 0
        self.is_ready = self.is_retiring = self.is_leaving = self.is_silent = False
        self.recalled = 0.0
        self.end: End | None = None
        self.failure: BaseException | None = None
        self.is_killed = False
        self.deadline: float | None = None
        self.log: deque[str] = deque(maxlen=_LOG)

    @property
    def serves(self) -> bool:
        """Whether it may be given tasks."""
        gone = self.is_retiring or self.is_leaving or self.is_silent or self.end is not None
        return self.is_ready and not gone
