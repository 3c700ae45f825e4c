"""The actor where the members of a job meet, and from which they pull what is for them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

import ray

from pparallel.runtime.links import ProcessId
from pparallel.runtime.links.watch import Watch
from pparallel_ray.transport.messages import Parcel

NAMESPACE = "pparallel"  #: where Ray finds it by its name
AT_ONCE = 16  #: parcels and notices that one answer to :meth:`Exchange.pull` has at most

#: What one member has all others know: a plain tuple, see ``link``.
Notice = tuple[Any, ...]
Item = tuple[bool, Any]  #: whether it is a notice, and the notice or parcel


class _Box:
    """What is there for one member. All is done in one thread, and at once but where it waits."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: deque[tuple[Item, int]] = deque()
        self._size = 0
        self._waiting: list[asyncio.Future[None]] = []
        self.arrived = self.ended = False

    def put(self, item: Item, size: int = 0) -> None:
        """Leave something."""
        if not self.ended:
            self._size += size
            self._items.append((item, size))
            self._wake()

    async def room(self) -> None:
        """Wait until there is room for more."""
        while self._size > self._limit and not self.ended:
            await self._change()

    async def take(self) -> list[Item] | None:
        """Return what is there, once there is something; ``None``: the member has ended."""
        while not self._items and not self.ended:
            await self._change()
        if self.ended:
            return None
        taken = [self._items.popleft() for _ in range(min(AT_ONCE, len(self._items)))]
        self._size -= sum(size for _, size in taken)
        self._wake()
        return [item for item, _ in taken]

    def end(self) -> None:
        """Throw away what is there, and what will come."""
        self.ended = True
        self._items.clear()
        self._wake()

    async def _change(self) -> None:
        change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(change)
        await change

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)


class Exchange:
    """Passes on what it is given, and looks into nothing of it.

    It has what every member is to know, in the order in which it was said, for those too that
    arrive later; and a box for each member, from which that pulls. A member on another machine has
    an exchange for its parcels alone, beside it.
    """

    def __init__(self, names: Sequence[str], limit: int) -> None:
        """Expect members.

        Args:
            names: of the members.
            limit: bytes in a box from which on who brings more is kept waiting.
        """
        self._boxes = {name: _Box(limit) for name in names}
        self._told: list[Notice] = []

    async def arrive(self, name: str, notice: Notice) -> str:
        """Be there from now on, and have the others know; return why not, or nothing."""
        box = self._boxes.get(name)
        if box is None:
            return f"is no member of this job; its members: {', '.join(self._boxes)}"
        if box.arrived:
            return "has been here already: names are given once, so launch the job again"
        box.arrived = True
        for each in self._told:
            box.put((True, each))
        self._tell(notice)
        return ""

    async def tell(self, notice: Notice) -> None:
        """Have all members know something."""
        self._tell(notice)

    async def push(self, to: str, parcel: Parcel, size: int) -> None:
        """Leave a parcel for member *to*; return when there is room for more."""
        self._boxes[to].put((False, parcel), size)
        await self._boxes[to].room()

    async def pull(self, name: str) -> list[Item] | None:
        """Return what there is for member *name*, once there is something; ``None``: no more."""
        return await self._boxes[name].take()

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

    async def leave(self, name: str, notice: Notice) -> None:
        """Be there no more, and have the others know."""
        self._boxes[name].end()
        self._tell(notice)

    def _tell(self, notice: Notice) -> None:
        self._told.append(notice)
        for box in self._boxes.values():
            if box.arrived:
                box.put((True, notice))
