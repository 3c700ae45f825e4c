"""The actor where the members of a job meet, and from which each pulls its messages."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

import ray

from pparallel.runtime.links import ProcessId
from pparallel.runtime.links.watch import Watch

NAMESPACE = "pparallel"  #: where Ray finds it by its name
AT_ONCE = 16  #: items that one answer to :meth:`Broker.pull` has at most

Item = tuple[Any, ...]  #: a parcel, or a notice for all members: see ``connection``


class _Mailbox:
    """The items for one member. All is done in one thread, and at once but where it waits."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: deque[tuple[Item, int]] = deque()
        self._size = 0
        self._changed = asyncio.Event()
        self.arrived = self.ended = False

    def put(self, item: Item, size: int = 0) -> None:
        """Put an item in."""
        if not self.ended:
            self._size += size
            self._items.append((item, size))
            self._wake()

    async def room(self) -> None:
        """Wait until there is room for more."""
        while self._size > self._limit and not self.ended:
            await self._changed.wait()

    async def take(self) -> list[Item] | None:
        """Return items, once there are some; ``None``: the member has ended."""
        while not self._items and not self.ended:
            await self._changed.wait()
        if self.ended:
            return None
        taken = [self._items.popleft() for _ in range(min(AT_ONCE, len(self._items)))]
        self._size -= sum(size for _, size in taken)
        self._wake()
        return [item for item, _ in taken]

    def end(self) -> None:
        """Drop what is there, and what will come."""
        self.ended = True
        self._items.clear()
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class Broker:
    """Passes items on, and looks into none.

    It has a mailbox for each member, from which that pulls, and keeps all notices, for members that
    arrive later. A member on another machine has a broker for its parcels alone, beside it.
    """

    def __init__(self, names: Sequence[str], limit: int) -> None:
        """Expect members.

        Args:
            names: of the members.
            limit: bytes in a mailbox from which on a push is answered late.
        """
        self._mailboxes = {name: _Mailbox(limit) for name in names}
        self._notices: list[Item] = []

    async def arrive(self, name: str, notice: Item) -> str:
        """Let a member in, and report it to the others; return why not, or nothing."""
        box = self._mailboxes.get(name)
        if box is None:
            return f"is no member of this job; its members: {', '.join(self._mailboxes)}"
        if box.arrived:
            return "has been here already: names are given once, so launch the job again"
        box.arrived = True
        for each in self._notices:
            box.put(each)
        await self.notify(notice)
        return ""

    async def notify(self, notice: Item) -> None:
        """Pass a notice on to all members."""
        self._notices.append(notice)
        for box in self._mailboxes.values():
            if box.arrived:
                box.put(notice)

    async def push(self, to: str, item: Item, size: int) -> None:
        """Leave an item of *size* bytes for member *to*; return when there is room for more."""
        self._mailboxes[to].put(item, size)
        await self._mailboxes[to].room()

    async def pull(self, name: str) -> list[Item] | None:
        """Return items for member *name*, once there are some; ``None``: it has left."""
        return await self._mailboxes[name].take()

    async def node(self) -> str:
        """Return on which machine this is, as Ray calls it."""
        found: str = ray.get_runtime_context().get_node_id()
        return found

    async def end_of(self, process: tuple[bytes, int, int], bound: float) -> str:
        """Return how a process of this machine ended, once it has, or was stopped for *bound* s.

        One that cannot be seen from here is waited for in vain: Ray ends this actor with the
        process that started it.
        """
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[str] = loop.create_future()

        def tell(_: str, how: str) -> None:
            loop.call_soon_threadsafe(ended.set_result, how)

        watch = Watch(bound, tell)
        try:
            watch.add("", ProcessId(*process), judged=True)
            return await ended
        finally:
            await loop.run_in_executor(None, watch.close)

    async def leave(self, name: str, notice: Item) -> None:
        """Forget a member, and pass its notice on to the others."""
        self._mailboxes[name].end()
        await self.notify(notice)
