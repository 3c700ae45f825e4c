"""Members on ZeroMQ whose connections break, and networks that are cut."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress

import pytest
import zmq
from zmq_peer import BOUND, PLACES, Peer, meeting, opened, peers, transport

from pparallel.errors import PeerLostError
from pparallel.runtime.links.dispatcher import Dispatcher
from pparallel.testing.patience import until
from pparallel_zmq import ZmqTransportConfig
from pparallel_zmq.address import Address
from pparallel_zmq.messages import Limits
from pparallel_zmq.sockets import Socket, Sockets


class Relay:
    """Passes on what comes to a port of its own to another."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.passed = 0  #: bytes, both ways
        self._ends: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def cut(self) -> None:
        """Break all connections; new ones are passed on again."""
        for each in self._ends:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self.cut()
        for thread in self._threads:
            thread.join()
        for each in (self._listening, *self._ends):
            each.close()

    def _start(self, target: Callable[..., None], *args: object) -> None:
        self._threads.append(threading.Thread(target=target, args=args))
        self._threads[-1].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                here = self._listening.accept()[0]
                self._ends.append(here)
                try:
                    there = socket.create_connection(("127.0.0.1", self._to))
                except ConnectionRefusedError:  # not there yet
                    here.shutdown(socket.SHUT_RDWR)
                    continue
                self._ends.append(there)
                self._start(self._pass_on, here, there)
                self._start(self._pass_on, there, here)

    def _pass_on(self, source: socket.socket, to: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(2**16):
                to.sendall(data)
                self.passed += len(data)
            to.shutdown(socket.SHUT_RDWR)


def test_a_connection_that_breaks_and_comes_back() -> None:
    names = ["m0", "m1"]
    with (
        meeting(names, PLACES[1]) as met,
        peers(["m0"], names, met) as (first,),
        closing(Relay(Address.parse(met.address).port)) as relay,
    ):
        own = transport("m1", names, met, address=f"tcp://127.0.0.1:{relay.port}")
        with opened(own) as asking:
            assert first.opened() == "open"
            waiting = [asking.request("m0", [b"never", bytes(100_000)]) for _ in range(4)]
            until(lambda: relay.passed > 4 * 100_000, "not all calls have come")
            relay.cut()
            for each in waiting:
                with pytest.raises(PeerLostError, match="broke the connection"):
                    each.result(5)
            for n in range(5):
                assert asking.call("m0", [b"%d" % n], 5)
            assert set(asking.resets) == {"m0"}
            assert not asking.lost


def test_connections_that_break_while_they_are_closed() -> None:
    """libzmq's thread must not wait for a monitor that is closed: it serves all other members."""
    config = ZmqTransportConfig(allow_insecure=True)
    limits = Limits(config.max_frames, config.max_message, config.piece_size)
    dispatcher = Dispatcher("sockets", lambda: None)
    sockets = Sockets("m0", None, config, limits, dispatcher)

    def reached(count: int) -> list[tuple[Socket, Socket]]:
        bound = sockets.listening(Address("127.0.0.1", 0))
        where = sockets.bind(bound, Address("127.0.0.1", 0))
        ends = [sockets.connecting("m1", where) for _ in range(count)]
        found = [
            (each, sockets.monitor(each, zmq.EVENT_ALL, lambda *_: None)[0])
            for each in (bound, *ends)
        ]
        for each in ends:
            each.connect(str(where))
            each.send(b"here")
        for _ in ends:
            assert bound.poll(10_000), "a message did not arrive"
            bound.recv_multipart()
        return found

    try:
        for _ in range(5):
            for each in reached(16):
                sockets.close(*each)
        reached(16)
    finally:
        sockets.end()  # the last ones, too
        dispatcher.close()


# -- networks -----------------------------------------------------------------------------------


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextmanager
def network(count: int) -> Iterator[list[str]]:
    """Make network namespaces, each with an address of its own, 10.77.0.1 and so on, and a hub."""
    names = [f"pp{os.getpid()}{letter}" for letter in "abcd"[:count]]
    hub = f"pp{os.getpid()}hub"
    with ExitStack() as stack:
        for name in (hub, *names):
            ip("netns", "add", name)
            stack.callback(ip, "netns", "delete", name)
        ip("-n", hub, "link", "add", "hub", "type", "bridge")
        ip("-n", hub, "link", "set", "hub", "up")
        for number, name in enumerate(names):
            end = f"end{number}"
            peer = ("peer", "name", "cable", "netns", name)
            ip("-n", hub, "link", "add", end, "type", "veth", *peer)
            ip("-n", hub, "link", "set", end, "master", "hub", "up")
            ip("-n", name, "addr", "add", f"10.77.0.{number + 1}/24", "dev", "cable")
            for device in ("lo", "cable"):
                ip("-n", name, "link", "set", device, "up")
        yield names


@pytest.fixture
def machines(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """Make as many machines as the test's parameter says, or two."""
    with ExitStack() as stack:
        try:
            found = stack.enter_context(network(getattr(request, "param", 2)))
        except (OSError, subprocess.CalledProcessError) as error:
            told = getattr(error, "stderr", b"") or str(error).encode()
            pytest.skip(f"no network namespaces here: {told.decode(errors='replace').strip()}")
        yield found


@contextmanager
def across(machines: Sequence[str]) -> Iterator[list[Peer]]:
    """Start a member on each machine, which are m0 and so on, and have each call all others."""
    names = [f"m{n}" for n in range(len(machines))]
    with meeting(names, "tcp://10.77.0.1:5599") as met:
        started = [
            Peer(name, names, met, ["ip", "netns", "exec", where])
            for name, where in zip(names, machines, strict=True)
        ]
        try:
            assert [each.opened() for each in started] == ["open"] * len(names)
            for each in started:
                for name in [other for other in names if other != each.name]:
                    assert each.call(name, "there") == [each.name, "there"]
            yield started
        finally:
            for each in started:
                each.end()


def cut(machines: Sequence[str], here: int, there: int) -> None:
    """Have nothing from one machine arrive at another."""
    ip("-n", machines[here], "route", "add", "blackhole", f"10.77.0.{there + 1}/32")


@pytest.mark.parametrize("way", ["both ways", "there"])
def test_a_network_that_is_cut(way: str, machines: list[str]) -> None:
    with across(machines) as (first, other):
        began = time.monotonic()
        cut(machines, 0, 1)
        if way != "there":
            cut(machines, 1, 0)
        assert "PeerLostError" in first.call("m1", "never")
        assert "PeerLostError" in other.call("m0", "never")
        assert time.monotonic() - began < 5 * BOUND
        for each, who in ((first, "m1"), (other, "m0")):
            assert [name for name, _ in each.lost()] == [who]


@pytest.mark.parametrize("machines", [3], indirect=True)
def test_a_cut_between_two_that_both_reach_the_first(machines: list[str]) -> None:
    """Their calls of one another fail, and nobody is lost: the first member judges."""
    with across(machines) as (first, one, two):
        began = time.monotonic()
        cut(machines, 1, 2)
        cut(machines, 2, 1)
        for each, who in ((one, "m2"), (two, "m1")):
            assert f"PeerLostError: member {who!r}" in each.call(who, "never")
        assert time.monotonic() - began < 10 * BOUND
        for each in (one, two):
            assert each.call("m0", "still") == [each.name, "still"]
            assert first.call(each.name, "still") == ["m0", "still"]
            assert each.lost() == []
        assert first.lost() == []
        for here, there in ((1, 2), (2, 1)):
            ip("-n", machines[here], "route", "delete", "blackhole", f"10.77.0.{there + 1}/32")
        until(lambda: one.call("m2", "again") == ["m1", "again"], "the cable does not help")
        assert two.call("m1", "again") == ["m2", "again"]
