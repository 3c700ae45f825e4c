"""A server that is killed, stopped and cut off, and what its clients see of it."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any

import pytest
from redis_proxy import proxy
from redis_servers import PASSWORD, RedisServer, held_port, running

import pparallel
from pparallel.errors import ClosedError, PeerLostError
from pparallel.interfaces.ordered_server import Found, OrderedServer
from pparallel.testing.patience import PATIENCE, until
from pparallel.testing.threads import in_threads

SIZES = (10, 5000, 40_000)


def value_of(number: int) -> dict[str, Any]:
    """Return what is pushed as *number*, which can be told from any other."""
    size = random.Random(number).choice(SIZES)
    return {"number": number, "data": random.Random(-number).randbytes(size)}


class Load:
    """Threads that push without end: to keys of their own, and to one that all count up.

    Attributes:
        acknowledged: the last number that was, of each thread's own key.
        added: how often a push to the common key was acknowledged.
    """

    def __init__(self, server: OrderedServer, threads: int) -> None:
        self._server = server
        self._done = threading.Event()
        self._errors: list[BaseException] = []
        self.acknowledged = [0] * threads
        self.added = [0] * threads
        self._threads = [
            threading.Thread(target=self._run, args=(each,)) for each in range(threads)
        ]

    def __enter__(self) -> Load:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        for each in self._threads:
            each.join()
        assert not self._errors, self._errors

    def make_progress(self) -> None:
        """Wait until something more of each thread is acknowledged."""
        before = self.acknowledged.copy()
        until(
            lambda: (
                bool(self._errors)
                or all(new > old for new, old in zip(self.acknowledged, before, strict=True))
            ),
            "nothing is acknowledged any more",
        )

    def _run(self, number: int) -> None:
        try:
            while not self._done.is_set():
                self._push(number)
                self._add(number)
        except BaseException as error:  # noqa: BLE001 - raised at the end
            self._errors.append(error)

    def _push(self, number: int) -> None:
        """Go on from what was acknowledged last: nobody else pushes there, so it is stored."""
        last = self.acknowledged[number]
        assert self._server.push(("own", number), value_of(last + 1), last + 1, last or None)
        self.acknowledged[number] = last + 1

    def _add(self, number: int) -> None:
        value, version = self._server.pull("sum") or (0, None)
        if self._server.push("sum", value + 1, value + 1, version):
            self.added[number] += 1


def check(server: OrderedServer, load: Load) -> None:
    """Refuse a server that has lost what it acknowledged, or done something twice."""
    assert server.pull("sum") == (sum(load.added), sum(load.added))
    for number, acknowledged in enumerate(load.acknowledged):
        assert server.pull(("own", number)) == (value_of(acknowledged), acknowledged)


def test_a_server_that_is_killed_loses_no_acknowledged_push(durable_server: RedisServer) -> None:
    with pparallel.build(durable_server.config(timeout=PATIENCE)) as server:
        with Load(server, 4) as load:
            for _ in range(4):
                load.make_progress()
                durable_server.kill()
                durable_server.start()
            load.make_progress()
        check(server, load)
        durable_server.kill()
        durable_server.start()
        check(server, load)


def test_connections_that_are_cut_do_nothing_twice(
    redis_server: RedisServer, namespace: str
) -> None:
    with proxy(redis_server.socket, seed=1) as network:
        config = redis_server.config(namespace, url=network.url, timeout=PATIENCE)
        with pparallel.build(config) as server, Load(server, 4) as load:
            until(lambda: network.cuts > 30, "too little is cut")
        with pparallel.build(redis_server.config(namespace)) as server:
            check(server, load)


@pytest.mark.parametrize("size", [10, 100_000])
def test_what_arrives_late_does_nothing(
    redis_server: RedisServer, namespace: str, size: int
) -> None:
    """A request was lost on its way, sent again, and then arrives all the same."""
    with (
        proxy(redis_server.socket) as network,
        pparallel.build(redis_server.config(namespace, url=network.url)) as server,
    ):
        assert server.push("k", b"old", 1, None)
        network.marker = b"first"
        assert server.push("k", b"first" + bytes(size), 1, 1)
        assert network.cuts == 1
        assert server.push("k", b"second" + bytes(size), 1, 1)
        network.deliver()
        assert server.pull("k") == (b"second" + bytes(size), 1)
        network.marker = b"EVALSHA"
        assert server.delete("k"), "sent again, it is answered as it was then"
        assert network.cuts == 2
        assert server.push("k", b"third", 1, None)
        network.deliver()
        assert server.pull("k") == (b"third", 1)


def test_a_server_that_forgot_says_that_nobody_knows(
    redis_server: RedisServer, namespace: str
) -> None:
    """As one does that kept nothing on the disk, and was started again."""
    with (
        proxy(redis_server.socket) as network,
        redis_server.peek() as peek,
        pparallel.build(redis_server.config(namespace, url=network.url)) as server,
    ):
        assert server.push("k", b"old", 1, None)
        network.marker = b"new"
        for lane in peek.keys(f"{{{namespace}}}:l:*"):
            peek.delete(lane)
        with pytest.raises(PeerLostError, match="does not know any more"):
            server.push("k", b"new", 2, 1)
        assert server.pull("k") == (b"old", 1)


@pytest.mark.parametrize("use", ["push", "pull", "wait", "keys"])
def test_a_server_that_is_stopped(durable_server: RedisServer, use: str) -> None:
    uses: dict[str, Callable[[OrderedServer], object]] = {
        "push": lambda server: server.push("k", 2, 2, 1),
        "pull": lambda server: server.pull("k"),
        "wait": lambda server: server.wait("k", 1),
        "keys": lambda server: server.keys(),
    }
    with pparallel.build(durable_server.config(timeout=1.0)) as server:
        assert server.push("k", 1, 1, None)
        assert server.wait("k", 1, 0.01) is None, "the listener is there"
        durable_server.signal(signal.SIGSTOP)
        began = monotonic()
        with pytest.raises(PeerLostError, match=r"has not answered for 1 s") as caught:
            uses[use](server)
        assert monotonic() - began < PATIENCE
        assert str(durable_server.socket) in str(caught.value)
        assert "member" not in str(caught.value)
        assert (use == "push") == ("is not known" in str(caught.value))
        durable_server.signal(signal.SIGCONT)
        until(lambda: server.pull("k") in ((1, 1), (2, 2)), "it does not come back")


@pytest.mark.parametrize("use", ["push", "pull", "wait"])
def test_a_server_that_stays_away(durable_server: RedisServer, use: str) -> None:
    uses: dict[str, Callable[[OrderedServer], object]] = {
        "push": lambda server: server.push("k", 2, 2, 1),
        "pull": lambda server: server.pull("k"),
        "wait": lambda server: server.wait("k", 1),
    }
    with pparallel.build(durable_server.config(timeout=1.0)) as server:
        assert server.push("k", 1, 1, None)
        durable_server.kill()
        with pytest.raises(PeerLostError, match=r"not to be reached for 1 s .*See that it runs"):
            uses[use](server)


def test_opening_where_nobody_is() -> None:
    with (
        held_port() as port,
        pparallel.build(
            {
                "ordered_server": {
                    "backend": "redis",
                    "url": f"redis://127.0.0.1:{port}",
                    "timeout": 0.2,
                }
            }
        ) as rt,
        pytest.raises(PeerLostError, match=r"127.0.0.1:\d+ was not to be .* Connection refused"),
    ):
        rt.ordered_server.keys()


def test_waiters_outlast_a_server_that_is_killed(durable_server: RedisServer) -> None:
    with pparallel.build(durable_server.config(timeout=PATIENCE)) as server:
        assert server.push("k", 1, 1, None)
        found: list[Found | None] = []
        waiters = [
            threading.Thread(target=lambda: found.append(server.wait("k", 1, PATIENCE)))
            for _ in range(3)
        ]
        for each in waiters:
            each.start()
        assert server.wait("k", 1, 0.02) is None
        began = monotonic()
        durable_server.kill()
        durable_server.start()
        with pparallel.build(durable_server.config()) as other:
            assert other.push("k", 2, 2, 1)
        for each in waiters:
            each.join()
    assert found == [(2, 2)] * 3
    assert monotonic() - began < PATIENCE, "they found that when their time was up"


def wait_and_push(redis_server: RedisServer, namespace: str, seed: int, pushes: int) -> None:
    """Have one wait, over connections that are cut, for what another pushes after each wait."""
    with proxy(redis_server.socket, seed) as network:
        config = redis_server.config(namespace, url=network.url, timeout=PATIENCE)
        with (
            pparallel.build(config) as waiting,
            pparallel.build(redis_server.config(namespace)) as pushing,
        ):

            def wait() -> None:
                for number in range(pushes):
                    began = monotonic()
                    assert waiting.wait("k", number or None, PATIENCE) == (number + 1, number + 1)
                    assert monotonic() - began < PATIENCE, "it found that when its time was up"
                    assert pushing.push("seen", number, number, number - 1)

            def push() -> None:
                for number in range(pushes):
                    assert pushing.push("k", number + 1, number + 1, number)
                    assert pushing.wait("seen", number - 1, PATIENCE) == (number, number)

            in_threads(2, lambda number: (wait, push)[number]())


def test_waiters_outlast_connections_that_are_cut(
    redis_server: RedisServer, namespace: str
) -> None:
    """What is pushed just while nobody listens is found all the same."""
    wait_and_push(redis_server, namespace, seed=2, pushes=30)


def test_a_listening_connection_that_is_dead_is_found_out_while_others_come(
    redis_server: RedisServer, namespace: str
) -> None:
    """Each who comes gives the listener something to do; that says nothing of the server."""
    found: list[Found | None] = []
    with (
        proxy(redis_server.socket) as network,
        pparallel.build(redis_server.config(namespace, url=network.url, timeout=1.0)) as server,
        pparallel.build(redis_server.config(namespace)) as other,
    ):
        assert server.wait("busy", timeout=0.01) is None
        network.unanswered = b"SUBSCRIBE"
        waiter = threading.Thread(target=lambda: found.append(server.wait("k")))
        waiter.start()
        until(lambda: network.still == 1, "nothing is subscribed")
        network.unanswered = b""
        assert other.push("k", 1, 1, None)
        until(lambda: server.wait("busy", timeout=0.001) is None and bool(found), "nothing heard")
        waiter.join()
    assert found == [(1, 1)]


def test_waiters_wake_when_the_server_closes(redis_server: RedisServer, namespace: str) -> None:
    server = pparallel.build(redis_server.config(namespace))
    ended: list[BaseException] = []

    def wait(key: str) -> None:
        with pytest.raises(ClosedError) as caught:
            server.wait(key)
        ended.append(caught.value)

    waiters = [threading.Thread(target=partial(wait, key)) for key in ("a", "b", "a")]
    with server:
        for each in waiters:
            each.start()
        assert server.wait("a", timeout=0.02) is None
    for each in waiters:
        each.join()
    assert len(ended) == 3


def test_many_keys_are_waited_for_over_one_connection(
    redis_server: RedisServer, namespace: str
) -> None:
    """More than stay subscribed; each is heard of."""
    with pparallel.build(redis_server.config(namespace)) as server:
        for number in range(100):
            assert server.wait(number, timeout=0.001) is None
        with redis_server.peek() as peek:
            clients = peek.client_list(_type="pubsub")
            assert sum(int(each["sub"]) for each in clients if each["sub"]) <= 70
        pusher = threading.Timer(0.05, server.push, args=(5, "x", 1, None))
        pusher.start()
        assert server.wait(5, timeout=PATIENCE) == ("x", 1)
        pusher.join()


def test_connections_that_the_server_ended_meanwhile(
    redis_server: RedisServer, namespace: str
) -> None:
    """As it does with idle ones, and with all when an operator says so."""
    with pparallel.build(redis_server.config(namespace)) as server, redis_server.peek() as peek:
        for number in range(1, 4):
            assert server.push("k", number, number, number - 1)
            assert server.wait("k", number, 0.01) is None
            peek.client_kill_filter(_type="normal", skipme=True)
            peek.client_kill_filter(_type="pubsub")
        assert server.pull("k") == (3, 3)


def test_a_replica_that_nobody_said_is_one() -> None:
    with running() as master, running("--masterauth", PASSWORD) as replica:
        with replica.peek() as peek:
            peek.replicaof("127.0.0.1", master.port)
        with pytest.raises(PeerLostError, match=r"could not do its work for 1 s .*READONLY"):
            pparallel.build(replica.config(timeout=1.0)).open()


def wait_for_ever(rt: pparallel.Runtime) -> None:
    if rt.rank == 1:
        rt.ordered_server.wait("never", timeout=0.05)
        message = "the first failure"
        raise KeyError(message)
    rt.ordered_server.wait("never")


@pytest.mark.parametrize("launcher", ["thread", "process"])
def test_waiters_wake_when_the_job_ends(
    redis_server: RedisServer, namespace: str, launcher: str
) -> None:
    config = pparallel.RuntimeConfig(
        members=3,
        launcher={"backend": launcher},
        ordered_server=redis_server.config(namespace),
        reducer={"backend": "local"},
    )
    with pytest.raises(KeyError, match="the first failure"):
        pparallel.launch(config, wait_for_ever)
