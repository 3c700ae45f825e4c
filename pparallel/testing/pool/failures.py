"""What happens when a task, a callback, an argument or a worker fails."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
import traceback
from functools import partial
from pathlib import Path

import pytest

from pparallel.errors import SerializationError, WorkerLostError
from pparallel.interfaces.pool import Pool
from pparallel.testing.gate import Gate
from pparallel.testing.patience import PATIENCE
from pparallel.testing.pool.base import Make, PoolTests
from pparallel.testing.pool.tasks import (
    Refused,
    append,
    die,
    double,
    lock,
    note_or_refuse,
    noted,
    power,
    refuse,
    refuse_odd,
    same,
    wait_refuse_or_note,
)
from pparallel.testing.suite import requires


class FailureTests(PoolTests):
    """Tests of failures, and of what is sent between caller and worker."""

    def test_a_task_that_raises(self, pool: Pool) -> None:
        with pytest.raises(Refused, match=r"^refused 1$"):
            pool.apply(refuse, (1,))
        with pytest.raises(Refused, match=r"^refused 2$"):
            pool.map(refuse, [2])
        with pytest.raises(Refused, match=r"^refused 3$"):
            pool.starmap(refuse, [(3,)])
        with pytest.raises(Refused, match=r"^refused 4$"):
            pool.submit(refuse, 4).result()
        with pytest.raises(ZeroDivisionError):
            pool.apply(power, (0, -1))
        with pytest.raises(TypeError, match="argument"):
            pool.apply(double, (1, 2))
        assert isinstance(pool.submit(refuse, 5).exception(), Refused)
        assert pool.map(double, [1, 2]) == [2, 4]

    def test_a_failure_shows_where_the_task_failed(self, pool: Pool) -> None:
        errors = [
            pool.submit(refuse, 1).exception(PATIENCE),
            pool.map_async(refuse, [2]).exception(PATIENCE),
        ]
        with pytest.raises(Refused) as caught:
            next(pool.imap(refuse, [3]))
        for error in (*errors, caught.value):
            assert error is not None
            assert "in refuse" in "".join(traceback.format_exception(error))

    def test_a_task_that_exits(self, pool: Pool) -> None:
        for status in range(3):
            with pytest.raises(SystemExit) as caught:
                pool.submit(sys.exit, status).result(PATIENCE)
            assert caught.value.code == status
            with pytest.raises(SystemExit):
                pool.map_async(sys.exit, [status]).get(PATIENCE)
        assert pool.map(double, [1, 2]) == [2, 4]

    def test_a_failed_map_in_many(self, pool: Pool) -> None:
        for failing in range(0, 100, 9):
            items = [2 * each + (each == failing) for each in range(100)]
            with pytest.raises(Refused, match=f"^refused {items[failing]}$"):
                pool.map(refuse_odd, items)

    def test_the_first_failure_ends_a_map(self, make: Make, notes: Path) -> None:
        with make(size=1) as pool:
            for _ in range(3):
                with pytest.raises(Refused, match="refused 0"):
                    pool.map(partial(note_or_refuse, notes), range(10_000))
        assert len(noted(notes)) < 20_000

    @requires("parallel")
    def test_the_first_failure_is_raised_at_once(self, make: Make, gate: Gate, notes: Path) -> None:
        task = partial(wait_refuse_or_note, gate.pass_through, notes)
        with make(size=2) as pool:
            handle = pool.map_async(task, range(50))
            gate.arrived()
            with pytest.raises(Refused, match="refused 1"):
                handle.get(PATIENCE)
            gate.open()
        assert len(noted(notes)) < 48, "a worker went on with a map that had failed"

    def test_a_callback_that_raises(self, make: Make, caplog: pytest.LogCaptureFixture) -> None:
        def exit_all(_: object) -> None:
            raise SystemExit(3)

        def cancel_all(_: object) -> None:
            raise asyncio.CancelledError

        with caplog.at_level(logging.ERROR), make(size=1) as pool:
            assert pool.apply_async(double, (1,), {}, refuse).get() == 2
            assert pool.map_async(double, [1], None, exit_all).get() == [2]
            assert pool.apply_async(double, (1,), {}, cancel_all).get(PATIENCE) == 2
            with contextlib.suppress(Refused):
                pool.apply_async(refuse, (1,), {}, None, exit_all).get()
            failing = pool.submit(double, 1)
            failing.add_done_callback(refuse)
            assert pool.map(double, range(3)) == [0, 2, 4]
        assert caplog.text.count("refuse") > 0
        assert caplog.text.count("exit_all") > 0
        assert caplog.text.count("cancel_all") > 0

    @requires("parallel")
    def test_callbacks_of_a_cancelled_call(self, make: Make, gate: Gate) -> None:
        ended = threading.Event()
        with make(size=1) as pool:
            pool.submit(gate.pass_through)
            gate.arrived()
            waiting = pool.submit(double, 1)
            waiting.add_done_callback(lambda _: ended.set())
            assert waiting.cancel()
            assert ended.is_set()
            gate.open()

    @requires(lacking=("references",))
    def test_passes_copies(self, pool: Pool) -> None:
        values = [0]
        pool.apply(append, (values,))
        pool.map(append, [values] * 10)
        assert values == [0]
        assert pool.apply(same, (values,)) is not values

    @requires(lacking=("references",))
    def test_what_cannot_be_sent(self, pool: Pool) -> None:
        unsendable = threading.Lock()
        for _ in range(3):
            with pytest.raises(SerializationError):
                pool.apply(same, (unsendable,))
            with pytest.raises(SerializationError):
                pool.map(same, [1, unsendable, 2])
            with pytest.raises(SerializationError):
                pool.apply(unsendable.acquire)
            with pytest.raises(SerializationError):
                pool.submit(lock).result(PATIENCE)
            stream = pool.imap(same, [1, unsendable, 2])
            assert next(stream) == 1
            with pytest.raises(SerializationError):
                next(stream)
            assert next(stream) == 2
        assert pool.map(double, range(100)) == list(range(0, 200, 2))

    @requires("isolated")
    def test_a_worker_that_dies(self, pool: Pool) -> None:
        for status in (0, 1, 7):
            before = pool.map_async(double, range(100))
            dying = pool.submit(die, status)
            after = pool.map_async(double, range(100))
            with pytest.raises(WorkerLostError) as caught:
                dying.result(PATIENCE)
            assert caught.value.exitcode == status
            assert caught.value.pid > 0
            for each in (before, after):  # what ended within the last moment is lost with it
                assert each.exception() is None or isinstance(each.exception(), WorkerLostError)
            assert pool.map(double, range(100)) == list(range(0, 200, 2))
