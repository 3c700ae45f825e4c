"""Messages from other members."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ray import ObjectRef
from typing_extensions import Buffer

from pparallel.runtime.links.ordering import Ordering
from pparallel_ray.transport.dispatcher import Dispatcher
from pparallel_ray.transport.messages import Parcel, unpack

logger = logging.getLogger(__name__)

EARLY = 100  #: messages that are kept of one member that has not been admitted yet

#: (sender, kind, frames); of kind -1, with the reason, where the large frames could not be had
Handle = Callable[[str, int, list[Buffer]], None]

UNREAD = -1

_TYPES = (int, int, bytes, bytes, list)  #: of the parts of a parcel


class _Source:
    def __init__(self, name: str) -> None:
        self.name = name
        self.holds: Callable[[object], bool] | None = None  # whether a proof is that of the member
        self.order = Ordering()
        self.early: list[Parcel] = []


class Inbound:
    """Takes parcels, and opens those that prove to be of members, each once and in order.

    Frames in the object store are waited for in no thread, and later messages of the same member
    wait with them. All is done in the dispatcher's thread.
    """

    def __init__(self, names: Sequence[str], handle: Handle, dispatcher: Dispatcher) -> None:
        self._handle, self._dispatcher = handle, dispatcher
        self._sources = [_Source(name) for name in names]
        self._ranks = {name: rank for rank, name in enumerate(names)}

    def admit(self, name: str, holds: Callable[[object], bool]) -> None:
        """Take messages of member *name*, with proofs for which *holds* is true."""
        source = self._sources[self._ranks[name]]
        if source.holds is None:  # a stranger may repeat what the member sent: its numbers go on
            source.holds = holds
            early, source.early = source.early, []
            for parcel in early:
                self.arrived(parcel)

    def end(self, name: str, act: Callable[[], None]) -> None:
        """Call *act* after the messages of member *name* that are here, and take no more."""
        self._sources[self._ranks[name]].order.end(act)

    def arrived(self, parcel: Parcel) -> None:
        """Take a parcel, or whatever somebody has sent as one."""
        if not self._is_parcel(parcel):
            logger.warning("dropped what somebody sent that is no parcel of a member")
            return
        rank, number, proof, data, large = parcel
        source = self._sources[rank]
        if source.holds is None:  # its arrival is on another way, and may be a moment later
            if len(source.early) < EARLY:
                source.early.append(parcel)
        elif not source.holds(proof):
            logger.warning("dropped a parcel that %s has not sent, as it says", source.name)
        elif large:
            self._dispatcher.when_done(large[0], partial(self._fetched, source, number, data))
        else:
            source.order.arrived(number, partial(self._open, source.name, data, []))

    def _is_parcel(self, found: object) -> bool:
        if not isinstance(found, tuple) or tuple(map(type, found)) != _TYPES:
            return False
        return 0 <= found[0] < len(self._sources) and all(
            type(each) is ObjectRef for each in found[4]
        )

    def _fetched(
        self, source: _Source, number: int, data: bytes, found: Any, error: BaseException | None
    ) -> None:
        if error is None:
            act = partial(self._open, source.name, data, found)
        else:
            why = f"its large frames were lost in Ray's object store ({error})"
            act = partial(self._handle, source.name, UNREAD, [why.encode()])
        source.order.arrived(number, act)

    def _open(self, name: str, data: bytes, large: Sequence[Buffer]) -> None:
        try:
            kind, frames = unpack(data, large)
        except (ValueError, MemoryError) as error:
            logger.error("a message of %s cannot be read: %s", name, error)
            kind, frames = UNREAD, [f"it cannot be read: {error}".encode()]
        self._handle(name, kind, frames)
