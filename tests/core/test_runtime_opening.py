"""A member opens and imports only as much as it uses."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

import pparallel
from pparallel import RpcGroup, Runtime
from pparallel.errors import ClosedError, is_consequence
from pparallel.runtime.rpc.endpoint import Endpoint
from pparallel.runtime.stopping import StopSignal, running_under
from pparallel.testing.patience import PATIENCE
from pparallel.testing.reducer import backward, line, manage, parameters
from pparallel_local.thread_pool import ThreadPool
from pparallel_reducers.grad_server.reducer import GradServerReducer
from pparallel_servers.memory import MemoryOrderedServer

LIMIT = 30.0  #: seconds that a step of a test may take
GATE = threading.Event()

ALONE = """
import sys, pparallel
assert issubclass(pparallel.errors.ClosedError, Exception)
with pparallel.build({"members": 1, "pool": {"backend": "thread", "size": 2}}) as rt:
    assert rt.pool.map(abs, [-1, -2]) == [1, 2]
    rt.report(loss=1)
    rt.streams.random.random()
print(*sys.modules)
"""

#: what only members that call one another need, or pools of processes
NOT_NEEDED = (
    "pparallel.runtime.rpc",
    "pparallel.runtime.bars",
    "pparallel.runtime.processes",
    "pparallel_local.transport",
    "pparallel_serializers.dill",
)


def test_a_member_alone_with_a_pool_of_threads_imports_no_rpc() -> None:
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=True)
    modules = set(done.stdout.split())
    assert not set(NOT_NEEDED) & modules
    assert sum(each.startswith("pparallel") for each in modules) <= 75


# -- a member alone ----------------------------------------------------------------------------


def test_members_that_are_alone_call_themselves() -> None:
    """Each thread's groups are those of the runtime that it has entered, whoever asked first."""
    entered = threading.Barrier(2, timeout=LIMIT)

    def be(name: str) -> str:
        with pparallel.build({"members": [name]}) as rt:
            with ThreadPoolExecutor(1) as other:  # it belongs to no runtime
                group = other.submit(rt.group).result(LIMIT)
            entered.wait()
            arrived: RpcGroup = pickle.loads(pickle.dumps(group))
            entered.wait()
            assert arrived.rpc_sync(name, abs, args=(-1,)) == 1
            return arrived.get_cur_name()

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(be, ["a", "b"])) == ["a", "b"]


def test_a_member_alone_is_told_to_stop() -> None:
    signal = StopSignal()
    with running_under(signal), pparallel.build() as rt:
        with rt.events.stream() as events:
            signal.set(LookupError("it broke elsewhere"))
            assert list(events) == []
        assert rt.stopping
        for use in (rt.group, lambda: rt.pool):
            with pytest.raises(ClosedError, match="it broke elsewhere") as caught:
                use()
            assert is_consequence(caught.value)


def test_a_member_that_is_told_to_stop_as_it_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    signal, make = StopSignal(), Endpoint.__init__

    def make_and_stop(self: Endpoint, *args: Any) -> None:
        signal.set(LookupError("it broke elsewhere"))
        make(self, *args)

    monkeypatch.setattr(Endpoint, "__init__", make_and_stop)
    with (
        running_under(signal),
        pytest.raises(ClosedError, match="it broke elsewhere"),
        pparallel.build() as rt,
    ):
        rt.group()


def test_a_group_that_is_asked_for_as_the_member_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    connecting, closing = threading.Event(), threading.Event()
    connect, close = Endpoint.open, ThreadPool.close
    rt = pparallel.build({"pool": {"backend": "thread", "size": 1}})
    groups: list[Future[RpcGroup]] = []

    def connect_late(self: Endpoint) -> None:
        connecting.set()
        assert closing.wait(LIMIT)
        connect(self)

    def close_meanwhile(self: ThreadPool) -> None:
        closing.set()
        close(self)

    with ThreadPoolExecutor(1) as other:

        def depart(self: ThreadPool) -> None:
            groups.append(other.submit(rt.group))
            assert connecting.wait(LIMIT)

        monkeypatch.setattr(Endpoint, "open", connect_late)
        monkeypatch.setattr(ThreadPool, "depart", depart)
        monkeypatch.setattr(ThreadPool, "close", close_meanwhile)
        with rt:
            assert rt.pool.apply(abs, (-1,)) == 1
        with pytest.raises(ClosedError):
            groups[0].result(LIMIT).rpc_sync(0, abs, args=(-1,))


def test_the_group_of_all_members_has_one_name() -> None:
    with pparallel.build({"members": ["a"]}) as rt:
        assert rt.group() is rt.group("world") is rt.group("world", ["a"])
        with pytest.raises(ValueError, match=r"'world' has members \['a'\], not \['b'\]"):
            rt.group("world", ["b"])
        with pytest.raises(ValueError, match="needs a name"):
            rt.group(members=["a"])
        assert rt.group("own", ["a"]) is rt.group("own")


# -- a reducer ---------------------------------------------------------------------------------


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[GradServerReducer]:
    """The reducers that were opened."""
    found: list[GradServerReducer] = []
    open_it = GradServerReducer.open

    def note(self: GradServerReducer) -> None:
        found.append(self)
        open_it(self)

    monkeypatch.setattr(GradServerReducer, "open", note)
    return found


def test_a_reducer_opens_when_it_is_given_or_used(opened: list[GradServerReducer]) -> None:
    pparallel.launch({"members": 2}, lambda rt: rt.group().barrier())
    assert not opened
    pparallel.launch({"members": 2}, lambda rt: rt.reducer.trains)
    assert len(opened) == 2
    pparallel.launch({"members": 2, "reducer": "grad_server"}, lambda rt: rt.group().barrier())
    assert len(opened) == 4
    extra = {"critic": {"interface": "reducer", "backend": "grad_server"}}
    pparallel.launch({"members": 2, "extra": extra}, lambda rt: rt.group().barrier())
    assert len(opened) == 6


@pytest.mark.parametrize("late", [0, 1])
def test_a_member_starts_to_train_before_another_has_a_reducer(
    late: int, monkeypatch: pytest.MonkeyPatch, opened: list[GradServerReducer]
) -> None:
    waits, meet = threading.Event(), RpcGroup.meet

    def tell_and_meet(self: RpcGroup, stage: str, *args: Any, **options: Any) -> None:
        if stage == "open":
            waits.set()
        meet(self, stage, *args, **options)

    monkeypatch.setattr(RpcGroup, "meet", tell_and_meet)

    def train(rt: Runtime) -> tuple[list[list[float]], int]:
        if rt.rank == late:
            assert waits.wait(LIMIT)
            assert len(opened) == 1
        reducer, model = rt.reducer, line(rt.rank)
        manage(reducer, model)
        reducer.start()
        if reducer.trains:
            backward(model, 1)
            assert reducer.push(model)
        reducer.stop()
        return parameters(model), reducer.counters().pushed

    (first, *pushed), (second, *more) = pparallel.launch({"members": 2}, train)
    assert first == second != parameters(line(0))
    assert sorted(pushed + more) == [0, 1]


def wait_at_gate() -> bool:
    return GATE.wait(PATIENCE)


def test_a_forked_childs_copy_is_refused() -> None:
    with pparallel.build() as rt:
        pending = rt.group().rpc_async(0, wait_at_gate)
        child = os.fork()
        if not child:
            ended = 1
            try:
                for use in (rt.group, lambda: rt.pool, lambda: pending.result(PATIENCE)):
                    with pytest.raises(ClosedError, match="of which this one is a fork"):
                        use()
                ended = 7
            finally:
                os._exit(ended)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert rt.group().rpc_sync(0, abs, args=(-1,)) == 1
        GATE.set()
        assert pending.result(PATIENCE)


# -- the order in which components close ---------------------------------------------------------

TWO_POOLS = {"pool": 1, "extra": {"other": {"interface": "pool", "backend": "thread", "size": 1}}}


def test_what_others_call_closes_last(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    with pparallel.build(TWO_POOLS) as rt:
        pools = {"pool": rt.pool, "other": rt["other"]}
        for name, pool in pools.items():

            def close(name: str = name, close: Any = pool.close) -> None:
                closed.append(name)
                close()

            monkeypatch.setattr(pool, "close", close)
        other = pools["other"]  # it has opened last
        monkeypatch.setattr(ThreadPool, "hosting", property(lambda pool: pool is other))
    assert list(dict.fromkeys(closed)) == ["pool", "other"]


def test_an_exception_closes_all_that_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    servers: list[object] = []
    closed: list[object] = []
    monkeypatch.setattr(MemoryOrderedServer, "close", lambda server: closed.append(server))
    server = {"interface": "ordered_server", "backend": "memory"}

    def leave(rt: Runtime) -> None:
        servers.extend((rt.ordered_server, rt["other"]))
        raise LookupError

    with pytest.raises(LookupError), pparallel.build({"extra": {"other": server}}) as rt:
        leave(rt)
    assert closed == servers[::-1]
