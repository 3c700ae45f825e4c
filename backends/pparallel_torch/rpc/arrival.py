"""How members that are to be connected by torch RPC find one another."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from pparallel.errors import CallTimeoutError, ConfigError
from pparallel.runtime import environment
from pparallel.runtime.exchange import Exchange
from pparallel.runtime.links import Hello, Membership, ProcessId

if TYPE_CHECKING:
    from pparallel.runtime.member import Member


class Arrival:
    """The members that have come, each of which has said who it is.

    Attributes:
        hellos: what the others have said, by their names.
    """

    def __init__(self, member: Member, membership: Membership, closed: Callable[[], bool]) -> None:
        self.hellos: dict[str, Hello] = {}
        self._member, self._membership, self._closed = member, membership, closed

    def meet(self, timeout: float) -> Exchange:
        """Say who this member is, wait until all others have, and return where they said it.

        Raises:
            CallTimeoutError: not all came within *timeout* seconds; it names who is missing.
            PeerLostError: one ended before all had come.
            ClosedError: this member was closed meanwhile.
            ConfigError: nothing says where to meet.
        """
        me = self._member
        address = _address(me)
        if address is None:
            message = (
                f"nothing says where the {me.world_size} members meet: start them with "
                "pparallel.launch, or give Member(..., rendezvous='tcp://HOST:PORT')"
            )
            raise ConfigError(message, path="transport")
        started = time.monotonic()
        exchange = Exchange(address, me.rank, me.world_size, timeout)
        hello = Hello(me.name, secrets.token_bytes(16), ProcessId.here())
        exchange.put(_key(me.rank), hello.pack())
        left = timeout - (time.monotonic() - started)
        others = [_key(rank) for rank in range(me.world_size) if rank != me.rank]
        for _, found in exchange.arrivals(others, left, self._in_vain):
            self._admit(Hello.unpack(found))
        missing = [name for name in me.names if name not in (me.name, *self.hellos)]
        if missing and not self._in_vain():
            raise CallTimeoutError(f"the arrival of {', '.join(missing)}", timeout)
        self._membership.wait_for_all(0)
        return exchange

    def far(self, *, allowed: bool) -> list[str]:
        """Return who is on another machine.

        Raises:
            ConfigError: somebody is, and that is not allowed.
        """
        here = ProcessId.here().place
        far = [name for name, each in self.hellos.items() if each.process.place != here]
        if far and not allowed:
            message = (
                f"member {far[0]!r} is on another machine than {self._member.name!r} (or in "
                "another container), and torch RPC neither encrypts nor asks who is there: use "
                "transport: {backend: zmq}, or, where only trusted machines reach these, "
                "allow_insecure: true"
            )
            raise ConfigError(message, path="transport.allow_insecure")
        return far

    def _admit(self, hello: Hello) -> None:
        self.hellos[hello.name] = hello
        self._membership.admit(hello)

    def _in_vain(self) -> bool:
        return self._closed() or len(self._membership.names()) <= len(self.hellos)


def _address(member: Member) -> str | None:
    """Return where the members meet."""
    found = environment.torchrun()
    if found is not None and found.machines > 1 and (member.rendezvous or "").startswith("file:"):
        return found.address  # the file of the launching process is on its machine alone
    return member.rendezvous


def _key(rank: int) -> str:
    return f"hello/{rank}"
