"""Connections to a member on TCP by those who prove nothing, and members that come meanwhile."""

from __future__ import annotations

import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import psutil
import pytest
from zmq_meetings import meeting
from zmq_peer import opened, peers, transport

from pparallel.interfaces.transport import Meeting
from pparallel.testing.patience import until
from pparallel_zmq.address import Address

NAMES = ["m0", "m1", "m2"]
PLACE = "tcp://127.0.0.1:0"
STRANGERS = 300


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    """Let this process open some 200 files more: fewer than there are strangers."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (psutil.Process().num_fds() + 200, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@contextmanager
def strangers(met: Meeting) -> Iterator[list[int]]:
    """Connect from other processes that say nothing, as this one may not open so many sockets."""
    found = Address.parse(met.address)
    code = (
        "import resource, socket, sys; hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1];"
        " resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard));"
        " held = [socket.create_connection((sys.argv[1], int(sys.argv[2])))"
        f" for _ in range({STRANGERS})]; print('there', flush=True); sys.stdin.read()"
    )
    with psutil.Popen(
        ["python3", "-c", code, found.host, str(found.port)], stdin=-1, stdout=-1
    ) as process:
        try:
            assert process.stdout.readline() == b"there\n"
            yield [process.pid]
        finally:
            process.stdin.close()
            process.wait(20)


def accepted(met: Meeting) -> int:
    port = Address.parse(met.address).port
    return sum(each.laddr.port == port for each in psutil.Process().net_connections("tcp"))


def test_idle_strangers_leave_descriptors_for_the_member(few_descriptors: None) -> None:
    with meeting(NAMES, PLACE) as met, peers(["m1", "m2"], NAMES, met) as others:
        own = transport("m0", NAMES, met, liveness_bound=5.0)
        with opened(own) as heard:
            assert [each.opened() for each in others] == ["open", "open"]
            with strangers(met), ExitStack() as stack:
                until(lambda: accepted(met) > 10, "nobody was let in")
                for _ in range(50):
                    stack.enter_context(open("/dev/null", "rb"))
                began = time.process_time(), time.monotonic()
                for _ in range(20):
                    assert own.call("m1", [b"here"], 2)
                    time.sleep(0.02)
                used = time.process_time() - began[0]
                assert used < 0.4 * (time.monotonic() - began[1]), "a core is burnt"
                assert others[1].call("m0", "still") == ["m2", "still"]
            assert not heard.all


def test_member_joins_while_strangers_hold_connections(few_descriptors: None) -> None:
    with meeting(NAMES, PLACE) as met, ExitStack() as stack:
        (one,) = stack.enter_context(peers(["m1"], NAMES, met))
        own = transport("m0", NAMES, met, rendezvous_timeout=15.0)
        port = Address.parse(met.address).port

        def listens() -> bool:
            with socket.socket() as asking:
                return asking.connect_ex(("127.0.0.1", port)) == 0

        def join() -> None:
            until(listens, "the first member does not listen")
            stack.enter_context(strangers(met))
            stack.enter_context(peers(["m2"], NAMES, met))

        joining = threading.Thread(target=join)
        joining.start()
        try:
            with opened(own):
                joining.join(20)
                assert one.opened() == "open"
                assert own.call("m2", [b"here"], 5)
        finally:
            joining.join(20)
