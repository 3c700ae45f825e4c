"""How members that are to be connected by torch RPC find one another."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from pparallel.errors import ConfigError
from pparallel.runtime import environment
from pparallel.runtime.exchange import Exchange
from pparallel.runtime.links import Hello, Membership, ProcessId

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from pparallel.runtime.member import Member


def meet(
    member: Member, membership: Membership, timeout: float, check: Callable[[], None]
) -> Store:
    """Admit all others to *membership* by what each leaves of itself; return where that is.

    Raises:
        CallTimeoutError: not all came within *timeout* seconds; it names who is missing.
        PeerLostError: one ended before all had come.
        ClosedError: *check*, which is called now and then, raised it.
        ConfigError: nothing says where to meet.
    """

    def is_in_vain() -> bool:
        check()
        return not all(map(membership.expects, member.names))

    address = _address(member)
    if address is None:
        message = (
            f"nothing says where the {member.world_size} members meet: start them with "
            "pparallel.launch, or give Member(..., rendezvous='tcp://HOST:PORT')"
        )
        raise ConfigError(message, path="transport")
    started = time.monotonic()
    exchange = Exchange(address, member.rank, member.world_size, timeout)
    hello = Hello(member.name, secrets.token_bytes(16), ProcessId.here())
    exchange.put(_key(member.rank), hello.pack())
    left = timeout - (time.monotonic() - started)
    others = [_key(rank) for rank in range(member.world_size) if rank != member.rank]
    for _, found in exchange.arrivals(others, left, is_in_vain):
        membership.admit(Hello.unpack(found))
    membership.wait_for_all(timeout, started)
    return exchange.store


def far_members(member: Member, membership: Membership, *, allowed: bool) -> list[str]:
    """Return who is on another machine.

    Raises:
        ConfigError: somebody is, and that is not allowed.
    """
    here = ProcessId.here().host_id
    far = [each.name for each in membership.hellos() if each.process.host_id != here]
    if far and not allowed:
        message = (
            f"member {far[0]!r} is on another machine than {member.name!r} (or in "
            "another container), and torch RPC neither encrypts nor asks who is there: use "
            "transport: {backend: zmq}, or, where only trusted machines reach these, "
            "allow_insecure: true"
        )
        raise ConfigError(message, path="transport.allow_insecure")
    return far


def _address(member: Member) -> str | None:
    """Return where the members meet."""
    found = environment.torchrun()
    if found is not None and found.machines > 1 and (member.rendezvous or "").startswith("file:"):
        return found.address  # the file of the launching process is on its machine alone
    return member.rendezvous


def _key(rank: int) -> str:
    return f"hello/{rank}"
