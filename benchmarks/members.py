"""Our own remote calls, as a user makes them: from one member of a job to the other."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import pparallel
from benchmarks.away import started
from benchmarks.calls import PAIRED, REFERENCE, REGISTERED, Caller, in_flight
from benchmarks.tasks import Station, meet
from pparallel.interfaces.transport import Transport, TransportConfig
from pparallel.registry import default_registry
from pparallel.runtime.member import Member

NAMES = ("calling", "called")
_OPTIONS: dict[str, dict[str, str]] = {"ipc": {}, "zmq": {"address": "ipc"}}


def transports() -> list[str]:
    """Return the transports that are measured: those whose libraries are installed."""
    offers = [each for each in default_registry().offers() if each.interface == "transport"]
    installed = {each.name for each in offers if each.status == "available"}
    return [name for name in _OPTIONS if name in installed]


@contextmanager
def meeting(config: TransportConfig, names: Sequence[str]) -> Iterator[list[Member]]:
    """Prepare a place where members of these names meet, and give who each of them is."""
    registry = default_registry()
    cls = cast("type[Transport]", registry.load(registry.find("transport", config.backend)))
    with cls.meeting(config, names) as place:
        yield [
            Member(
                name, rank, rank, len(names), tuple(names), place.address, place.keys.get(name, {})
            )
            for rank, name in enumerate(names)
        ]


@contextmanager
def our_members(transport: str) -> Iterator[Caller]:
    """Be one member of a job, and give what calls the other."""
    config = transport_config(transport)
    with (
        meeting(config, NAMES) as (calling, called),
        started("benchmarks.members:be_called", pickle.dumps((config, called))),
        pparallel.build(_runtime(config), member=calling) as rt,
    ):
        group = rt.group()
        group.barrier()  # the other has named its object
        made, paired = group.remote(called.name, Station), group.get_paired("station")
        yield Caller(
            lambda function, argument: group.rpc_sync(called.name, function, args=(argument,)),
            lambda function, arguments: in_flight(
                lambda each: group.rpc_async(called.name, function, args=(each,)), arguments
            ),
            methods={
                REFERENCE: lambda number: made.rpc_sync().no_op(number),
                PAIRED: lambda number: paired.rpc_sync().no_op(number),
                REGISTERED: lambda number: group.registered_sync("no_op", args=(number,)),
            },
        )
        group.barrier()


def be_called(payload: bytes, _: Sequence[int]) -> None:
    """Be the other member until the first leaves: what the other process runs."""
    config, member = pickle.loads(payload)
    with pparallel.build(_runtime(config), member=member) as rt:
        group, station = rt.group(), Station()
        group.pair("station", station)
        group.register("no_op", station.no_op)
        group.barrier()
        group.barrier()


def our_job(transport: str) -> int:
    """Launch a job whose members wait for one another; return how many of them ended."""
    launcher = {"backend": "process"}
    config = {"members": len(NAMES), "launcher": launcher, "transport": transport_config(transport)}
    return len(pparallel.launch(config, meet))


def transport_config(transport: str) -> TransportConfig:
    """Return the config of one of the transports that are measured."""
    return pparallel.load(TransportConfig, {"backend": transport, **_OPTIONS.get(transport, {})})


def _runtime(transport: TransportConfig) -> pparallel.RuntimeConfig:
    # That is where the members live, whoever starts them.
    launcher = {"backend": "process"}
    raw: dict[str, Any] = {"members": list(NAMES), "launcher": launcher, "transport": transport}
    return pparallel.RuntimeConfig(**raw)
