"""Connections to a member on TCP by those who prove nothing, and members that come meanwhile."""

from __future__ import annotations

import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TextIO

import pytest
from idle_strangers import few_descriptors, has_room, strangers
from zmq_peer import PLACES, job, meeting, opened, peers, transport

from pparallel.interfaces.transport import Meeting
from pparallel.testing.patience import until
from pparallel_zmq.address import Address

NAMES = ["m0", "m1", "m2"]


@pytest.fixture(name="few_descriptors")
def few() -> Iterator[None]:
    with few_descriptors():
        yield


def waiting(met: Meeting, connections: TextIO) -> int:
    """Return how many connections wait to be accepted: libzmq burns a core while it cannot.

    Args:
        met: says where the member listens.
        connections: ``/proc/net/tcp``, opened while that was possible.
    """
    port = Address.parse(met.address).port
    connections.seek(0)
    for line in connections.readlines()[1:]:
        _, local, _, state, queues, *_ = line.split()
        if int(local.partition(":")[2], 16) == port and int(state, 16) == 10:  # it listens
            return int(queues.partition(":")[2], 16)
    raise AssertionError("nothing listens there")


def test_calls_pass_while_strangers_hold_connections(few_descriptors: None) -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4
    with (
        Path("/proc/net/tcp").open() as connections,
        job(PLACES[1], count=3, liveness_bound=5.0) as members,
        strangers(members.met.address) as held,
    ):
        until(lambda: waiting(members.met, connections) == 0, "connections cannot be accepted")
        # While libzmq accepts them one after another there may be none for a moment.
        until(lambda: held.left() <= most, "strangers keep their connections")
        until(has_room, "strangers have taken all descriptors")
        assert held.left() > 0, "strangers were not let in at all"
        for _ in range(20):
            members.answers()
        assert not members.own.lost
        assert not members.own.resets, "a member is taken for a stranger"


def test_member_joins_while_strangers_hold_connections(few_descriptors: None) -> None:
    with meeting(NAMES, PLACES[1]) as met, ExitStack() as stack:
        (one,) = stack.enter_context(peers(["m1"], NAMES, met))
        own = transport("m0", NAMES, met, liveness_bound=5.0)
        port = Address.parse(met.address).port

        def listens() -> bool:
            with socket.socket() as asking:
                return asking.connect_ex(("127.0.0.1", port)) == 0

        def join() -> None:
            until(listens, "the first member does not listen")
            stack.enter_context(strangers(met.address))
            until(has_room, "strangers have taken all descriptors")
            stack.enter_context(peers(["m2"], NAMES, met))

        joining = threading.Thread(target=join)
        joining.start()
        try:
            with opened(own) as asking:
                joining.join(20)
                assert one.opened() == "open"
                assert asking.call("m2", [b"here"], 10)
        finally:
            joining.join(20)
