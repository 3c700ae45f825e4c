from __future__ import annotations

import gc
import io
import logging
import os
import subprocess
import sys
import textwrap
import threading
import types
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

import pparallel
from pparallel.errors import ClosedError, ConfigError, WorkerLostError
from pparallel.interfaces.pool import Pool, PoolConfig
from pparallel.runtime import bars
from pparallel.runtime.bars import meter
from pparallel.testing.patience import PATIENCE, until
from pparallel.testing.threads import in_threads
from pparallel_local import SerialPoolConfig, ThreadPoolConfig
from pparallel_process import P2PPoolConfig, ProcessPoolConfig


def double(number: int) -> int:
    return 2 * number


def add(first: int, second: int) -> int:
    return first + second


def invert(number: int) -> float:
    return 1 / number


def end_if(number: int) -> None:
    if number:
        os._exit(3)


class Recorded:
    """A bar that notes what it is told."""

    def __init__(self, name: str, total: int | None) -> None:
        self.name = name
        self.total = total
        self.count = 0
        self.closed = 0

    def update(self, n: int, /) -> None:
        assert n > 0
        assert not self.closed
        self.count += n

    def close(self) -> None:
        self.closed += 1


class Recorder:
    """Makes bars, and keeps them."""

    def __init__(self) -> None:
        self.bars: list[Recorded] = []

    def __call__(self, name: str, total: int | None) -> Recorded:
        self.bars.append(Recorded(name, total))
        return self.bars[-1]

    @property
    def seen(self) -> list[tuple[str, int | None, int, int]]:
        return [(each.name, each.total, each.count, each.closed) for each in self.bars]


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture(autouse=True)
def _afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is said once is said once in each test."""
    monkeypatch.setattr(bars, "_refused", set())
    monkeypatch.setattr(meter, "_failed", False)


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
@pytest.mark.parametrize("items", [range(1), range(300), list(range(40))])
def test_each_call_of_many_tasks_has_a_bar(
    pool: Pool,
    recorder: Recorder,
    call: Callable[[Pool, object], list[int]],
    items: range | list[int],
) -> None:
    assert call(pool, items) == [2 * each for each in items]
    (bar,) = recorder.bars
    assert bar.name in ("double", "add")
    assert (bar.total, bar.count, bar.closed) == (len(items), len(items), 1)


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


# -- whose bar ------------------------------------------------------------------------------------


def test_the_look_of_tqdm(capsys: pytest.CaptureFixture[str]) -> None:
    with threads(progress=True) as pool:
        assert pool.map(double, range(50)) == list(range(0, 100, 2))
        assert list(pool.imap(double, iter(()))) == []
        sys.stdout.write("after\n")
    out, err = capsys.readouterr()
    assert out == "after\n"
    assert "double: 100%|██████████| 50/50 [" in err.replace("#", "█")
    assert err.endswith("\n")


def test_several_bars_of_tqdm(capsys: pytest.CaptureFixture[str]) -> None:
    with threads("tqdm") as pool:
        in_threads(4, lambda _: pool.map(double, range(30)))
        stream = pool.imap(double, range(10**6))
        assert next(stream) == 0
        del stream
    assert capsys.readouterr().err.count("30/30") >= 4
    assert "tqdm_monitor" not in [each.name for each in threading.enumerate()]


def test_the_look_of_rich(capsys: pytest.CaptureFixture[str]) -> None:
    with threads("rich") as pool:
        in_threads(3, lambda _: pool.map(double, range(30)))
        assert list(pool.imap(double, iter(()))) == []
        with pytest.raises(ZeroDivisionError):
            pool.map(invert, [0])
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("30/30") == 3
    assert "invert" in err


def test_a_bar_of_rich_that_cannot_be_made_leaves_no_display(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from rich.progress import Progress

    shown: list[Progress] = []
    start, stop, add_task = Progress.start, Progress.stop, Progress.add_task

    def started(progress: Progress) -> None:
        shown.append(progress)
        start(progress)

    def stopped(progress: Progress) -> None:
        shown.remove(progress)
        stop(progress)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Progress, "start", started)
    monkeypatch.setattr(Progress, "stop", stopped)
    monkeypatch.setattr(Progress, "add_task", refuse)
    with threads("rich") as pool:
        assert pool.map(double, range(3)) == [0, 2, 4]
        assert shown == []
        monkeypatch.setattr(Progress, "add_task", add_task)
        assert pool.map(double, range(3)) == [0, 2, 4]
        assert shown == []


def test_the_bar_of_a_notebook_without_widgets(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    monkeypatch.setitem(sys.modules, "tqdm.notebook", None)
    del sys.modules["tqdm.notebook"]  # to be loaded afresh, and forgotten after the test
    with threads("notebook") as pool:
        assert pool.map(double, range(3)) == [0, 2, 4]
        assert pool.map(double, range(3)) == [0, 2, 4]
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "No progress bars: " in record.getMessage()


def test_the_bar_of_a_notebook(monkeypatch: pytest.MonkeyPatch, recorder: Recorder) -> None:
    class Widget:
        __module__ = "tqdm.notebook"

        def __init__(self, total: int | None, desc: str, **_: object) -> None:
            self._bar = recorder(desc, total)

        def update(self, n: int, /) -> None:
            self._bar.update(n)

        def close(self) -> None:
            self._bar.close()

    notebook: Any = types.ModuleType("tqdm.notebook")
    notebook.tqdm, notebook.IProgress, notebook.WARN_NOIPYW = Widget, object, ""
    monkeypatch.setitem(sys.modules, "tqdm.notebook", notebook)
    with threads("notebook") as pool:
        assert pool.map(double, range(30)) == list(range(0, 60, 2))
        with pytest.raises(ZeroDivisionError):
            pool.map(invert, [0])
    assert recorder.seen == [("double", 30, 30, 1), ("invert", 1, 1, 1)]


@pytest.mark.parametrize("progress", [True, "tqdm", "notebook"])
def test_without_tqdm(
    progress: object, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for module in ("tqdm", "tqdm.auto", "tqdm.notebook", "tqdm.utils"):
        monkeypatch.setitem(sys.modules, module, None)
    for _ in range(2):
        with threads(progress) as pool:
            assert pool.map(double, range(3)) == [0, 2, 4]
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "pip install 'pparallel[progress]'" in record.getMessage()


@pytest.mark.parametrize("progress", ["tqdm", "rich"])
@pytest.mark.parametrize("closed", [True, False])
def test_an_odd_terminal(
    progress: str, closed: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Full(io.StringIO):
        @override
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    with threads(progress) as pool:
        stream: io.StringIO = io.StringIO() if closed else Full()
        if closed:
            stream.close()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stderr", stream)
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


def test_no_bars_in_a_worker(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bars, "_hidden", False)
    bars.hide()
    with threads(recorder) as pool:
        assert pool.map(double, range(3)) == [0, 2, 4]
    assert recorder.bars == []


def test_what_is_no_bar() -> None:
    for value in ("tqmd", 3, None):
        with pytest.raises(ConfigError, match="a progress bar is true, false, 'tqdm', 'notebook'"):
            pparallel.load(PoolConfig, {"backend": "thread", "progress": value})
    for value in (True, False, "rich"):
        config = pparallel.load(PoolConfig, {"backend": "thread", "progress": value})
        assert config.progress is value or config.progress == value


def test_an_interrupted_program(tmp_path: Path) -> None:
    """Ctrl-C in the middle of a stream: the bar is closed before the traceback."""
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
            import os, signal, time
            import pparallel
            from pparallel_local import ThreadPoolConfig

            with pparallel.build(ThreadPoolConfig(size=2, progress="tqdm")) as pool:
                for number in pool.imap(abs, range(10**9)):
                    if number == 100:
                        os.kill(os.getpid(), signal.SIGINT)
        """)
    )
    done = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode != 0
    bar, _, traceback = done.stderr.partition("Traceback")
    assert "abs:   0%|" in bar
    assert bar.endswith("\n")
    assert traceback.rstrip().endswith("KeyboardInterrupt")
