from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from functools import partial

import pytest
from progress_bars import Recorder, add, double, end_if, invert, threads
from progress_bars import afresh as afresh
from progress_bars import pool as pool
from progress_bars import recorder as recorder
from typing_extensions import override

import pparallel
from pparallel.errors import ClosedError, WorkerLostError
from pparallel.interfaces.pool import Pool
from pparallel.testing.patience import PATIENCE, until
from pparallel.testing.threads import in_threads
from pparallel_process import P2PPoolConfig, ProcessPoolConfig

# -- what is counted ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda pool, items: pool.map(double, items),
        lambda pool, items: pool.map_async(double, items).get(),
        lambda pool, items: pool.starmap(add, [(each, each) for each in items]),
        lambda pool, items: pool.starmap_async(add, [(each, each) for each in items]).get(),
        lambda pool, items: list(pool.imap(double, items)),
        lambda pool, items: sorted(pool.imap_unordered(double, items)),
    ],
)
def test_each_call_of_many_tasks_has_a_bar(
    pool: Pool, recorder: Recorder, call: Callable[[Pool, object], list[int]]
) -> None:
    each_kind: list[range | list[int]] = [range(1), range(300), list(range(40))]
    for items in each_kind:
        assert call(pool, items) == [2 * each for each in items]
        bar = recorder.bars[-1]
        assert bar.name in ("double", "add")
        assert (bar.total, bar.count, bar.closed) == (len(items), len(items), 1)
    assert len(recorder.bars) == len(each_kind)


def test_single_calls_have_none(pool: Pool, recorder: Recorder) -> None:
    assert pool.apply(double, (1,)) == pool.submit(double, 1).result() == 2
    assert pool.map(double, []) == list(pool.imap(double, iter(()))) == []
    assert [each for each in recorder.seen if each[1] != 0 and each[1] is not None] == []


def test_names(pool: Pool, recorder: Recorder) -> None:
    class Doubler:
        def __call__(self, number: int) -> int:
            return 2 * number

    class Refusing(Doubler):
        def __getattr__(self, name: str) -> object:
            raise LookupError(name)

    inner = partial(partial(add, 1), second=2)
    functions: list[Callable[..., int]] = [double, inner, Doubler(), Refusing(), lambda _: 0]
    for func in functions:
        pool.map_async(func, [1]).wait()
    here = "test_names.<locals>."
    names = ["double", "add", f"{here}Doubler", f"{here}Refusing", f"{here}<lambda>"]
    assert [each.name for each in recorder.bars] == names


def test_a_total_that_is_not_known(pool: Pool, recorder: Recorder) -> None:
    class Refusing(list[int]):
        @override
        def __len__(self) -> int:
            raise TypeError

    assert list(pool.imap(double, iter(range(30)))) == list(range(0, 60, 2))
    assert list(pool.imap(double, Refusing([1]))) == [2]
    assert recorder.seen == [("double", None, 30, 1), ("double", None, 1, 1)]
    assert pool.map(double, iter(range(30))) == list(range(0, 60, 2))
    assert recorder.seen[2] == ("double", 30, 30, 1)


def test_it_moves_while_tasks_run(recorder: Recorder) -> None:
    release = threading.Event()

    def wait_for_last(number: int) -> None:
        assert number < 9 or release.wait(PATIENCE)

    name = wait_for_last.__qualname__
    with threads(recorder) as pool:
        result = pool.map_async(wait_for_last, range(10))
        until(lambda: recorder.seen == [(name, 10, 9, 0)], "the bar did not move")
        release.set()
        result.get(PATIENCE)
        assert recorder.seen == [(name, 10, 10, 1)]


def test_a_thread_that_cannot_be_started_is_tried_again(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The one that draws the bars: the next call has one."""
    start, refused, release = threading.Thread.start, list[str](), threading.Event()

    def refuse_once(thread: threading.Thread) -> None:
        if thread.name == "pparallel-bars" and not refused:
            refused.append(thread.name)
            message = "can't start new thread"
            raise RuntimeError(message)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_once)
    with threads(recorder) as pool:
        assert pool.map(double, [1, 2]) == [2, 4]
        assert recorder.bars == []
        result = pool.map_async(release.wait, [0, PATIENCE])
        until(lambda: [each[2] for each in recorder.seen] == [1], "the bar did not move")
        release.set()
        result.get(PATIENCE)
    (record,) = caplog.records
    assert "can't start new thread" in record.getMessage()


# -- processes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [ProcessPoolConfig, P2PPoolConfig])
def test_bars_of_process_pools(
    kind: type[ProcessPoolConfig] | type[P2PPoolConfig], recorder: Recorder
) -> None:
    with pparallel.build(kind(size=2, progress=recorder)) as pool:
        assert pool.map(double, range(300)) == list(range(0, 600, 2))
        assert pool.starmap(add, [(1, 2)] * 5, chunksize=2) == [3] * 5
        assert list(pool.imap(double, range(300))) == list(range(0, 600, 2))
        assert sorted(pool.imap_unordered(double, iter(range(9)))) == list(range(0, 18, 2))
        assert recorder.seen == [
            ("double", 300, 300, 1),
            ("add", 5, 5, 1),
            ("double", 300, 300, 1),
            ("double", None, 9, 1),
        ]
        with pytest.raises(ZeroDivisionError):
            pool.map(invert, [1, 0])
        with pytest.raises(WorkerLostError):
            pool.map(end_if, [0, 1])
        failed = recorder.seen[4:]
        assert [(name, total, closed) for name, total, _, closed in failed] == [
            ("invert", 2, 1),
            ("end_if", 2, 1),
        ]
        abandoned = pool.imap(double, range(10**9))
        assert next(abandoned) == 0
    assert recorder.bars[-1].closed == 1


# -- how it ends ----------------------------------------------------------------------------------


def test_a_map_that_fails(pool: Pool, recorder: Recorder) -> None:
    with pytest.raises(ZeroDivisionError):
        pool.map(invert, [1, 0])
    (bar,) = recorder.bars
    assert (bar.total, bar.closed) == (2, 1)


def test_a_stream_in_which_tasks_fail(pool: Pool, recorder: Recorder) -> None:
    stream = pool.imap(invert, [1, 0, 1])
    assert next(stream) == 1
    with pytest.raises(ZeroDivisionError):
        next(stream)
    assert list(stream) == [1]
    assert recorder.seen == [("invert", 3, 3, 1)]


def test_an_iterable_that_fails(pool: Pool, recorder: Recorder) -> None:
    with pytest.raises(ZeroDivisionError):
        list(pool.imap(double, (1 // each for each in (1, 0))))
    # The thread that ran the task closes the bar after it has handed the result over.
    until(lambda: bool(recorder.seen), "the bar was not closed")
    assert recorder.seen == [("double", None, 1, 1)]


def test_an_abandoned_stream(pool: Pool, recorder: Recorder) -> None:
    stream = pool.imap(double, range(10**9))
    assert next(stream) == 0
    until(lambda: bool(recorder.bars), "no bar was shown")
    del stream
    gc.collect()
    until(lambda: recorder.bars[0].closed == 1, "the bar was not closed")
    assert recorder.bars[0].count < 10**5


def test_a_stream_that_outlives_its_pool(recorder: Recorder) -> None:
    with threads(recorder) as pool:
        stream = pool.imap(double, range(10**9))
        assert next(stream) == 0
    assert recorder.bars[0].closed == 1
    with pytest.raises(ClosedError):
        list(stream)


def test_an_exception_in_with(recorder: Recorder) -> None:
    stopped = threading.Event()
    with pytest.raises(KeyboardInterrupt), threads(recorder) as pool:  # noqa: PT012
        pool.map_async(stopped.wait, [PATIENCE] * 9)
        stream = pool.imap(stopped.wait, [PATIENCE] * 9)
        until(lambda: len(recorder.bars) == 2, "a bar was not shown")
        pool.terminate()
        assert [each.closed for each in recorder.bars] == [1, 1]
        stopped.set()
        raise KeyboardInterrupt
    del stream


def test_a_call_that_never_starts(recorder: Recorder) -> None:
    release = threading.Event()
    with threads(recorder) as pool:
        first = [pool.submit(release.wait, PATIENCE) for _ in range(2)]
        assert pool.map_async(double, range(5)).cancel()
        release.set()
        assert all(each.result() for each in first)
        pool.close()
        for call in (pool.map, pool.imap):
            with pytest.raises(ClosedError):
                call(double, range(5))
    assert recorder.bars == []


def test_nested_and_at_once(recorder: Recorder) -> None:
    with threads(recorder) as pool:

        def nested(number: int) -> int:
            return sum(pool.map(double, range(number)))

        def use(_: int) -> None:
            assert pool.map(nested, [3, 4]) == [6, 12]

        in_threads(5, use)
    counts = sorted(each[1:] for each in recorder.seen)
    assert counts == sorted([(2, 2, 1), (3, 3, 1), (4, 4, 1)] * 5)
