"""Faults of machin's servers that are gone."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from compat_server_programs import Hooked, Shelf, give, managed, repeat, run
from reducer_models import one_weight, weight

from pparallel.compat.machin.server import OrderedServerSimpleImpl, PushPullGradServerImpl
from pparallel.testing.patience import PATIENCE, until

if TYPE_CHECKING:
    from pparallel.builder import Runtime


def fill(rt: Runtime, depth: int) -> list[Any]:
    server = OrderedServerSimpleImpl("server", rt.group(), version_depth=depth).accessor
    for version in range(5):
        assert server.push("key", f"value {version}", version, version - 1)
    return [version for version in range(5) if server.pull("key", version)]


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_as_many_versions_are_kept_as_was_said(depth: int) -> None:
    """The ordered server keeps ``version_depth + 1`` versions."""
    assert run(fill, depth, members=["ps"]) == [list(range(5))[-depth:]]


def push_beyond(rt: Runtime, gate: threading.Event, pushed: list[int]) -> Any:
    """Push much more than the queues hold, while the optimizer stands still."""
    group = rt.group("group", rt.members)
    if rt.name == "ps":
        server = PushPullGradServerImpl(
            "server",
            group,
            primary_reducer="ps",
            secondary_reducers=["ps"],
            reduce_batch_size=1,
            max_queue_size=2,
        )
        model = one_weight()
        server.manage_model(model, Hooked(model.parameters(), lambda: gate.wait(PATIENCE)))
        server.start()
    group.barrier()
    if rt.name == "a":
        accessor, mine = group.get_paired("server").to_here(), one_weight()
        for _ in range(50):
            assert accessor.push(give(mine))
            pushed.append(1)
    else:
        until(lambda: len(pushed) >= 4, "little was taken")
        assert len(pushed) < 20, "who pushes more than is reduced does not wait"
        gate.set()
    group.barrier()
    if rt.name == "ps":
        server.stop()
        return weight(model)
    return None


def test_a_full_queue_holds_who_pushes_and_drops_nothing() -> None:
    """The gradient server discards the oldest gradients, and says nothing."""
    assert run(push_beyond, threading.Event(), [], members=["ps", "a"])[0] == -50.0


def fail_to_publish(rt: Runtime, shelf: Shelf) -> Any:
    server, model = managed(rt.group(), o_server=shelf, reduce_batch_size=1)
    accessor = rt.group().get_paired("server").local_value()
    assert accessor.push(give(one_weight()))
    until(lambda: model.pp_version == 1, "no step was made")
    shelf.full = True
    accessor.push(give(one_weight()))

    def failed() -> bool:
        try:
            server.watch()
        except RuntimeError as error:
            return "the ordered server refused version 2 of 'model'" in str(error)
        return False

    until(failed, "watch() did not say why")
    with pytest.raises(RuntimeError, match="refused version 2"):
        server.stop()
    return model.pp_version, shelf.held["model"][1], shelf.pushed[-1]


def test_a_version_that_was_not_published_is_none() -> None:
    """The gradient server counts the version on, even if the ordered server refused it."""
    assert run(fail_to_publish, Shelf(), members=["ps"]) == [(1, 1, ("model", 2, 1))]


def raise_in_step(rt: Runtime) -> None:
    group = rt.group("group", rt.members)
    if rt.name == "ps":

        def fail() -> None:
            message = "no step today"
            raise ArithmeticError(message)

        server = PushPullGradServerImpl(
            "server", group, primary_reducer="ps", secondary_reducers=["ps"], reduce_batch_size=1
        )
        model = one_weight()
        server.manage_model(model, Hooked(model.parameters(), fail))
        server.start()
    group.barrier()
    if rt.name == "a":
        accessor = group.get_paired("server").to_here()
        with pytest.raises(ArithmeticError, match="no step today"):
            repeat(lambda: accessor.push(give(one_weight())))
    group.barrier()
    if rt.name == "ps":
        with pytest.raises(ArithmeticError, match="no step today"):
            server.watch()
        with pytest.raises(ArithmeticError, match="no step today"):
            server.stop()


def test_what_the_reducing_thread_raises_is_told_to_all() -> None:
    """The reducing thread dies alone: gradients go on being queued, and nobody reads them."""
    run(raise_in_step)


def count_waits(rt: Runtime, waits: list[float | None]) -> None:
    server, _ = managed(rt.group(), reduce_batch_size=1)
    accessor = rt.group().get_paired("server").local_value()
    assert accessor.push(give(one_weight()))
    server.stop()


def test_nothing_is_polled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reducing thread looks every 0.1 s whether there is something to do."""
    waits: list[float | None] = []
    wait = threading.Condition.wait

    def noted(self: Any, timeout: float | None = None) -> bool:
        if "server" in threading.current_thread().name:
            waits.append(timeout)
        return wait(self, timeout)

    monkeypatch.setattr(threading.Condition, "wait", noted)
    run(count_waits, waits, members=["ps"])
    assert waits
    assert set(waits) == {None}, "a thread of the server woke by itself"


def push_one_by_one(rt: Runtime, rounds: int) -> Any:
    """Each gradient comes while the thread is about to wait for it, or after."""
    group = rt.group("group", rt.members)
    if rt.name == "ps":
        server, model = managed(
            group, primary_reducer="ps", secondary_reducers=["ps"], reduce_batch_size=1
        )
    group.barrier()
    mine = one_weight()
    if rt.name == "a":
        accessor = group.get_paired("server").to_here()
        for count in range(1, rounds + 1):
            assert accessor.push(give(mine))
            until(lambda: accessor.pull(mine) and weight(mine) == -count, "it was not reduced")  # noqa: B023
    group.barrier()
    if rt.name == "ps":
        server.stop()
        return model.pp_version
    return None


def test_who_waits_late_is_woken() -> None:
    """The event that wakes is set and cleared at once: who waits too late sleeps for ever."""
    assert run(push_one_by_one, 100, members=["ps", "a"])[0] == 100
