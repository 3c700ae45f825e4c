"""The pool's own side when several things happen at once."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from functools import partial
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest
import torch
from typing_extensions import override

import pparallel
from pparallel.errors import ClosedError, SerializationError, WorkerLostError
from pparallel.interfaces.pool import Pool
from pparallel.runtime.pools.messages import CALL, LOT, RECEIVED, Received
from pparallel.runtime.processes import Exit, Process
from pparallel.runtime.shm import Arena
from pparallel.testing.gate import Gate
from pparallel.testing.patience import PATIENCE, until
from pparallel.testing.pool.tasks import double, note_and_wait, noted, same
from pparallel_process import P2PPoolConfig, ProcessPoolConfig
from pparallel_process.engine.leading import Leadership
from pparallel_process.engine.results import Results
from pparallel_process.wire.channel import Channel

PRELOAD = ("pparallel.testing.pool.tasks",)


class Hooked:
    """Calls something of this program's while it is serialised; arrives as 7."""

    def __init__(self, hook: Callable[[], object]) -> None:
        self.hook = hook

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        self.hook()
        return int, (7,)


def pass_first(gate: Gate, number: int) -> int:
    """Wait at the gate, if it is the first task."""
    return number if number else int(gate.pass_through(number))


@pytest.fixture
def pool() -> Iterator[Pool]:
    built: Pool = pparallel.build(ProcessPoolConfig(size=1, preload=PRELOAD))
    with built:
        assert built.apply(same, (0,)) == 0  # from now on single calls take the short way
        yield built


def retire_once(pool: Any) -> Callable[[], None]:
    """Return what has the pool let its only worker go, as for what it has grown to."""
    engine = pool._engine
    workers = list(engine._crew.workers.values())

    def retire() -> None:
        while workers:
            engine._staffing.retire(workers.pop())

    return retire


def test_a_worker_is_let_go_while_it_is_about_to_be_sent_something(pool: Pool) -> None:
    calls: tuple[Callable[[Any], Any], ...] = (
        lambda item: pool.apply(same, (item,)),
        lambda item: pool.submit(same, item).result(PATIENCE),
        lambda item: pool.map_async(same, [item]).get(PATIENCE)[0],
    )
    for call in calls:
        before = pool.pids()  # type: ignore[attr-defined]
        assert call(Hooked(retire_once(pool))) == 7
        assert pool.pids() != before  # type: ignore[attr-defined]


def test_a_pool_that_is_joined_while_a_call_is_serialised_refuses_it(pool: Pool) -> None:
    def close() -> None:
        if not joined:
            pool.close()
            joining = threading.Thread(target=pool.join)
            joining.start()
            joining.join(PATIENCE)
            joined.append(not joining.is_alive())

    joined: list[bool] = []
    with pytest.raises(ClosedError):
        pool.apply(same, (Hooked(close),))
    assert joined == [True]


def test_an_interrupt_while_a_call_is_serialised_leaves_a_pool_that_ends(pool: Pool) -> None:
    def interrupt() -> None:
        if not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt

    interrupted: list[bool] = []
    with pytest.raises(KeyboardInterrupt):
        pool.apply_async(same, (Hooked(interrupt),))
    pool.close()
    joining = threading.Thread(target=pool.join)
    joining.start()
    joining.join(PATIENCE)
    assert not joining.is_alive()


@pytest.mark.parametrize("kind", [CALL, LOT])
def test_what_cannot_be_sent_is_an_error_and_the_next_call_works(
    pool: Pool, kind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = Channel.send
    refused: list[tuple[Any, ...]] = []

    def once(self: Channel, message: tuple[Any, ...], files: list[int] | None = None) -> None:
        if message[0] == kind and not refused:
            refused.append(message)
            raise OSError(errno.ENOMEM, "no room for a message")
        send(self, message, files)

    monkeypatch.setattr(Channel, "send", once)
    with pytest.raises(OSError, match="no room for a message"):
        pool.apply(same if kind == CALL else double, (bytearray(100_000),))
    assert len(refused) == 1
    assert pool.apply(same, (1,)) == 1
    assert pool.map(double, [2, 3]) == [4, 6]


@pytest.mark.parametrize("call", ["map", "apply"])
def test_a_report_that_cannot_be_read_costs_one_worker(
    pool: Pool, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive = Channel.receive
    spoilt: list[Received] = []

    def once(self: Channel, *args: Any) -> Received | None:
        received = receive(self, *args)
        if received is not None and not spoilt:
            spoilt.append(received)
            raise KeyError(1)
        return received

    monkeypatch.setattr(Channel, "receive", once)
    with pytest.raises(SerializationError, match="a worker's report"):
        getattr(pool, call)(same, [1])
    assert spoilt
    assert pool.map(same, [1]) == [1]


def test_a_worker_whose_memory_cannot_be_had_is_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    def attach(descriptor: int) -> Arena:
        raise OSError(errno.EMFILE, "no descriptor is left")

    monkeypatch.setattr(Arena, "attach", attach)
    pool: Pool = pparallel.build(ProcessPoolConfig(size=1, preload=PRELOAD))
    with pool, pytest.raises(OSError, match="no descriptor is left"):
        pool.apply(same, (0,))


def test_a_place_is_not_filled_while_its_worker_is_buried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, notes = Gate(tmp_path), tmp_path / "notes"
    built: Any = pparallel.build(ProcessPoolConfig(size=2, preload=PRELOAD))
    ended = Process.ended
    welcomed: list[int] = []

    def welcome_another(self: Process, timeout: float | None = 0) -> Exit | None:
        """While this one is buried, another thread may hear that some other worker is ready."""
        if timeout and killed == [self.pid] and not welcomed:
            (other,) = built._engine._crew.workers.values()
            welcomed.append(other.process.pid)
            built._engine._staffing.welcome(other, [])
        return ended(self, timeout)

    monkeypatch.setattr(Process, "ended", welcome_another)
    with built as pool:
        pool.map(same, range(2), chunksize=1)
        task = pool.submit(note_and_wait, notes, gate)
        gate.arrived()
        killed = [int(each) for each in noted(notes)]
        os.kill(killed[0], SIGKILL)
        with pytest.raises(WorkerLostError, match=f"{killed[0]}"):
            task.result(PATIENCE)
        assert welcomed
        assert pool.map(same, range(10)) == list(range(10))
        assert len(pool.pids()) == 2
        assert [each.losses for each in pool.insights().workers].count(1) == 1
    gate.close()
    assert len(noted(notes)) == 1


def test_what_a_single_call_has_returned_is_kept_though_its_worker_dies(
    pool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pid,) = pool.pids()
    engine = pool._engine
    waiter = engine._express._waiter
    wait = waiter.wait

    def wait_and_bury(*calls: Any) -> Any:
        """When the result has arrived, another thread may be told of the worker's death."""
        found = wait(*calls)
        if pid in pool.pids():
            os.kill(pid, SIGKILL)
            while pid in pool.pids():
                engine.block(PATIENCE)
        return found

    monkeypatch.setattr(waiter, "wait", wait_and_bury)
    assert pool.apply(same, (1,)) == 1
    assert pid not in pool.pids()
    assert pool.apply(same, (2,)) == 2


def test_who_is_terminated_is_told_so_though_the_worker_is_seen_to_die_first(
    pool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staffing = pool._engine._staffing
    kill_all = staffing.kill_all

    def kill_all_and_have_them_buried() -> None:
        kill_all()
        until(lambda: not staffing._changing and not pool.pids(), "nobody buried the worker")

    monkeypatch.setattr(staffing, "kill_all", kill_all_and_have_them_buried)
    gate = Gate(tmp_path)
    tasks = [pool.apply_async(gate.pass_through, (1,)), pool.apply_async(same, (1,))]
    gate.arrived()
    pool.terminate()
    for task in tasks:
        with pytest.raises(ClosedError, match="was terminated"):
            task.get(PATIENCE)
    gate.close()


def test_a_worker_keeps_results_that_another_thread_is_about_to_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tell, try_to_send = Results._tell, Channel.try_to_send
    held: list[tuple[Any, ...]] = []
    thanks: list[int] = []

    def hold_the_first(self: Results, report: Any) -> None:
        if held:
            tell(self, report)
        else:
            held.append((self, report))

    def note_thanks(self: Channel, message: tuple[Any, ...]) -> bool:
        if message[0] == RECEIVED:
            thanks.append(message[1])
        return try_to_send(self, message)

    monkeypatch.setattr(Results, "_tell", hold_the_first)
    monkeypatch.setattr(Channel, "try_to_send", note_thanks)
    config = ProcessPoolConfig(size=1, preload=("numpy", "torch", *PRELOAD), share_tensors="cpu")
    built: Pool = pparallel.build(config)
    with built as pool:
        first, second = (pool.submit(same, torch.full((1000,), each)) for each in (1.0, 2.0))
        assert second.result(PATIENCE)[0] == 2
        assert not first.done()
        assert thanks == []
        tell(*held[0])
        assert first.result(PATIENCE)[0] == 1
        assert thanks == [2]


def test_who_waits_is_told_of_a_call_that_somebody_else_has_cancelled(
    pool: Pool, tmp_path: Path
) -> None:
    gate = Gate(tmp_path)
    before = pool.submit(gate.pass_through)
    behind = pool.submit(same, 1)
    ends: list[BaseException | None] = []
    waiting = threading.Thread(target=lambda: ends.append(_error_of(behind)))
    waiting.start()
    gate.arrived(1)
    assert behind.cancel()
    waiting.join(PATIENCE)
    assert [type(each) for each in ends] == [CancelledError]
    gate.open()
    before.result(PATIENCE)
    gate.close()


def test_tasks_behind_a_long_one_are_passed_on_while_nobody_looks(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    built: Pool = pparallel.build(P2PPoolConfig(size=3, preload=PRELOAD))
    with built as pool:
        before = pool.submit(gate.pass_through)
        gate.arrived()  # from now on the dispatcher waits for a task of which nothing is to be told
        stream = pool.imap_unordered(partial(pass_first, gate), range(40), chunksize=40)
        assert sorted(stream.next(PATIENCE) for _ in range(39)) == list(range(1, 40))
        gate.open()
        assert next(stream) == 0
        before.result(PATIENCE)
    gate.close()


def _error_of(handle: Any) -> BaseException | None:
    try:
        handle.result()
    except BaseException as error:  # noqa: BLE001 - that is what is asked
        return error
    return None


def test_single_calls_are_among_the_slowest_tasks(pool: Pool) -> None:
    assert pool.apply(same, (1,)) == 1
    assert pool.apply(same, ([1],)) == [1]
    slowest = pool.insights().slowest  # type: ignore[attr-defined]
    assert [each.function for each in slowest] == ["same"] * 3


class Waited:
    """An engine that has something to wait for until it has been waited for."""

    def __init__(self) -> None:
        self.blocked = threading.Event()

    def look(self) -> bool | None:
        return None

    def block(self, timeout: float | None) -> None:
        self.blocked.set()

    def needs_a_leader(self) -> bool:
        return not self.blocked.is_set()

    def is_over(self) -> bool:
        return False


def test_who_leads_no_more_has_another_lead() -> None:
    led = Waited()
    leadership = Leadership(led, "dispatcher")
    assert leadership.take()
    leadership.see_to_it()  # in vain: somebody leads
    leadership.step_down()
    assert led.blocked.wait(PATIENCE)
    until(lambda: not leadership.is_taken, "the dispatcher leads on")
    leadership.stop()
