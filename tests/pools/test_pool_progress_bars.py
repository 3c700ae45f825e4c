"""Whose bar a pool shows, and how it looks."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
import textwrap
import threading
import types
from pathlib import Path
from typing import Any

import pytest
from progress_bars import Recorded, Recorder, double, invert, threads
from progress_bars import afresh as afresh
from progress_bars import pool as pool
from progress_bars import recorder as recorder
from typing_extensions import override

import pparallel
from pparallel.errors import ConfigError
from pparallel.interfaces.pool import PoolConfig
from pparallel.runtime import bars
from pparallel.testing.threads import in_threads


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
