"""The actor that keeps the versions."""

from __future__ import annotations

import asyncio
import pickle
import sys
from collections.abc import Hashable, Sequence
from typing import Any, Literal, NamedTuple

from pparallel.errors import ClosedError
from pparallel.runtime.future import fail
from pparallel.runtime.versioned_store import Snapshot, VersionedStore, Waiter

Answer = tuple[Any, list[Any]]  #: what is answered of a value: its version, and its buffers


class About(NamedTuple):
    """What a keeper is.

    Attributes:
        depth: how many versions of a key it holds.
        maker: who has started it.
    """

    depth: int
    maker: str


class Keeper:
    """Compares and pushes. Its methods run in one thread, of which waiting takes no part.

    Values are its own memory, and no objects in Ray's store to which it would hand out references:
    with 2.60, of many that are handed out as others are dropped, some lead to objects that are
    gone, and reading those fails or never ends.

    Args:
        about: what it is.
        path: where modules are found that keys and versions may need.
    """

    def __init__(self, about: tuple[Any, ...], path: Sequence[str]) -> None:
        self._about = About(*about)
        self._store = VersionedStore(self._about.depth)
        self._waiters: dict[tuple[str, int], Waiter] = {}
        sys.path[:] = [*path, *(each for each in sys.path if each not in path)]

    async def about(self) -> tuple[Any, ...]:
        """Return what it is."""
        return tuple(self._about)

    async def push(
        self,
        key: Hashable,
        version: Hashable,
        prev_version: Hashable | None,
        buffers: Sequence[Any],
    ) -> bool:
        """Store *buffers*; see :class:`~pparallel.runtime.versioned_store.VersionedStore`."""
        if not self._store.would_accept(key, prev_version):
            return False
        kept = [bytes(memoryview(each).cast("B")) for each in buffers]
        return self._store.push(key, kept, version, prev_version)

    async def pull(self, key: Hashable, version: Hashable | None) -> Answer | None:
        """Return what is held of *version*, or of the newest."""
        return _answer(self._store.pull(key, version))

    async def pull_unless(self, key: Hashable, version: Hashable | None) -> Answer | None:
        """Return the newest unless it is *version*."""
        return _answer(self._store.pull_unless(key, version))

    async def wait(
        self,
        key: Hashable,
        version: Hashable | None,
        timeout: float | None,
        ticket: tuple[str, int],
    ) -> Answer | Literal[False] | None:
        """Return the newest as soon as it is not *version*.

        Args:
            key: whose.
            version: the version that is not wanted.
            timeout: seconds after which None is returned; ``None``: never.
            ticket: who waits, and the number of that.

        Returns:
            ``False`` if who waits does not want to any more.
        """
        waiter = self._waiters[ticket] = self._store.wait(key, version, owner=ticket[0])
        try:
            future = asyncio.wrap_future(waiter.future)
            return _answer(await asyncio.wait_for(future, timeout))
        except TimeoutError:
            return None
        except ClosedError:
            return False
        finally:
            self._waiters.pop(ticket, None)
            self._store.withdraw(waiter)

    async def withdraw(self, ticket: tuple[str, int]) -> None:
        """Wait no longer for one who does not want to."""
        if (waiter := self._waiters.get(ticket)) is not None:
            fail(waiter.future, ClosedError("the ordered server"))

    async def dismiss(self, owner: str) -> None:
        """Wait no longer for anybody of *owner*."""
        self._store.dismiss(owner, ClosedError("the ordered server"))

    async def versions(self, key: Hashable) -> list[Any]:
        """Return the versions held of *key*, the newest last."""
        return self._store.versions(key)

    async def keys(self) -> list[Any]:
        """Return the keys held."""
        return self._store.keys()

    async def delete(self, key: Hashable) -> bool:
        """Forget *key*; return whether it was held."""
        return self._store.delete(key)


def _answer(snapshot: Snapshot | None) -> Answer | None:
    if snapshot is None:
        return None
    return snapshot.version, [pickle.PickleBuffer(each) for each in snapshot.buffers]
