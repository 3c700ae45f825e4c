"""No test of a suite waits for ever, whatever its backend does."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from pparallel.testing import patience
from pparallel.testing.gate import Gate
from pparallel.testing.patience import PATIENCE, ends_within
from pparallel.testing.threads import in_threads

pytest_plugins = ["pytester"]

Alarm = Callable[[int, FrameType | None], None]


@pytest.fixture
def no_alarm() -> Iterator[None]:
    """Take back, for this test, the timer of whoever limits this run."""
    handler = signal.signal(signal.SIGALRM, signal.SIG_DFL)
    timer = signal.setitimer(signal.ITIMER_REAL, 0)
    yield
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, *timer)


def wait() -> None:
    threading.Event().wait(PATIENCE)


def wait_twice() -> None:
    with ends_within(0.05):
        try:
            wait()
        finally:
            wait()


def test_a_suite_ends_whatever_hangs(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import threading
        import pytest
        from pparallel.testing import Suite
        from pparallel.testing import patience

        patience._AGAIN = 0.1

        class TestWord(Suite):
            interface = "word"
            limit = 0.2

            @pytest.fixture
            def stuck_at_the_end(self):
                yield
                threading.Event().wait()

            def test_stuck(self):
                threading.Event().wait()

            def test_stuck_again_and_again(self, stuck_at_the_end):
                try:
                    threading.Lock().acquire()
                    threading.Event().wait()
                finally:
                    threading.Event().wait()

        class TestSound(Suite):
            interface = "word"

            def test_sound(self):
                assert True
        """
    )
    options = ["-k", "stuck or sound", "-p", "no:cacheprovider", "-p", "no:timeout"]
    result = pytester.runpytest_subprocess(*options)
    outcomes = result.parseoutcomes()
    assert (outcomes["passed"], outcomes["failed"]) == (1, 2)
    assert outcomes["errors"] in (1, 2)  # a busy computer may take its time to end the first, too
    result.stdout.fnmatch_lines(["*the test did not end within 0.2 s*"])


@pytest.mark.usefixtures("no_alarm")
def test_what_goes_on_is_interrupted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "_AGAIN", 0.05)
    with pytest.raises(pytest.fail.Exception, match=r"within 0\.05 s") as caught:
        wait_twice()
    assert isinstance(caught.value.__context__, pytest.fail.Exception)
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL


@pytest.mark.usefixtures("no_alarm")
def test_a_later_alarm_of_others_stays() -> None:
    def ring(_: int, frame: FrameType | None) -> None: ...

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 100, 7)
    with pytest.raises(pytest.fail.Exception), ends_within(0.05):
        wait()
    left, interval = signal.setitimer(signal.ITIMER_REAL, 0)
    assert 50 < left < 100
    assert interval == 7
    assert signal.getsignal(signal.SIGALRM) is ring


@pytest.mark.usefixtures("no_alarm")
def test_an_earlier_alarm_of_others_rings() -> None:
    rung = threading.Event()
    signal.signal(signal.SIGALRM, lambda _, frame: rung.set())
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    with ends_within(PATIENCE):
        assert rung.wait(PATIENCE)


@pytest.mark.usefixtures("no_alarm")
def test_other_threads_have_no_limit() -> None:
    def work(number: int) -> bool:
        with ends_within(0.01):
            return threading.Event().wait(0.05)

    assert in_threads(1, work) == [False]


@pytest.mark.usefixtures("no_alarm")
def test_who_debugs_has_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "_AGAIN", 0.02)
    debugger: dict[str, Any] = {"__name__": "pdb", "wait": threading.Event().wait}
    exec("def interact():\n    return wait(0.2)", debugger)
    with ends_within(0.02):
        assert debugger["interact"]() is False


def test_tasks_that_do_not_arrive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pparallel.testing.gate.PATIENCE", 0.05)
    gate = Gate(tmp_path)
    with pytest.raises(AssertionError, match="1 more tasks did not arrive"):
        gate.arrived()
    gate.close()
