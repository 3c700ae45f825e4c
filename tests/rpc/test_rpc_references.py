"""Values that stay where they were made, and their methods."""

from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import Future
from typing import Any, ClassVar

import pytest
from rpc_members import Gates, between, launch, wait_at_gate

from pparallel import Runtime
from pparallel.errors import DirectoryError, PeerLostError, ResourceExhaustedError
from pparallel.interfaces.transport import Frames
from pparallel.runtime.flat_views import own
from pparallel.runtime.rpc import context
from pparallel.runtime.rpc.group import RpcGroup
from pparallel.runtime.rpc.refs import COUNT, MOST_CLAIMED, RefTable, RemoteRef
from pparallel.runtime.rpc.service import Request
from pparallel.testing.patience import PATIENCE, until


class Counter:
    made: ClassVar[weakref.WeakSet[Counter]] = weakref.WeakSet()

    def __init__(self) -> None:
        self.count = 0
        self.made.add(self)

    def add(self, many: int = 1, *, ref_id: int = 0, name: int = 0) -> int:
        self.count += many + ref_id + name
        return self.count

    def report(self) -> None:
        reported.append(self.count)


reported: list[int] = []


def make_late() -> Counter:
    wait_at_gate()
    return Counter()


def values_kept() -> int:
    return len(context.endpoint().refs)


def test_methods_of_references_run_at_their_owner() -> None:
    def program(rt: Runtime, group: RpcGroup) -> None:
        for owner in (0, 1):
            ref = group.remote(owner, Counter)
            assert ref.rpc_sync(PATIENCE).add() == 1
            assert ref.rpc_async(PATIENCE).add(2, ref_id=3, name=4).result(PATIENCE) == 10
            assert ref.remote(PATIENCE).add().to_here(PATIENCE) == 11

    launch(between(program))


def test_a_method_call_does_not_send_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    shared: list[object] = []
    share = RefTable.share

    def count(table: RefTable, ref: Any, fresh: bool) -> str:
        shared.append(ref)
        return share(table, ref, fresh)

    monkeypatch.setattr(RefTable, "share", count)

    def program(rt: Runtime, group: RpcGroup) -> None:
        ref = group.remote(1, Counter)
        for _ in range(3):
            ref.rpc_sync(PATIENCE).add()
            ref.rpc_async(PATIENCE).add().result(PATIENCE)
            ref.remote(PATIENCE).add().to_here(PATIENCE)

    launch(between(program))
    assert not shared


def test_a_method_is_called_when_its_value_has_been_made() -> None:
    Gates.opened.clear()

    def program(rt: Runtime, group: RpcGroup) -> int:
        ref = group.remote(1, make_late)
        futures = [ref.rpc_async(PATIENCE).add() for _ in range(3)]
        del ref  # the futures keep the value
        gc.collect()
        threading.Timer(0.05, Gates.opened.set).start()
        results: list[int] = [each.result(PATIENCE) for each in futures]
        return max(results)

    assert launch(between(program))[0] == 3


@pytest.mark.parametrize("make", [Counter, make_late])
def test_a_method_whose_result_nobody_wants_is_called(make: Any) -> None:
    Gates.opened.clear()

    def program(rt: Runtime, group: RpcGroup) -> None:
        ref = group.remote(1, make)
        ref.remote(PATIENCE).report()
        del ref  # and the reference to the result
        gc.collect()
        Gates.opened.set()
        until(lambda: bool(reported), "it was not called")
        reported.clear()

    launch(between(program))


def test_a_value_is_released_after_its_method_was_called() -> None:
    def program(rt: Runtime, group: RpcGroup) -> None:
        before = len(Counter.made)
        ref = group.remote(1, Counter)
        ref.rpc_sync(PATIENCE).add()
        assert len(Counter.made) == before + 1
        del ref

        def is_released() -> bool:
            gc.collect()
            return len(Counter.made) == before

        until(is_released, "the value was not released")

    launch(between(program))


def test_a_value_is_released_where_that_could_not_be_sent_at_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    none = ResourceExhaustedError("a connection", "descriptors", 24, "close some")

    def program(rt: Runtime, group: RpcGroup) -> bool:
        ref, failures = group.remote(1, dict[str, int]), [none]
        assert ref.to_here(PATIENCE) == {}
        ask = ref._endpoint.ask_async

        def fail_once(to: str, key: str, *args: Any, **kwargs: Any) -> Any:
            if key == COUNT and failures:  # the first to be counted is the release
                raise failures.pop()
            return ask(to, key, *args, **kwargs)

        monkeypatch.setattr(ref._endpoint, "ask_async", fail_once)
        del ref
        until(lambda: group.rpc_sync(1, values_kept) == 0, "the value is kept")
        return not failures

    assert launch(between(program))[0]


def test_a_group_that_is_destroyed_releases_its_paired_values() -> None:
    held: list[weakref.ref[Counter]] = []

    def program(rt: Runtime) -> None:
        inner = rt.group("inner", list(rt.members))
        counter = Counter()
        inner.pair(f"counter {rt.rank}", counter)
        held.append(weakref.ref(counter))
        del counter
        inner.destroy()
        rt.group().barrier(PATIENCE)

        def is_released() -> bool:
            gc.collect()
            return all(each() is None for each in held)

        until(is_released, "a paired value was kept")
        rt.group().barrier(PATIENCE)

    launch(program)


def test_methods_of_paired_objects_run_at_their_owner() -> None:
    def program(rt: Runtime) -> None:
        group = rt.group()
        if rt.rank == 1:
            group.pair("counter", Counter())
        group.barrier(PATIENCE)
        if rt.rank == 0:
            assert group.get_paired("counter").rpc_sync(PATIENCE).add(5) == 5
            with pytest.raises(DirectoryError):
                group.get_paired("another")
        group.barrier(PATIENCE)

    launch(program)


class Held:
    """Passes messages on when :meth:`release` says so."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._messages: list[tuple[str, Frames]] = []

    def send(self, to: str, frames: Frames) -> None:
        self._messages.append((to, own(frames)))

    def exchange(self, *_: object) -> None:
        pass

    def release(self) -> None:
        for each in self._messages:
            self._transport.send(*each)


passed: list[RemoteRef[Counter]] = []


def take(ref: RemoteRef[Counter]) -> None:
    passed.append(ref)


def test_a_reference_may_arrive_before_the_request_that_makes_its_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def program(rt: Runtime, group: RpcGroup) -> None:
        peer = context.endpoint().peer("m1")
        held = Held(peer._transport)
        with monkeypatch.context() as patch:
            patch.setattr(peer, "_transport", held)
            ref = group.remote(1, Counter)
            group.rpc_sync(2, take, args=(ref,), timeout=PATIENCE)
        held.release()
        assert ref.rpc_sync(PATIENCE).add() == 1
        del ref
        assert passed.pop().to_here(PATIENCE).count == 1

    launch(between(program), 3)


class Endpoint:
    name = "a"

    def __init__(self) -> None:
        self.counted: list[tuple[int, int]] = []  # of holds and of tickets
        self.reply: Future[object] = Future()

    def serve(self, *_: object) -> None:
        pass

    def check_open(self) -> None:
        pass

    def ask_async(self, to: str, key: str, count: tuple[str, bool, int, str, int]) -> object:
        assert (to, key) == ("b", COUNT)
        self.counted.append((count[2], count[4]))
        return self.reply


def test_a_hold_lasts_until_the_owner_knows_that_the_reference_is_passed_on() -> None:
    endpoint = Endpoint()
    endpoint.refs = table = RefTable(endpoint)  # type: ignore[arg-type, attr-defined] # no more
    ref = table.held("b", "a:0")
    alive = weakref.ref(ref)
    table.share(ref, False)
    del ref
    gc.collect()
    assert alive() is not None
    assert endpoint.counted == [(0, 1)]
    endpoint.reply.set_result(None)
    endpoint.reply = Future()  # which had the reference in its callback
    until(lambda: endpoint.counted == [(0, 1), (-1, 0)], "it was not released")
    table.close()


def test_a_value_whose_request_is_lost_with_its_member_is_waited_for_by_nobody() -> None:
    table = RefTable(Endpoint())  # type: ignore[arg-type] # it needs no more
    with table.awaited("w:0") as value:
        table.lose("v")
        assert not value.done()
        table.lose("w")
        with pytest.raises(PeerLostError, match="'w' ended"):
            value.result(0)


def test_the_end_of_a_member_releases_its_own_tickets_only() -> None:
    table = RefTable(Endpoint())  # type: ignore[arg-type] # it needs no more
    value = table.keep("a:0", "a")

    class Request:
        sender, body = "w:0", ("a:0", False, 0, "w:0:7", 1)

    table._count(Request())  # type: ignore[arg-type]
    with table._lock:
        table._kept["a:0"].holds.clear()
    table.lose("w")
    assert table.value("a:0") is value
    table.lose("w:0")
    with pytest.raises(DirectoryError):
        table.value("a:0")


def test_the_end_of_a_member_releases_the_values_that_it_held() -> None:
    table = RefTable(Endpoint())  # type: ignore[arg-type] # it needs no more
    table.keep("a:0", "v")
    kept = table.keep("a:1", "v")
    table.keep("a:1", "w")
    table.lose("v")
    assert len(table) == 1
    assert table.value("a:1") is kept
    table.lose("w")
    assert len(table) == 0


def test_a_reference_that_is_read_twice_holds_its_value_twice_and_no_longer() -> None:
    table = RefTable(Endpoint())  # type: ignore[arg-type] # it needs no more
    table.keep("a:0", "a")

    def count(sender: str, holds: int, ticket: str | None, tickets: int) -> None:
        body = ("a:0", False, holds, ticket, tickets)
        table._count(Request(sender, body, []))

    count("a", -1, "a:1", 1)  # on its way
    for _ in range(2):
        count("b", 1, "a:1", -1)
    assert len(table) == 1
    count("b", -1, None, 0)
    assert len(table) == 1
    count("b", -1, None, 0)
    assert len(table) == 0


def test_a_value_that_is_passed_on_for_ever_takes_no_more_memory() -> None:
    table = RefTable(Endpoint())  # type: ignore[arg-type] # it needs no more
    table.keep("a:0", "a")
    for number in range(2 * MOST_CLAIMED):
        by = [(0, 1), (1, -1), (-1, 0)]  # given out, claimed, let go of
        if number % 2:
            by = [by[1], by[2], by[0]]  # and known to be given out at last
        for holds, tickets in by:
            ticket = f"a:{number}" if tickets else None
            table._count(Request("b", ("a:0", False, holds, ticket, tickets), []))
    [kept] = table._kept.values()
    assert not kept.tickets
    assert len(kept.claimed) == MOST_CLAIMED
    assert kept.is_wanted()
