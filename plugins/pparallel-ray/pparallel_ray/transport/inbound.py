"""What comes from other members."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ray import ObjectRef

from pparallel.runtime.links.ordering import Ordering
from pparallel_ray.transport.messages import Message, Parcel, unpack
from pparallel_ray.transport.post import Post

logger = logging.getLogger(__name__)

EARLY = 100  #: parcels that are kept of one member whose arrival has not been heard of

Handle = Callable[[str, Message], None]

_TYPES = (int, int, bytes, bytes, list)  #: of what a parcel has


class _Source:
    """What is known of one member that sends."""

    def __init__(self, name: str, proof: Callable[[object], bool]) -> None:
        self.name, self.proved = name, proof
        self.ordered = Ordering()


class Inbound:
    """Takes parcels, of which it opens those of members, each once and in order.

    What a parcel has in the object store is waited for in no thread, and those behind it from the
    same member wait with it.
    """

    def __init__(self, names: Sequence[str], handle: Handle, post: Post) -> None:
        self._names, self._handle, self._post = names, handle, post
        self._lock = threading.Lock()
        self._sources: dict[int, _Source] = {}
        self._early: dict[int, list[Parcel]] = {}
        self._gone: set[int] = set()

    def admit(self, name: str, proved: Callable[[object], bool]) -> None:
        """Take what member *name* sends, where *proved* says that it does."""
        rank = self._names.index(name)
        with self._lock:
            # A stranger may repeat what the member said: its numbers go on all the same.
            self._sources.setdefault(rank, _Source(name, proved))
            early = self._early.pop(rank, [])
        for parcel in early:
            self.arrived(parcel)

    def forget(self, name: str) -> None:
        """Take no more of member *name*."""
        with self._lock:
            self._sources.pop(self._names.index(name), None)
            self._gone.add(self._names.index(name))

    def arrived(self, parcel: Parcel) -> None:
        """Take a parcel, or whatever somebody has sent as one."""
        if not self._is_parcel(parcel):
            logger.warning("dropped what somebody sent that is no parcel of a member")
            return
        rank, number, proof, data, large = parcel
        with self._lock:
            source = self._sources.get(rank)
            if rank in self._gone:
                return
            if source is None:  # its arrival is on another way, and may be a moment later
                early = self._early.setdefault(rank, [])
                if len(early) < EARLY:
                    early.append(parcel)
                return
        if not source.proved(proof):
            logger.warning("dropped a parcel that %s has not sent, as it says", source.name)
        elif large:
            self._fetch(source, number, data, large)
        else:
            source.ordered.arrived(number, partial(self._open, source.name, data, []))

    def _is_parcel(self, found: object) -> bool:
        if not isinstance(found, tuple) or tuple(map(type, found)) != _TYPES:
            return False
        return 0 <= found[0] < len(self._names) and all(
            type(each) is ObjectRef for each in found[4]
        )

    def _fetch(self, source: _Source, number: int, data: bytes, large: list[Any]) -> None:
        found: list[Any] = [None] * len(large)
        missing = set(range(len(large)))

        def here(which: int, value: Any, error: BaseException | None) -> None:
            if error is not None:
                logger.warning("large frames of %s could not be had: %s", source.name, error)
            found[which] = value
            missing.discard(which)
            if not missing:
                source.ordered.arrived(number, partial(self._open, source.name, data, found))

        for which, ref in enumerate(large):
            self._post.when_done(ref, partial(here, which))

    def _open(self, name: str, data: bytes, large: Sequence[Any]) -> None:
        try:
            for message in unpack(data, large):
                self._handle(name, message)
        except ValueError as error:
            logger.error("what %s sent is not understood: %s", name, error)
