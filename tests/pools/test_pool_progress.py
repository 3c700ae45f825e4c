"""Progress bars of pools: what they count, when they end, and how they look."""

from __future__ import annotations

import gc
import io
import logging
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from progress_bars import Recorded, Recorder, add, double, end_if, invert
from typing_extensions import override

import pparallel
from pparallel.errors import ClosedError, ConfigError, WorkerLostError
from pparallel.interfaces.pool import Pool, PoolConfig
from pparallel.runtime import bars
from pparallel.testing.patience import PATIENCE, until
from pparallel.testing.threads import in_threads
from pparallel_local import SerialPoolConfig, ThreadPoolConfig
from pparallel_process import P2PPoolConfig, ProcessPoolConfig


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture(autouse=True)
def _told_afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bars, "_told", set())


@pytest.fixture(params=[SerialPoolConfig, ThreadPoolConfig])
def pool(request: pytest.FixtureRequest, recorder: Recorder) -> Iterator[Pool]:
    with pparallel.build(request.param(size=2, progress=recorder)) as pool:
        yield pool


def threads(progress: object) -> Pool:
    return pparallel.build(ThreadPoolConfig.model_validate({"size": 2, "progress": progress}))


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
    for items in (range(1), range(300)):
        assert call(pool, items) == [2 * each for each in items]
        bar = recorder.bars.pop()
        assert bar.name in ("double", "add")
        assert (bar.total, bar.count, bar.closed) == (len(items), len(items), 1)
        assert not recorder.bars
    assert pool.apply(double, (1,)) == pool.submit(double, 1).result() == 2
    assert pool.map(double, []) == []
    assert not recorder.bars  # single calls have none


def test_names(pool: Pool, recorder: Recorder) -> None:
    class Refusing:
        def __call__(self, number: int) -> int:
            return 2 * number

        def __getattr__(self, name: str) -> object:
            raise LookupError(name)

    inner = partial(partial(add, 1), second=2)
    functions: list[Callable[..., int]] = [double, inner, Refusing(), lambda _: 0]
    for func in functions:
        pool.map_async(func, [1]).wait()
    here = "test_names.<locals>."
    assert [each.name for each in recorder.bars] == [
        "double",
        "add",
        f"{here}Refusing",
        f"{here}<lambda>",
    ]


def test_a_total_that_is_not_known(pool: Pool, recorder: Recorder) -> None:
    class Refusing(list[int]):
        @override
        def __len__(self) -> int:
            raise TypeError

    assert list(pool.imap(double, iter(range(30)))) == list(range(0, 60, 2))
    assert list(pool.imap(double, Refusing([1]))) == [2]
    assert pool.map(double, iter(range(30))) == list(range(0, 60, 2))
    totals = [(None, 30), (None, 1), (30, 30)]
    assert recorder.seen == [("double", total, count, 1) for total, count in totals]


def test_it_moves_while_tasks_run(recorder: Recorder) -> None:
    release = threading.Event()
    with threads(recorder) as pool:
        result = pool.map_async(lambda number: number < 9 or release.wait(PATIENCE), range(10))
        until(lambda: [each[1:] for each in recorder.seen] == [(10, 9, 0)], "it did not move")
        release.set()
        result.get(PATIENCE)
        assert [each[1:] for each in recorder.seen] == [(10, 10, 1)]


@pytest.mark.parametrize("kind", [ProcessPoolConfig, P2PPoolConfig])
def test_bars_of_process_pools(kind: Any, recorder: Recorder) -> None:
    with pparallel.build(kind(size=2, progress=recorder)) as pool:
        assert pool.map(double, range(300)) == list(range(0, 600, 2))
        assert pool.starmap(add, [(1, 2)] * 5, chunksize=2) == [3] * 5
        assert sorted(pool.imap_unordered(double, iter(range(9)))) == list(range(0, 18, 2))
        whole = [("double", 300, 300, 1), ("add", 5, 5, 1), ("double", None, 9, 1)]
        assert recorder.seen == whole
        with pytest.raises(ZeroDivisionError):
            pool.map(invert, [1, 0])
        with pytest.raises(WorkerLostError):
            pool.map(end_if, [0, 1])
        abandoned = pool.imap(double, range(10**9))
        assert next(abandoned) == 0
    assert [each.closed for each in recorder.bars[3:]] == [1, 1, 1]


def test_no_bars_in_a_worker(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bars, "_hidden", False)
    bars.hide()
    with threads(recorder) as pool:
        assert pool.map(double, range(3)) == [0, 2, 4]
    assert recorder.bars == []


# -- how it ends ----------------------------------------------------------------------------------


def test_calls_that_fail(pool: Pool, recorder: Recorder) -> None:
    with pytest.raises(ZeroDivisionError):
        pool.map(invert, [1, 0])
    stream = pool.imap(invert, [1, 0, 1])
    assert next(stream) == 1
    with pytest.raises(ZeroDivisionError):
        next(stream)
    assert list(stream) == [1]
    with pytest.raises(ZeroDivisionError):
        list(pool.imap(double, (1 // each for each in (1, 0))))
    # The thread that ran the task closes the bar after it has handed the result over.
    until(lambda: [each.closed for each in recorder.bars] == [1, 1, 1], "a bar was not closed")
    assert recorder.seen[1:] == [("invert", 3, 3, 1), ("double", None, 1, 1)]


def test_an_abandoned_stream(pool: Pool, recorder: Recorder) -> None:
    stream = pool.imap(double, range(10**9))
    assert next(stream) == 0
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


def test_a_pool_that_is_terminated(recorder: Recorder) -> None:
    stopped = threading.Event()
    with threads(recorder) as pool:
        pool.map_async(stopped.wait, [PATIENCE] * 9)
        stream = pool.imap(stopped.wait, [PATIENCE] * 9)
        until(lambda: len(recorder.bars) == 2, "a bar was not shown")
        pool.terminate()
        assert [each.closed for each in recorder.bars] == [1, 1]
        stopped.set()
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

        in_threads(3, lambda _: pool.map(nested, [3, 4]))
    assert sorted(each[1:] for each in recorder.seen) == sorted(
        [(2, 2, 1), (3, 3, 1), (4, 4, 1)] * 3
    )


# -- whose they are -------------------------------------------------------------------------------


@pytest.mark.parametrize("progress", [True, "tqdm", "rich"])
def test_how_bars_look(progress: object, capsys: pytest.CaptureFixture[str]) -> None:
    with threads(progress) as pool:
        in_threads(3, lambda _: pool.map(double, range(30)))
        assert list(pool.imap(double, iter(()))) == []
        with pytest.raises(ZeroDivisionError):
            pool.map(invert, [0])
        names = {each.name for each in threading.enumerate()}
        assert not any("tqdm" in each or "rich" in each for each in names)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("30/30") >= 3
    assert "invert" in err
    assert "double: 100%|" in err or progress == "rich"


def noting(calls: list[str], method: Callable[..., None]) -> Callable[..., None]:
    def note(*args: object) -> None:
        calls.append(method.__name__)
        method(*args)

    return note


def test_a_bar_of_rich_that_cannot_be_made_leaves_no_display(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from rich.progress import Progress

    shown: list[str] = []
    for method in (Progress.start, Progress.stop):
        monkeypatch.setattr(Progress, method.__name__, noting(shown, method))
    with threads("rich") as pool:
        for broken in ("add_task", "advance", "refresh"):
            with monkeypatch.context() as patch:
                patch.setattr(Progress, broken, None)
                assert pool.map(double, range(3)) == [0, 2, 4]
        assert pool.map(double, range(3)) == [0, 2, 4]
    assert shown == ["start", "stop"] * 4


def test_the_bar_of_a_notebook(monkeypatch: pytest.MonkeyPatch, recorder: Recorder) -> None:
    class Widget:
        __module__ = "tqdm.notebook"

        def __init__(self, total: int | None, desc: str) -> None:
            self._bar = recorder(desc, total)
            self.update, self.close = self._bar.update, self._bar.close

    notebook: Any = types.ModuleType("tqdm.notebook")
    notebook.tqdm, notebook.IProgress, notebook.WARN_NOIPYW = Widget, object, ""
    monkeypatch.setitem(sys.modules, "tqdm.notebook", notebook)
    with threads("notebook") as pool:
        assert pool.map(double, range(30)) == list(range(0, 60, 2))
    assert recorder.seen == [("double", 30, 30, 1)]


@pytest.mark.parametrize(
    ("progress", "missing"),
    [(True, "tqdm.auto"), ("tqdm", "tqdm"), ("notebook", "ipywidgets"), ("rich", "rich.progress")],
)
def test_without_tqdm(
    progress: object, missing: str, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delitem(sys.modules, "tqdm.notebook", raising=False)
    for _ in range(2):
        with threads(progress) as pool:
            assert pool.map(double, range(3)) == [0, 2, 4]
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "No progress bars: " in record.getMessage()
    assert "pip install 'pparallel[progress]'" in record.getMessage()


class Full(io.StringIO):
    @override
    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


def closed() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("progress", ["tqdm", "rich"])
@pytest.mark.parametrize("make", [Full, closed, lambda: None])
def test_an_odd_terminal(
    progress: str, make: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with threads(progress) as pool, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", make())
        in_threads(2, lambda _: pool.map(double, range(300)))
        assert pool.map(double, range(3)) == [0, 2, 4]
        assert list(pool.imap(double, range(3))) == [0, 2, 4]
    assert len(caplog.records) <= 1


def test_a_bar_that_raises(caplog: pytest.LogCaptureFixture) -> None:
    class Faulty(Recorded):
        @override
        def update(self, n: int, /) -> None:
            message = "no ink"
            raise RuntimeError(message)

    def refuse(name: str, total: int | None) -> Recorded:
        raise ValueError(name)

    for make in (Faulty, refuse):
        with threads(make) as pool:
            for _ in range(2):
                assert pool.map(double, range(300)) == list(range(0, 600, 2))
                assert list(pool.imap(double, range(300))) == list(range(0, 600, 2))
    (record,) = caplog.records
    assert "RuntimeError: no ink" in record.getMessage()


def test_what_is_no_bar() -> None:
    for value in ("tqmd", 3, None):
        with pytest.raises(ConfigError, match="a progress bar is true, false, 'tqdm', 'notebook'"):
            pparallel.load(PoolConfig, {"backend": "thread", "progress": value})
    for value in (True, False, "rich"):
        assert (
            pparallel.load(PoolConfig, {"backend": "thread", "progress": value}).progress is value
        )


INTERRUPTED = """
import os, signal
import pparallel
from pparallel_local import ThreadPoolConfig

with pparallel.build(ThreadPoolConfig(size=2, progress="tqdm")) as pool:
    for number in pool.imap(abs, range(10**9)):
        if number == 100:
            os.kill(os.getpid(), signal.SIGINT)
"""


def test_an_interrupted_program() -> None:
    """Ctrl-C in the middle of a stream: the bar is closed before the traceback."""
    command = [sys.executable, "-c", INTERRUPTED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    bar, _, traceback = done.stderr.partition("Traceback")
    assert "abs:   0%|" in bar
    assert bar.endswith("\n")
    assert traceback.rstrip().endswith("KeyboardInterrupt")
