"""What CPython documents, and its own tests check, of ``multiprocessing.Pool``, on our pools.

Source: CPython, Lib/test/_test_multiprocessing.py, ``_TestPool`` and its neighbours.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, as_completed, wait
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from process_backends import BACKENDS, gate_in, pool_of
from typing_extensions import override

import pparallel
from pparallel.errors import ClosedError, ConfigError, RemoteError
from pparallel.testing.gate import Gate
from pparallel.testing.patience import PATIENCE, until, until_gone
from pparallel.testing.pool.tasks import own_pid_of, same

Make = Callable[..., pparallel.Pool]


@pytest.fixture
def make() -> Make:
    return partial(pool_of, "process")


@pytest.fixture
def pool(make: Make) -> Iterator[pparallel.Pool]:
    with make() as pool:
        yield pool


class SayWhenError(ValueError):
    """What iterables raise."""


def numbers(total: int, when: int) -> Iterator[int]:
    if when == -1:
        raise SayWhenError("somebody said when")
    for each in range(total):
        if each == when:
            raise SayWhenError("somebody said when")
        yield each


class Endless:
    """Says that it has one item, and raises as it is asked for it."""

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        raise SayWhenError

    def __len__(self) -> int:
        return 1


class Counted:
    """Counts its instances in this process."""

    alive = 0

    def __init__(self) -> None:
        type(self).alive += 1

    @override
    def __reduce__(self) -> Any:
        return Counted, ()

    def __del__(self) -> None:
        type(self).alive -= 1


def square(x: int, pause: float = 0.0) -> int:
    threading.Event().wait(pause)
    return x * x


def add(x: int, y: int) -> int:
    return x + y


def large(x: int) -> bytes:
    if x == 0:
        raise SayWhenError
    return bytes(1 << 20)


def fail(kind: str) -> None:
    if kind == "none":
        return
    try:
        raise SayWhenError("first")
    except SayWhenError as error:
        if kind == "from":
            raise LookupError("second") from error
        if kind == "from none":
            raise LookupError("second") from None
        raise


def fail_after(gate: Gate, number: int) -> None:
    if number == 0:
        gate.pass_through()
        raise SayWhenError
    raise LookupError


# -- calls and callbacks -----------------------------------------------------------------------


def test_apply(pool: pparallel.Pool) -> None:
    assert pool.apply(square, (5,)) == 25
    assert pool.apply(square, (), {"x": 3}) == 9
    assert pool.apply_async(square, (7, 0.01)).get() == 49


def test_map_and_starmap(pool: pparallel.Pool) -> None:
    assert pool.map(square, list(range(10))) == [x * x for x in range(10)]
    assert pool.map(square, range(100), chunksize=20) == [x * x for x in range(100)]
    pairs = list(zip(range(100), range(99, -1, -1), strict=True))
    assert pool.starmap(add, pairs, chunksize=20) == [99] * 100
    assert pool.starmap_async(add, pairs).get() == [99] * 100
    assert pool.map_async(square, [], chunksize=1).get(PATIENCE) == []


def test_callbacks_come_in_order_and_before_the_result(pool: pparallel.Pool) -> None:
    called: list[object] = []
    for at in range(20):
        handle = pool.map_async(square, [at], callback=called.append)
        assert handle.get(PATIENCE) == called[-1]
    assert called == [[x * x] for x in range(20)]
    errors: list[BaseException] = []
    failing = pool.map_async(fail, ["plain"], None, called.append, errors.append)
    failing.wait(PATIENCE)
    assert errors == [failing.exception(0)]
    assert len(called) == 20


def test_callbacks_that_are_slow_hold_nobody_up(pool: pparallel.Pool) -> None:
    released, called = threading.Event(), threading.Event()

    def block(_: object) -> None:
        called.set()
        released.wait(PATIENCE)

    handle = pool.apply_async(square, (1,), callback=block)
    thread = threading.Thread(target=handle.wait, args=(PATIENCE,))
    thread.start()
    assert called.wait(PATIENCE)
    assert not handle.ready()
    released.set()
    thread.join()
    assert handle.ready()


def test_a_callback_may_want_a_lock_that_is_held_where_work_is_handed_over(
    pool: pparallel.Pool,
) -> None:
    # one that is done already calls back at once, in the thread that holds the lock
    lock, called = threading.RLock(), list[object]()

    def note(_: object) -> None:
        with lock:
            called.append(1)

    def hand_over() -> None:
        for n in range(100):
            with lock:
                pool.apply_async(square, (n,), callback=note)
                pool.submit(square, n).add_done_callback(note)

    thread = threading.Thread(target=hand_over, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    until(lambda: len(called) == 200, "not all were called")


def test_a_callback_may_use_the_pool(pool: pparallel.Pool) -> None:
    handles: list[Any] = []
    first = pool.apply_async(
        square, (3,), callback=lambda x: handles.append(pool.submit(square, x))
    )
    assert first.get(PATIENCE) == 9
    assert handles[0].result(PATIENCE) == 81


def test_futures_are_those_of_the_library(pool: pparallel.Pool) -> None:
    futures = [pool.submit(square, each) for each in range(50)]
    assert sorted(each.result() for each in as_completed(futures, PATIENCE)) == [
        x * x for x in range(50)
    ]
    slow = [pool.submit(square, each, 0.01) for each in range(10)]
    done, rest = wait(slow, PATIENCE, FIRST_COMPLETED)
    assert done
    assert wait(rest, PATIENCE).not_done == set()


# -- failures ----------------------------------------------------------------------------------


def test_map_with_an_iterable_that_raises(pool: pparallel.Pool) -> None:
    for iterable in (Endless(), numbers(10, -1), numbers(10, 4)):
        with pytest.raises(SayWhenError):
            pool.map(square, iterable)
    for chunksize in (1, 2, 7):
        with pytest.raises(SayWhenError):
            pool.map(square, Endless(), chunksize)
        with pytest.raises(SayWhenError):
            pool.map_async(square, numbers(10, 3), chunksize)
    assert pool.map(square, [2]) == [4]


@pytest.mark.parametrize("chunksize", [1, 2, 4])
def test_imap_with_an_iterable_that_raises(pool: pparallel.Pool, chunksize: int) -> None:
    for when in (-1, 0, 1, 3, 9):
        found: list[int] = []
        with pytest.raises(SayWhenError):
            found.extend(iter(pool.imap(square, numbers(10, when), chunksize)))
        assert found == [x * x for x in range(max(when, 0))]
        stream, unordered = pool.imap_unordered(square, numbers(10, when), chunksize), []
        errors = 0
        while errors < 2:  # it comes at any place, once, and no result is lost
            try:
                unordered.append(next(stream))
            except StopIteration:
                break
            except SayWhenError:
                errors += 1
        assert (sorted(unordered), errors) == (found, 1)


def test_the_rest_of_a_failed_map_harms_nobody(pool: pparallel.Pool) -> None:
    with pytest.raises(SayWhenError):
        pool.map(large, [1, 2, 0, *range(1, 30)])
    assert pool.map(square, range(10)) == [x * x for x in range(10)]


def test_the_error_of_a_map_is_the_first(make: Make) -> None:
    """One worker runs the tasks in order; of several, it is the first that is heard of."""
    with make(size=1) as pool:
        for _ in range(5):
            for kinds in (["plain", "from"], ["from", "plain"]):
                expected = SayWhenError if kinds[0] == "plain" else LookupError
                for items in (kinds, ["none", *kinds, "none"], ["none"] * 200 + kinds):
                    with pytest.raises((SayWhenError, LookupError)) as caught:
                        pool.map(fail, items)
                    assert type(caught.value) is expected, items


def test_the_error_of_a_map_is_the_first_that_is_heard_of(make: Make, tmp_path: Path) -> None:
    with gate_in(tmp_path / "gate") as gate, make() as pool:
        handle = pool.map_async(partial(fail_after, gate), range(2))
        with pytest.raises(LookupError):  # though the task before it has not ended
            handle.get(PATIENCE)
        gate.open()
        assert pool.map(square, [2]) == [4]


def test_tracebacks_come_along(pool: pparallel.Pool) -> None:
    for kind in ("plain", "from", "from none"):
        with pytest.raises((SayWhenError, LookupError)) as caught:
            pool.apply(fail, (kind,))
        assert isinstance(caught.value.__cause__, RemoteError)
        text = "".join(traceback.format_exception(caught.value))
        assert "in fail" in text
        assert ('raise SayWhenError("first")' in text) == (kind != "from none")


def test_a_pool_of_no_size() -> None:
    for config in BACKENDS.values():
        for size in (0, -1):
            with pytest.raises(ConfigError, match="size"):
                config(size=size)
        with pytest.raises(ConfigError, match="max_tasks"):
            config(max_tasks=0)


# -- references and the end --------------------------------------------------------------------


def test_no_reference_to_finished_tasks_is_kept(pool: pparallel.Pool) -> None:
    for call in (pool.map, pool.imap, pool.imap_unordered):
        objects = [Counted() for _ in range(10)]
        references = [weakref.ref(each) for each in objects]
        assert len(list(call(same, objects))) == 10
        objects.clear()
        until(lambda: not any(each() for each in references), "arguments were not dropped")  # noqa: B023
    until(lambda: gc.collect() >= 0 and Counted.alive == 0, "results were not dropped")
    assert pool.map(count_alive, range(4)) == [0] * 4, "a worker keeps an argument"


def count_alive(_: object) -> int:
    gc.collect()
    return Counted.alive


def test_what_fails_is_not_kept_either(pool: pparallel.Pool) -> None:
    value = Counted()
    reference = weakref.ref(value)
    with pytest.raises(TypeError):
        pool.apply(square, (value,))
    del value
    until(lambda: gc.collect() >= 0 and reference() is None, "the argument was not dropped")


def test_a_pool_that_is_not_closed_warns(make: Make) -> None:
    pools = [make()]
    pools[0].open()
    assert pools[0].apply(square, (2,)) == 4
    pids = pools[0].map(own_pid_of, range(4))
    with pytest.warns(ResourceWarning, match="Pool"):
        collect(pools)
    until_gone(*pids)


def test_a_pool_that_is_ended_does_not_warn(make: Make) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for end in ("close", "terminate"):
            pool = make()
            pool.open()
            assert pool.apply(square, (2,)) == 4
            getattr(pool, end)()
            pool.join()
            del pool
            gc.collect()


def collect(pools: list[pparallel.Pool]) -> None:
    pools.clear()
    gc.collect()


def test_a_stream_keeps_its_pool(make: Make) -> None:
    """Source: CPython's issue 38501."""
    pool = make()
    pool.open()
    stream = pool.imap(square, range(2000))
    ends = [pool.close, pool.join]
    del pool
    gc.collect()
    assert list(stream) == [x * x for x in range(2000)]
    for each in ends:
        each()


def test_terminate_does_not_wait(pool: pparallel.Pool) -> None:
    handle = pool.map_async(square, range(10_000), callback=print)
    slow = pool.starmap_async(square, [(each, 60.0) for each in range(100)])
    pool.terminate()
    joined = threading.Thread(target=pool.join)
    joined.start()
    joined.join(PATIENCE)
    assert not joined.is_alive()
    assert isinstance(slow.exception(0), ClosedError)
    assert handle.ready()


def test_close_waits_for_what_was_taken(make: Make) -> None:
    pool = make(max_tasks=2)
    pool.open()
    handles = [pool.apply_async(square, (each, 0.001)) for each in range(40)]
    pool.close()
    pool.join()
    assert [each.get(0) for each in handles] == [x * x for x in range(40)]


def test_workers_run_their_exit_handlers(make: Make, tmp_path: Path) -> None:
    """Source: CPython's issue 83856."""
    path = tmp_path / "said"
    with make(size=1) as pool:
        pool.apply(say_at_exit, (str(path),))
    assert path.read_text() == "goodbye"


def say_at_exit(path: str) -> None:
    import atexit

    atexit.register(Path(path).write_text, "goodbye")


def test_a_program_that_forgets_its_pool_ends() -> None:
    """It neither hangs nor leaves workers; the warning is Python's to show or not."""
    program = """
import pparallel, pparallel_process
pool = pparallel.build(pparallel_process.ProcessPoolConfig(size=2))
pool.open()
print(pool.map(abs, [-1, -2]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "[1, 2]\n"), done.stderr
    assert "Traceback" not in done.stderr
