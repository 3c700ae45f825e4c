"""Members open and close together, fail together, and find one another."""

from __future__ import annotations

import random
import sys
import threading
import time
from typing import Any

import pytest

import pparallel
from pparallel import Runtime
from pparallel.errors import ClosedError, ConfigError, MissingDependencyError, is_consequence
from pparallel.interfaces.launcher import RankSpec
from pparallel.runtime import member
from pparallel.runtime.events import Event, PeerLost
from pparallel.runtime.member import Member, current
from pparallel.runtime.rpc import context as calling
from pparallel.runtime.rpc.endpoint import Endpoint
from pparallel.runtime.stopping import StopSignal, running_under
from pparallel.testing.patience import until
from pparallel_local import ThreadPoolConfig


def add(a: int, b: int) -> int:
    return a + b


def who(rt: Runtime, *args: object, **kwargs: object) -> tuple[object, ...]:
    return (rt.name, rt.rank, rt.local_rank, rt.world_size, tuple(rt.members), args, kwargs)


def test_launch_runs_every_member_and_returns_by_rank() -> None:
    names = ("a", "b", "c")
    results = pparallel.launch({"members": list(names)}, who, args=(1,), kwargs={"x": 2})
    assert results == [
        (name, rank, rank, 3, names, (1,), {"x": 2}) for rank, name in enumerate(names)
    ]
    assert pparallel.launch({"members": 1, "args": [5]}, who)[0][5] == (5,)
    assert pparallel.launch({"members": 2, "args": {"y": 5}}, who)[1][6] == {"y": 5}


def test_the_calling_thread_knows_its_member() -> None:
    def here(rt: Runtime) -> bool:
        return current() == rt.member

    assert pparallel.launch({"members": 2}, here) == [True, True]
    assert current() is None


def test_many_members_call_one_another() -> None:
    size = 40

    def all_to_all(rt: Runtime) -> int:
        group = rt.group()
        got: list[int] = []
        lock = threading.Lock()

        def give(value: int) -> int:
            with lock:
                got.append(value)
            return value

        group.register(rt.name, give)
        group.barrier()
        calls = [group.registered_async(name, args=(rt.rank,)) for name in rt.members]
        assert [call.wait() for call in calls] == [rt.rank] * rt.world_size
        group.barrier()
        assert sorted(got) == list(range(rt.world_size))
        return len(got)

    config = {"members": size, "transport": {"handler_threads": 1}}
    assert pparallel.launch(config, all_to_all) == [size] * size


def test_a_failure_ends_the_job_with_that_error() -> None:
    woken: list[BaseException] = []
    over = threading.Event()  # nothing else ends a task that a thread has begun

    def fail(rt: Runtime) -> None:
        if rt.rank == 1:
            raise LookupError("it broke")
        try:
            if rt.rank == 2:
                rt.group().barrier()
            rt.pool.map(over.wait, [30.0] * 4)
        except ClosedError as error:
            woken.append(error)
            assert rt.stopping
            raise

    started = time.monotonic()
    with pytest.raises(LookupError, match="it broke") as caught:
        pparallel.launch({"members": 3}, fail)
    over.set()
    assert time.monotonic() - started < 10
    assert any("'member-1'" in note for note in caught.value.__notes__)
    until(lambda: len(woken) == 2, "the others did not wake")


def test_a_member_that_cannot_be_entered_ends_the_job() -> None:
    config = {
        "members": ["a", {"name": "b", "override": {"ordered_server": {"host": "nobody"}}}],
        "ordered_server": {"backend": "hosted", "host": "a"},
    }
    with pytest.raises(ConfigError, match="nobody"):
        pparallel.launch(config, who)


def test_leaving_waits_for_the_others() -> None:
    order: list[str] = []
    first_done = threading.Event()

    def leave(rt: Runtime) -> None:
        if rt.rank == 1:
            first_done.set()
            order.append("first done")
            return
        assert first_done.wait(10)
        assert rt.group().rpc_sync(1, add, args=(1, 2)) == 3  # it is still there
        order.append("second done")

    pparallel.launch({"members": 2}, leave)
    assert order == ["first done", "second done"]


def test_members_started_by_hand() -> None:
    names = ("x", "y")
    results: dict[int, Any] = {}

    def be(rank: int) -> None:
        member = Member(names[rank], rank, rank, 2, names, "local:by-hand")
        with pparallel.build({"members": list(names)}, member=member) as rt:
            results[rank] = rt.group().rpc_sync(1 - rank, add, args=(rank, 10))

    threads = [threading.Thread(target=be, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {0: 10, 1: 11}


def test_a_member_that_never_comes_is_named() -> None:
    member = Member("x", 0, 0, 2, ("x", "y"), "local:alone")
    config = {"members": ["x", "y"], "transport": {"rendezvous_timeout": 0.05}}
    with pytest.raises(TimeoutError, match="arrival of y"), pparallel.build(config, member=member):
        pass


def test_torchrun_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(key, value)
    assert pparallel.launch({"members": "auto"}, who)[0][:4] == ("member-0", 0, 0, 1)
    assert len(pparallel.launch({"members": 2}, who)) == 2  # these variables are for another job
    monkeypatch.setenv("WORLD_SIZE", "2")
    transport = {"transport": {"backend": "local"}, "ordered_server": {"backend": "memory"}}
    with pytest.raises(ConfigError, match="puts members in machines"):
        pparallel.launch({"members": "auto", **transport}, who)
    monkeypatch.setenv("WORLD_SIZE", "x")
    with pytest.raises(ConfigError, match="WORLD_SIZE"):
        pparallel.launch({"members": "auto"}, who)


def draws(rt: Runtime) -> tuple[float, float, float]:
    streams = rt.streams
    return streams.random.random(), streams.numpy.random(), streams.sub("w", 1).random.random()


def test_seed_gives_every_member_its_own_streams() -> None:
    config = {"members": 3, "seed": 5}
    first, second = pparallel.launch(config, draws), pparallel.launch(config, draws)
    assert first == second
    assert len({value for each in first for value in each}) == 9
    assert pparallel.launch({**config, "seed": 6}, draws) != first
    assert pparallel.launch({"members": 1}, draws) != pparallel.launch({"members": 1}, draws)


def test_seed_reaches_the_global_generators_of_a_member_alone() -> None:
    def draw(_: Runtime) -> float:
        return random.random()

    config = {"seed": 5}
    assert pparallel.launch(config, draw) == pparallel.launch(config, draw)


def test_leaving_by_exception_terminates_the_pool() -> None:
    started = time.monotonic()
    release = threading.Event()
    handles = []

    def leave() -> None:
        with pparallel.build(pparallel.RuntimeConfig(pool=ThreadPoolConfig(size=1))) as rt:
            handles.append(rt.pool.apply_async(release.wait, (30,)))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        leave()
    assert time.monotonic() - started < 10
    release.set()
    with pytest.raises(ClosedError):
        handles[0].get()


def test_what_the_end_of_the_job_breaks_is_not_its_failure() -> None:
    in_pool = threading.Event()
    release = threading.Event()

    def block(_: int) -> None:
        in_pool.set()
        release.wait(30)

    def fail(rt: Runtime) -> None:
        if rt.rank == 1:
            assert in_pool.wait(10)
            raise LookupError("the failure")
        rt.pool.map(block, [1])

    try:
        with pytest.raises(LookupError, match="the failure"):
            pparallel.launch({"members": 2}, fail)
    finally:
        release.set()


def test_a_member_that_fails_takes_no_other_for_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    left = threading.Event()
    events: list[Event] = []
    tell = Endpoint.fail

    def tell_and_see_the_others_leave(self: Endpoint, error: BaseException) -> None:
        tell(self, error)
        assert left.wait(10)

    monkeypatch.setattr(Endpoint, "fail", tell_and_see_the_others_leave)

    def fail(rt: Runtime) -> None:
        if rt.rank == 1:
            calling.endpoint().when_lost(
                lambda name, reason: left.set()
            )  # called after the runtime's own
        rt.group().barrier()
        if rt.rank == 1:
            raise LookupError("it broke")
        rt.group().barrier()

    with pytest.raises(LookupError, match="it broke"):
        pparallel.launch({"members": 2}, fail, listener=events.append)
    assert left.is_set()
    assert [each for each in events if isinstance(each, PeerLost)] == []


def test_a_device_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    message = r"^rt\.device .*pip install 'pparallel\[torch\]'"
    with pparallel.build() as rt, pytest.raises(MissingDependencyError, match=message):
        _ = rt.device


def test_errors_that_are_chained_in_a_circle_are_no_consequence() -> None:
    first, second = KeyError("first"), KeyError("second")
    first.__cause__, second.__cause__ = second, first
    assert not is_consequence(first)


def test_a_member_that_waits_for_the_others_learns_why_they_do_not_come() -> None:
    names = ("x", "y")
    signal = StopSignal()
    errors: list[BaseException] = []

    def wait() -> None:
        member = Member("x", 0, 0, 2, names, "local:waits")
        runtime = pparallel.build({"members": list(names)}, member=member)
        with running_under(signal):
            try:
                runtime.open()
            except ClosedError as error:
                errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    signal.set(LookupError("the other cannot start"))
    thread.join(10)
    assert len(errors) == 1
    assert is_consequence(errors[0])
    assert "the other cannot start" in str(errors[0])


@pytest.mark.usefixtures("impatient_interpreter")
def test_the_cause_of_the_end_is_always_told() -> None:
    def work(rt: Runtime) -> None:
        rt.group().barrier()
        if rt.rank == 0:
            message = "this went wrong"
            raise LookupError(message)
        rt.group().barrier()

    for _ in range(10):
        with pytest.raises(LookupError, match="this went wrong"):
            pparallel.launch({"members": 3}, work)


@pytest.mark.usefixtures("impatient_interpreter")
def test_leaving_together_never_fails() -> None:
    def work(rt: Runtime) -> int:
        rt.group().barrier()
        return rt.rank

    for _ in range(10):
        assert pparallel.launch({"members": 3}, work) == [0, 1, 2]


def test_a_launcher_may_say_which_number_a_rank_has_on_its_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = RankSpec.run

    def run_placed(self: RankSpec) -> Any:
        with member.placed(self.rank % 2):
            return run(self)

    monkeypatch.setattr(RankSpec, "run", run_placed)
    assert pparallel.launch({"members": 3}, lambda rt: rt.local_rank) == [0, 1, 0]
    monkeypatch.undo()
    assert pparallel.launch({"members": 3}, lambda rt: rt.local_rank) == [0, 1, 2]
    assert member.local_rank() is None
