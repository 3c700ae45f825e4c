"""What CPython documents, and its own tests check, of ``multiprocessing.Pool``, on ours of compat.

Source: CPython, Lib/test/_test_multiprocessing.py, ``_TestPool`` and its neighbours.
"""

from __future__ import annotations

import gc
import multiprocessing
import multiprocessing.pool
import os
import pickle
import signal
import threading
import traceback
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import compat_spawn_programs as programs
import psutil
import pytest

import pparallel.compat.torch_multiprocessing as mp
from pparallel.compat.torch_multiprocessing.pool import Pool
from pparallel.errors import ClosedError, RemoteError, SerializationError, WorkerLostError
from pparallel.testing.gate import Gate
from pparallel.testing.patience import PATIENCE, until, until_gone


@pytest.fixture
def pool() -> Iterator[Pool]:
    with mp.Pool(2) as pool:
        yield pool


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    (tmp_path / "gate").mkdir()
    with closing(Gate(tmp_path / "gate")) as gate:
        yield gate


class SayWhenError(ValueError):
    """What iterables raise."""


def numbers(total: int, when: int) -> Iterator[int]:
    for each in range(total):
        if each == when:
            raise SayWhenError
        yield each


def test_it_is_not_the_originals(pool: Pool) -> None:
    assert mp.Pool is Pool
    assert not issubclass(type(pool), multiprocessing.pool.Pool)
    assert repr(pool) == "<Pool of 2 processes, running>"


# -- calls -------------------------------------------------------------------------------------


def test_apply(pool: Pool) -> None:
    assert pool.apply(programs.square, (5,)) == 25
    assert pool.apply(programs.square, (), {"number": 3}) == 9
    handle = pool.apply_async(programs.square, (7, 0.01))
    assert handle.wait(PATIENCE) is None  # type: ignore[func-returns-value]
    assert handle.ready()
    assert handle.successful()
    assert handle.get() == 49
    assert pool.apply_async(programs.square, kwds={"number": 2}).get(PATIENCE) == 4


def test_map_and_starmap(pool: Pool) -> None:
    squares = [x * x for x in range(100)]
    pairs = [(x, 0) for x in range(100)]
    for chunksize in (None, 1, 7, 200):
        assert pool.map(programs.square, range(100), chunksize) == squares
        assert pool.starmap(programs.square, pairs, chunksize) == squares
        assert pool.map_async(programs.square, iter(range(100)), chunksize).get(PATIENCE) == squares
        assert pool.starmap_async(programs.square, pairs, chunksize).get(PATIENCE) == squares
        assert pool.map(programs.square, [], chunksize) == []
        number = chunksize or 1
        assert list(pool.imap(programs.square, range(100), number)) == squares
        assert sorted(pool.imap_unordered(programs.square, range(100), number)) == squares


def test_an_iterator_takes_a_timeout(pool: Pool, gate: Gate) -> None:
    stream = pool.imap(programs.square, range(3))
    assert [stream.next(), stream.next(PATIENCE), next(stream)] == [0, 1, 4]
    for _ in range(2):
        with pytest.raises(StopIteration):
            stream.next()
    slow = pool.imap(gate.pass_through, ["late"])
    with pytest.raises(multiprocessing.TimeoutError):
        slow.next(0.001)
    gate.open()
    assert slow.next(PATIENCE) == "late"


def test_a_result_that_is_not_there_yet(pool: Pool, gate: Gate) -> None:
    handle = pool.apply_async(gate.pass_through, ("late",))
    assert not handle.ready()
    with pytest.raises(ValueError, match="not ready"):
        handle.successful()
    with pytest.raises(multiprocessing.TimeoutError):
        handle.get(0.001)
    gate.open()
    assert handle.get(timeout=PATIENCE) == "late"


def test_chunks_of_no_size(pool: Pool) -> None:
    calls: list[Any] = [pool.map, pool.starmap, pool.map_async, pool.imap, pool.imap_unordered]
    for call in calls:
        for chunksize in (0, -1):
            with pytest.raises(ValueError, match="chunksize"):
                call(programs.square, [1], chunksize)


def test_bad_arguments() -> None:
    bad: list[dict[str, Any]] = [{"processes": 0}, {"processes": -1}, {"maxtasksperchild": 0}]
    for options in bad:
        with pytest.raises(ValueError, match=next(iter(options))):
            mp.Pool(**options)
    with pytest.raises(ValueError, match="maxtasksperchild"):
        mp.Pool(1, maxtasksperchild=0.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="initializer"):
        mp.Pool(1, initializer=5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="context"):
        mp.Pool(1, context="spawn")


# -- callbacks ---------------------------------------------------------------------------------


def test_callbacks(pool: Pool) -> None:
    found: list[Any] = []
    told = found.append
    pool.apply_async(programs.square, (3,), {}, told).wait(PATIENCE)
    pool.map_async(programs.square, [1, 2], callback=told).wait(PATIENCE)
    pool.starmap_async(programs.square, [(3,)], None, told).wait(PATIENCE)
    assert found == [9, [1, 4], [9]]
    found.clear()
    pool.apply_async(programs.refuse_odd, (3,), error_callback=told).wait(PATIENCE)
    pool.map_async(programs.refuse_odd, [1], error_callback=told).wait(PATIENCE)
    pool.apply_async(programs.unpicklable, callback=told, error_callback=told).wait(PATIENCE)
    assert [type(each) for each in found] == [LookupError, LookupError, mp.MaybeEncodingError]


def test_a_callback_that_raises_stops_nobody(pool: Pool, caplog: pytest.LogCaptureFixture) -> None:
    """The original's thread of results ends, and everybody waits for ever."""
    assert pool.apply_async(programs.square, (3,), callback=lambda _: 1 / 0).get(PATIENCE) == 9
    assert "ZeroDivisionError" in caplog.text
    assert pool.apply(programs.square, (4,)) == 16


# -- failures ----------------------------------------------------------------------------------


def test_what_a_task_raises_has_its_traceback_as_the_cause(pool: Pool) -> None:
    with pytest.raises(LookupError) as caught:
        pool.apply(programs.refuse_odd, (1,))
    assert isinstance(caught.value.__cause__, RemoteError)
    text = "".join(traceback.format_exception(caught.value))
    assert "in refuse_odd" in text
    assert "raise LookupError(number)" in text


@pytest.mark.parametrize("maxtasks", [None, 50])
def test_failures_in_many_tasks(maxtasks: int | None) -> None:
    with mp.Pool(2, maxtasksperchild=maxtasks) as pool:
        for chunksize in (1, 3):
            with pytest.raises(LookupError):
                pool.map(programs.refuse_odd, range(10), chunksize)
            assert not _ended(pool.map_async(programs.refuse_odd, [1], chunksize)).successful()
        stream, errors = pool.imap(programs.refuse_odd, range(6)), 0
        found: list[int] = []
        while len(found) + errors < 6:
            try:
                found.append(next(stream))
            except LookupError:
                errors += 1
        assert (found, errors) == ([0, 2, 4], 3)
        assert next(stream, None) is None


def _ended(handle: Any) -> Any:
    handle.wait(PATIENCE)
    return handle


def test_an_iterable_that_raises(pool: Pool) -> None:
    for when in (0, 3):
        calls: list[Any] = [pool.map, pool.map_async, pool.starmap]
        for call in calls:
            with pytest.raises(SayWhenError):
                call(programs.square, numbers(10, when))
        for chunksize in (1, 2):
            stream = pool.imap(programs.square, numbers(10, when), chunksize)
            found: list[int] = []
            with pytest.raises(SayWhenError):
                found.extend(stream)
            assert found == [x * x for x in range(when)]
    assert pool.map(programs.square, [2]) == [4]


def test_what_cannot_be_pickled(pool: Pool) -> None:
    calls: list[Callable[[], object]] = [
        lambda: pool.apply(programs.unpicklable),
        lambda: pool.map(programs.unpicklable, range(3)),
        lambda: next(pool.imap(programs.unpicklable, range(3))),
        lambda: pool.apply_async(programs.unpicklable).get(PATIENCE),
        lambda: pool.apply(programs.square, (threading.Lock(),)),
        lambda: pool.map_async(programs.square, [1, threading.Lock()]).get(PATIENCE),
        lambda: next(pool.imap_unordered(programs.square, [threading.Lock()])),
        lambda: pool.apply(threading.Lock().acquire),
        lambda: pool.apply(_with_a_lock()),
    ]
    for call in calls:
        with pytest.raises(mp.MaybeEncodingError) as caught:
            call()
        error = caught.value
        assert isinstance(error, SerializationError)
        assert isinstance(error, vars(multiprocessing.pool)["MaybeEncodingError"])
        assert "lock" in error.exc
        assert error.value in str(error)
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
        assert pool.apply(programs.square, (2,)) == 4


def _with_a_lock() -> Callable[[], object]:
    lock = threading.Lock()
    return lambda: lock


def test_an_exception_that_cannot_be_pickled(pool: Pool) -> None:
    with pytest.raises(RemoteError, match="lock"):
        pool.apply(_raise_a_lock)
    assert pool.apply(programs.square, (2,)) == 4


def _raise_a_lock() -> None:
    raise LookupError("with a lock", threading.Lock())


def test_a_task_that_exits(pool: Pool) -> None:
    """The worker of the original ends, and who waits for the task does so for ever."""
    with pytest.raises(SystemExit):
        pool.apply(programs.raise_it, (SystemExit(3),))
    assert pool.apply(programs.square, (2,)) == 4


# -- workers -----------------------------------------------------------------------------------


def test_workers_are_replaced_after_so_many_tasks() -> None:
    with mp.Pool(3, maxtasksperchild=10) as pool:
        handles = [pool.apply_async(programs.own_pid) for _ in range(60)]
        served = Counter(each.get(PATIENCE) for each in handles)
        assert max(served.values()) <= 10
        assert len(served) >= 6
        pool.close()
        pool.join()
        until_gone(*served)


def test_a_chunk_is_one_task() -> None:
    with mp.Pool(2, maxtasksperchild=2) as pool:
        for served in (
            Counter(pool.map(programs.own_pid, range(20), chunksize=5)),
            Counter(pool.imap(programs.own_pid, range(20), chunksize=5)),
            Counter(pool.starmap(programs.own_pid, [()] * 20, chunksize=5)),
        ):
            assert set(served.values()) <= {5, 10}
        assert len(pool.map(programs.own_pid, range(20))) == 20  # in chunks by itself
        told: list[object] = []
        pool.map_async(programs.square, range(4), 3, told.append).wait(PATIENCE)
        assert told == [[0, 1, 4, 9]]


def test_workers_do_without_a_limit_what_comes() -> None:
    with mp.Pool(1) as pool:
        assert len(set(pool.map(programs.own_pid, range(300), chunksize=1))) == 1


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_context_says_how_workers_start(method: Any) -> None:
    programs.kept[:] = [method]
    with mp.Pool(1, context=multiprocessing.get_context(method)) as pool:
        (parent,) = pool.map(_own_parent, [None])
        assert (parent == os.getpid()) == (method != "forkserver")
        assert pool.apply(_kept) == ([method] if method == "fork" else [])
    programs.kept.clear()


def _own_parent(_: object) -> int:
    return os.getppid()


def _kept() -> list[Any]:
    import compat_spawn_programs

    return compat_spawn_programs.kept


def test_the_default_start_method_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none=False: "spawn")
    with mp.Pool(1) as pool:
        assert pool.apply(_own_parent, (None,)) == os.getpid()


def test_initializer() -> None:
    with mp.Pool(2, programs.keep, (1, "two")) as pool:
        assert pool.map(_of_kept, range(4)) == [[1, "two"]] * 4
    context = multiprocessing.get_context("forkserver")
    with pytest.raises(mp.MaybeEncodingError, match="lock"):
        mp.Pool(1, programs.keep, (threading.Lock(),), context=context)


def _of_kept(_: object) -> list[Any]:
    return _kept()


def test_workers_do_not_hear_ctrl_c(pool: Pool) -> None:
    pid = pool.apply(programs.own_pid)
    os.kill(pid, signal.SIGINT)
    assert pool.map(programs.square, range(5)) == [0, 1, 4, 9, 16]


def test_a_worker_that_dies_fails_its_task(pool: Pool) -> None:
    with pytest.raises(WorkerLostError):
        pool.apply(programs.kill_own)
    with pytest.raises(WorkerLostError):
        pool.map_async(programs.kill_own, [signal.SIGKILL]).get(PATIENCE)
    assert pool.map(programs.square, range(5)) == [0, 1, 4, 9, 16]


# -- the end -----------------------------------------------------------------------------------


def test_states() -> None:
    pool = mp.Pool(1)
    with pytest.raises(ValueError, match="close"):
        pool.join()
    stream = pool.imap(programs.square, range(100))
    handle = pool.apply_async(programs.square, (3, 0.05))
    pool.close()
    calls: list[Any] = [pool.map, pool.map_async, pool.starmap, pool.imap, pool.imap_unordered]
    for call in (*calls, pool.apply, pool.apply_async):
        with pytest.raises(ValueError, match="closed"):
            call(programs.square, [1])
    with pytest.raises(ValueError, match="closed"), pool:
        raise AssertionError
    assert list(stream) == [x * x for x in range(100)]
    pool.join()
    assert handle.get(0) == 9
    for again in (pool.join, pool.close, pool.terminate):
        again()
    assert "ended" in repr(pool)


def test_with_terminates() -> None:
    with mp.Pool(2) as pool:
        pids = pool.map(programs.own_pid, range(8), 1)
        handles = [pool.apply_async(programs.hold_for, (1000,)) for _ in range(4)]
    assert not any(psutil.pid_exists(each) for each in pids)
    for each in handles:
        with pytest.raises(ClosedError):
            each.get(PATIENCE)
    with pytest.raises(ValueError, match="terminated"):
        pool.apply(programs.square, (1,))


def test_a_pool_that_is_not_closed_warns() -> None:
    pools = [mp.Pool(1)]
    pid = pools[0].apply(programs.own_pid)
    with pytest.warns(ResourceWarning, match="closed"):
        _collect(pools)
    until_gone(pid)


def _collect(pools: list[Pool]) -> None:
    pools.clear()
    gc.collect()


def test_a_closed_pool_that_is_dropped_finishes() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pool = mp.Pool(1)
        handle = pool.map_async(programs.square, range(50))
        pid = pool.apply(programs.own_pid)
        pool.close()
        reference = weakref.ref(pool)
        del pool
        assert handle.get(PATIENCE) == [x * x for x in range(50)]
        del handle
        gc.collect()
        assert reference() is None
        until_gone(pid)


def test_results_keep_their_pool() -> None:
    """Source: CPython's issue 38501."""
    pool = mp.Pool(1)
    stream, handle = pool.imap(programs.square, range(200)), pool.map_async(abs, [-1])
    end = pool.terminate
    del pool
    gc.collect()
    assert list(stream) == [x * x for x in range(200)]
    assert handle.get(PATIENCE) == [1]
    end()


def test_it_is_not_passed_on(pool: Pool) -> None:
    with pytest.raises(NotImplementedError, match="cannot be passed between processes"):
        pickle.dumps(pool)


def test_threads_use_it_together(pool: Pool) -> None:
    found: list[list[int]] = []

    def use(number: int) -> None:
        found.append(pool.map(programs.square, [number] * 20))
        found.append(list(pool.imap(programs.square, [number] * 20)))
        found.append([pool.apply(programs.square, (number,))] * 20)

    threads = [threading.Thread(target=use, args=(each,)) for each in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(PATIENCE)
    assert sorted(found) == sorted([[n * n] * 20 for n in range(8) for _ in range(3)])
    until(lambda: not any(each.is_alive() for each in threads), "a thread hangs")
