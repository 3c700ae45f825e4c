"""How a process becomes a member of its world: who the others are, and what it is let in by."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import cast

from pparallel.builder import RuntimeConfig, load
from pparallel.compat.machin.distributed import meeting
from pparallel.compat.machin.distributed.cards import Card, Told, in_words, misfit
from pparallel.compat.machin.distributed.meeting import GRACE
from pparallel.compat.machin.distributed.places import Place
from pparallel.compat.machin.distributed.settings import Settings
from pparallel.errors import CallTimeoutError, ConfigError, PeerLostError
from pparallel.interfaces.transport import Transport, TransportConfig
from pparallel.registry import default_registry
from pparallel.runtime import environment
from pparallel.runtime.exchange import Exchange
from pparallel.runtime.member import Member
from pparallel.runtime.processes import close_private, private


def joined(settings: Settings, stack: ExitStack) -> tuple[RuntimeConfig, Member]:
    """Return the config of a world's runtime and who this process is in it, once all have come.

    *stack* keeps what the members meet at, until this one leaves.

    Raises:
        ConfigError: what the members say does not fit together, or a port is in use.
        CallTimeoutError: some did not come in time; it names them.
        PeerLostError: one ended meanwhile.
    """
    deadline = time.monotonic() + settings.dist_timeout
    card = Card(settings.name, settings.rank, settings.size, settings.transport)
    if settings.size == 1:
        told = Told((settings.name,), "", {})
    elif not settings.is_near:
        told = _over_the_network(settings, card, stack)
    elif settings.rank == 0:
        told = _as_first(settings, card, stack)
    else:
        told = meeting.join(card, settings.meeting_place, settings.dist_timeout)
    member = Member(
        settings.name,
        settings.rank,
        settings.local_rank,
        settings.size,
        told.names,
        told.address,
        told.keys,
    )
    return _config(settings, told.names, max(1.0, deadline - time.monotonic())), member


def _as_first(settings: Settings, card: Card, stack: ExitStack) -> Told:
    """Receive the others, and tell them where to meet and by which keys."""
    _hold_ports(settings, stack)
    with meeting.receiving(card, settings.meeting_place, settings.dist_timeout) as reception:
        names = reception.names()
        config = cast("TransportConfig", _config(settings, names).transport)
        registry = default_registry()
        cls = cast("type[Transport]", registry.load(registry.find("transport", config.backend)))
        found = stack.enter_context(cls.meeting(config, names))
        reception.tell(names, found.address, found.keys)
    return Told(names, found.address, found.keys.get(settings.name, {}))


def _over_the_network(settings: Settings, card: Card, stack: ExitStack) -> Told:
    """Learn who the others are from a store of torch's; keys, if any, each has in a file."""
    import torch.distributed

    exchange = Exchange(
        _address(settings.dist), settings.rank, settings.size, settings.dist_timeout
    )
    stack.enter_context(nullcontext(exchange))  # others may ask what is kept in this process
    try:
        names = _exchanged(settings, card, exchange)
    except torch.distributed.DistError as error:
        raise PeerLostError("rank 0", "ended before all members had come") from error
    return Told(names, _address(settings.rpc), {})


def _exchanged(settings: Settings, card: Card, exchange: Exchange) -> tuple[str, ...]:
    """Return the names of all members by rank, once all have left them for one another."""
    if exchange.get(str(settings.rank)) is not None:
        raise ConfigError(f"another member says that it is rank {settings.rank}", path="rank")
    exchange.put(str(settings.rank), card.written())
    others = [str(rank) for rank in range(settings.size) if rank != settings.rank]
    found, problem = {settings.rank: card}, ""
    for key, told in exchange.arrivals(others, settings.dist_timeout, lambda: False):
        other = Card.read(told)
        if other is None:
            problem = f"what stands at {settings.dist} is not of a world of pparallel's"
            break
        problem = misfit(other, [found.get(0, card), *found.values()])
        found[int(key)] = other
        if problem:
            break
    missing = [rank for rank in range(settings.size) if rank not in found]
    exchange.put(_knows(settings.rank), b"")
    if settings.rank == 0 and (problem or missing):  # the others are to see the same, here
        here = [_knows(rank) for rank in found if rank]
        list(exchange.arrivals(here, GRACE, lambda: False))
    if problem:
        raise ConfigError(problem)
    if missing:
        raise CallTimeoutError(f"the arrival of {in_words(missing)}", settings.dist_timeout)
    return tuple(found[rank].name for rank in range(settings.size))


def _knows(rank: int) -> str:
    return f"{rank} knows"


def _address(place: Place) -> str:
    found = environment.torchrun() if place.taken else None
    return (found.address if found is not None else None) or str(place)


def _config(
    settings: Settings, names: Sequence[str], timeout: float | None = None
) -> RuntimeConfig:
    return load(
        {
            "members": list(names),
            "launcher": {"backend": "process"},
            "transport": settings.section(settings.dist_timeout if timeout is None else timeout),
            "reducer": {"backend": "local"},  # the default one has threads
        }
    )


def _hold_ports(settings: Settings, stack: ExitStack) -> None:
    """Keep this world's ports from other worlds, as long as it lives.

    Raises:
        ConfigError: one is in use.
    """
    places = {place.port: place for place in (settings.dist, settings.rpc) if not place.taken}
    for place in places.values():
        if settings.transport == "zmq" and place.port == settings.rpc.port:
            with _held(place):  # the transport listens there itself, when all have come
                continue
        stack.enter_context(_held(place))


@contextmanager
def _held(place: Place) -> Iterator[None]:
    family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
    sock = private(lambda: socket.socket(family))
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((place.host, place.port))
            sock.listen(0)
        except OSError as error:
            used = "is in use, perhaps by another world" if error.errno == errno.EADDRINUSE else ""
            message = (
                f"port {place.port} of {place.host} {used or error.strerror}: write another, the "
                "same in all members of this world"
            )
            raise ConfigError(message, path=place.option) from None
        yield
    finally:
        close_private(sock)
