"""Members that torchrun starts: they learn where to meet from the store that it keeps for them."""

from __future__ import annotations

from urllib.parse import urlsplit

from pparallel.errors import CallTimeoutError
from pparallel.runtime.exchange import Exchange
from pparallel.runtime.member import Member
from pparallel_zmq.address import Address, facing

SCHEME = "torchrun://"

_KEY = "zmq"


class Store:
    """Where the first member leaves its address for the others.

    Whoever reaches the store can change what it says. Who has no keys gains nothing by it: members
    prove to one another who they are, wherever they meet.
    """

    def __init__(self, member: Member, timeout: float) -> None:
        """Connect; this imports torch.

        Raises:
            CallTimeoutError: nobody listened there in time.
        """
        place = member.rendezvous or ""
        self._first, self._timeout = member.names[0], timeout
        self._exchange = Exchange(place, member.rank, member.world_size, timeout)
        parts = urlsplit(place)
        self._host, self._port = parts.hostname or "", parts.port or 0

    def own(self, host: str | None) -> Address:
        """Return where the first member may bind."""
        return Address(host=host or facing(self._host, self._port))

    def put(self, address: Address) -> None:
        """Leave the first member's address."""
        self._exchange.put(_KEY, str(address).encode())

    def get(self) -> Address:
        """Wait for the first member's address and return it.

        Raises:
            CallTimeoutError: it was not there in time.
        """
        for _, found in self._exchange.arrivals([_KEY], self._timeout, lambda: False):
            return Address.parse(found.decode(errors="replace"))
        raise CallTimeoutError(f"the arrival of {self._first}", self._timeout)
