"""Functions that a member on ZeroMQ runs where it receives: they hold nobody up."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from zmq_peer import transport

import pparallel
from pparallel.interfaces.transport import Frames
from pparallel.runtime import dedicated
from pparallel.runtime.request_transport import Handler
from pparallel.runtime.rpc import RpcGroup, context
from pparallel.testing.patience import PATIENCE, until
from pparallel.testing.threads import in_threads
from pparallel_zmq import ZmqTransportConfig
from pparallel_zmq.transport import ZmqTransport

if TYPE_CHECKING:
    from pparallel.builder import Runtime

NAMES = ("a", "b")
SERVING = "pparallel-zmq-serve"


@contextmanager
def pair(handler: Handler) -> Iterator[tuple[ZmqTransport, ZmqTransport]]:
    """Open two members, whose requests *handler* handles."""
    with ExitStack() as stack:
        met = stack.enter_context(ZmqTransport.meeting(ZmqTransportConfig(address="ipc"), NAMES))
        a, b = (transport(name, NAMES, met) for name in NAMES)
        for each in (a, b):
            stack.callback(each.close)
        in_threads(2, lambda n: (a, b)[n].open(handler))
        yield a, b


def copied(frames: Frames) -> list[bytes]:
    return [bytes(memoryview(each)) for each in frames]


def asked(of: ZmqTransport, to: ZmqTransport, *frames: bytes) -> Future[Frames]:
    return of.request(to.name, frames, PATIENCE)


# -- requests ---------------------------------------------------------------------------------


def test_what_blocks_holds_nobody_up() -> None:
    go = threading.Event()

    def handle(sender: str, frames: Frames) -> Frames:
        if copied(frames) == [b"block"]:
            assert go.wait(PATIENCE)
        return frames

    with pair(handle) as (a, b):
        blocked = [asked(a, b, b"block") for _ in range(3)]
        large = bytes(10**7)
        for n in range(5):
            assert copied(asked(a, b, b"%d" % n).result()) == [b"%d" % n]
            assert copied(asked(a, b, large).result()) == [large]
        assert not any(each.done() for each in blocked)
        go.set()
        assert [copied(each.result(PATIENCE)) for each in blocked] == [[b"block"]] * 3


def test_the_role_is_passed_on_before_a_function_waits_for_others() -> None:
    kinds: list[int] = []

    def handle(sender: str, frames: Frames) -> Frames:
        if copied(frames) == [b"ask"]:
            kinds.append(dedicated.kind())
            dedicated.about_to_block()
            kinds.append(dedicated.kind())
            return asked(b_of[0], a_of[0], b"?").result()
        return frames

    with pair(handle) as (a, b):
        a_of, b_of = [a], [b]
        assert copied(asked(a, b, b"ask").result()) == [b"?"]
    assert kinds == [dedicated.LEADING, dedicated.ALONE]


def test_requests_of_one_thread_start_in_order() -> None:
    started: list[int] = []

    def handle(sender: str, frames: Frames) -> Frames:
        number = int(bytes(memoryview(frames[0])))
        started.append(number)
        if number % 20 == 7:
            time.sleep(0.02)  # another thread takes over here, or a little later
        return []

    with pair(handle) as (a, b):
        sizes = [100_000 if n % 13 == 5 else 0 for n in range(100)]
        sent = [asked(a, b, b"%d" % n, bytes(size)) for n, size in enumerate(sizes)]
        for each in sent:
            each.result(PATIENCE)
    assert started == list(range(100))


def test_what_was_received_is_let_go_of() -> None:
    received: list[weakref.ref[Any]] = []

    def handle(sender: str, frames: Frames) -> Frames:
        view = memoryview(frames[0])
        received.append(weakref.ref(view.obj))
        return [b"%d" % view.nbytes]

    with pair(handle) as (a, b):
        large = bytearray(3 * 10**6)
        assert copied(a.request(b.name, [large], PATIENCE).result()) == [b"3000000"]
        until(lambda: received[0]() is None, "nothing holds what has been handled")


def test_one_that_sends_more_than_there_is_room_for_may_wait() -> None:
    """It blocks the thread that receives, which has another one do so before."""

    def handle(sender: str, frames: Frames) -> Frames:
        if copied(frames) != [b"flood"]:
            return []
        sent = [asked(b_of[0], a_of[0], bytes(50_000)) for _ in range(3000)]
        return [b"%d" % sum(each.result(PATIENCE) == [] for each in sent)]

    with pair(handle) as (a, b):
        a_of, b_of = [a], [b]
        assert copied(asked(a, b, b"flood").result()) == [b"3000"]


# -- the end ----------------------------------------------------------------------------------


@pytest.mark.parametrize("blocks", [True, False], ids=["blocks", "is quick"])
def test_the_end_while_something_runs(blocks: bool) -> None:
    started, go = threading.Event(), threading.Event()

    def handle(sender: str, frames: Frames) -> Frames:
        started.set()
        assert not blocks or go.wait(PATIENCE)
        return frames

    try:
        with pair(handle) as (a, b):
            for _ in range(20):
                asked(a, b, b"x")
            assert started.wait(PATIENCE)
            began = time.monotonic()
            b.close()
            assert time.monotonic() - began < PATIENCE / 2, "it waits for what runs"
    finally:
        go.set()
    until(lambda: not serving(), "what ran has ended")


def serving() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == SERVING]


# -- functions --------------------------------------------------------------------------------

GATES: dict[str, threading.Event] = {}
LOCK = threading.Lock()


def where() -> str:
    return threading.current_thread().name


def gate(name: str) -> threading.Event:
    return GATES.setdefault(name, threading.Event())


def opens(name: str) -> None:
    gate(name).set()


def blocks(name: str) -> str:
    assert gate(name).wait(PATIENCE)
    return where()


def polls(name: str) -> str:
    end = time.monotonic() + PATIENCE
    while not gate(name).is_set():
        assert time.monotonic() < end
        time.sleep(0.0005)
    return where()


def locks(name: str) -> str:
    with LOCK:
        assert gate(name).wait(PATIENCE)
    return where()


def calls_back(to: int, depth: int) -> str:
    if depth:
        group().rpc_sync(to, calls_back, args=(1 - to, depth - 1))
    return where()


def group() -> RpcGroup:
    endpoint = context.endpoint()
    return RpcGroup(endpoint, "world", endpoint.member.names)


@pytest.fixture
def launch() -> Callable[[Callable[[Runtime], None]], None]:
    """Run a function in the first of two members."""
    GATES.clear()

    def run(rt: Runtime, function: Callable[[Runtime], None]) -> None:
        rt.group().barrier()
        if rt.rank == 0:
            function(rt)
        rt.group().barrier()

    def start(function: Callable[[Runtime], None]) -> None:
        job = {"members": 2, "transport": {"backend": "zmq", "address": "ipc"}}
        pparallel.launch(job, run, args=(function,))

    return start


Launch = Callable[[Callable[["Runtime"], None]], None]


@pytest.mark.parametrize("waits", [blocks, polls, locks])
def test_it_waits_for_another_call_of_its_caller(launch: Launch, waits: Any) -> None:
    def work(rt: Runtime) -> None:
        group = rt.group()
        waiting = [group.rpc_async(1, waits, args=("gate",)) for _ in range(3)]
        assert group.rpc_sync(1, where)
        assert not any(each.done() for each in waiting)
        group.rpc_sync(1, opens, args=("gate",))
        assert all(each.wait(PATIENCE) for each in waiting)

    launch(work)


def test_members_that_call_one_another_in_turn(launch: Launch) -> None:
    def work(rt: Runtime) -> None:
        group = rt.group()
        found = [group.rpc_async(1, calls_back, args=(0, 20)) for _ in range(5)]
        assert all(each.wait(PATIENCE) for each in found)
        assert group.rpc_sync(1, calls_back, args=(0, 20))

    launch(work)
