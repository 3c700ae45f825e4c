"""Starting processes, and how they end."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import psutil
import pytest
from process_children import TARGET, child, each_method, line, outcome

from pparallel.errors import ClosedError
from pparallel.runtime import processes
from pparallel.runtime.processes import StartMethod
from pparallel.runtime.processes.process import readable
from pparallel.testing.patience import PATIENCE

MB = 2**20


@each_method
def test_a_child_gets_its_payload_and_its_descriptors(method: StartMethod) -> None:
    pipes = [os.pipe() for _ in range(3)]
    for number, (_, writer) in enumerate(pipes):
        os.write(writer, b"%d" % number)
    code = "say(*(os.read(each, 9).decode() for each in fds[:-1]), os.getpid())"
    try:
        with child(f"import os; {code}", [each for each, _ in reversed(pipes)], method=method) as (
            process,
            reader,
        ):
            assert line(reader) == f"2 1 0 {process.pid}"
            assert process.pid != os.getpid()
    finally:
        for each in pipes:
            os.close(each[0])
            os.close(each[1])


@each_method
def test_a_payload_may_be_large(method: StartMethod) -> None:
    code = f"data = '{'x' * 3 * MB}end'; say(len(data), data[-3:])"
    assert outcome(code, method=method)[0] == [f"{3 * MB + 3} end"]


ENDS = {
    "pass": 0,
    "raise SystemExit": 0,
    "raise SystemExit(3)": 3,
    "import os; os._exit(5)": 5,
    "import os; os.abort()": -signal.SIGABRT,
    "import ctypes; ctypes.string_at(0)": -signal.SIGSEGV,
    "import os; os.kill(os.getpid(), 15)": -signal.SIGTERM,
    "import atexit; atexit.register(say, 'by atexit'); raise SystemExit(7)": 7,
}


@each_method
def test_exit_codes(method: StartMethod, capfd: pytest.CaptureFixture[str]) -> None:
    for code, expected in ENDS.items():
        said, ended = outcome(code, method=method)
        assert ended.code == expected, code
        assert said == (["by atexit"] if "atexit" in code else [])
    capfd.readouterr()  # where faulthandler is on, it tells of the signals


WRONG = {
    "raise SystemExit('no more tea')": "no more tea",
    "{}['tea']": "KeyError: 'tea'",
    "import threading; raise KeyboardInterrupt('tea')": "KeyboardInterrupt: tea",
}


@each_method
def test_what_goes_wrong_is_shown(method: StartMethod, capfd: pytest.CaptureFixture[str]) -> None:
    for code, text in WRONG.items():
        assert outcome(code, method=method, name="brewer")[1].code == 1
        shown = capfd.readouterr().err
        assert text in shown
        assert ("Traceback" in shown and "brewer" in shown) == ("SystemExit" not in code)


@each_method
def test_a_target_that_is_not_there(method: StartMethod, capfd: pytest.CaptureFixture[str]) -> None:
    process = processes.start("process_target:missing", b"", method=method)
    ended = process.ended(PATIENCE)
    process.close()
    assert ended is not None
    assert ended.code == 1
    assert "missing" in capfd.readouterr().err


def test_the_peak_of_memory_is_told() -> None:
    _, small = outcome("pass")
    _, large = outcome("bytearray(100 * 2**20).find(b'x')")
    assert large.peak_rss is not None
    assert 100 * MB < large.peak_rss < 200 * MB + (small.peak_rss or 0)


@each_method
def test_signals_reach_the_child_and_only_it(method: StartMethod) -> None:
    with child("import signal; say('here'); signal.pause()", method=method) as (process, reader):
        assert line(reader) == "here"
        assert process.ended() is None
        assert process.ended(0.01) is None
        process.signal(signal.SIGTERM)
        ended = process.ended(PATIENCE)
        assert ended is not None
        assert ended.code == -signal.SIGTERM
        process.signal(signal.SIGKILL)  # nothing is there to be hit any more
        assert process.ended(0) == ended
    process.signal(signal.SIGKILL)
    assert process.ended() == ended


@each_method
def test_a_signal_at_once_is_not_lost(method: StartMethod) -> None:
    with child("import signal; signal.pause()", method=method) as (process, _):
        process.signal(signal.SIGTERM)
        ended = process.ended(PATIENCE)
    assert ended is not None
    assert ended.code == -signal.SIGTERM


@each_method
def test_closed_while_it_runs(method: StartMethod) -> None:
    here, there = os.pipe()
    process = processes.start(TARGET, b"import signal; signal.pause()", [here], method=method)
    pidfd = os.pidfd_open(process.pid)
    process.close()
    process.close()
    process.signal(signal.SIGKILL)  # is the business of another now
    assert not readable(pidfd, 0.1)
    with pytest.raises(ClosedError, match="closed"):
        process.ended()
    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    assert readable(pidfd, PATIENCE)
    outcome("pass", method=method)  # no dead process stays once another is started
    assert not psutil.pid_exists(process.pid)
    for each in (pidfd, here, there):
        os.close(each)


@each_method
def test_one_that_is_not_closed_is_told_of(method: StartMethod) -> None:
    process = processes.start("os:getpid", b"", method=method)
    assert process.ended(PATIENCE) is not None
    with pytest.warns(ResourceWarning, match="was not closed"):
        del process


@each_method
def test_many_threads_start_at_once(method: StartMethod) -> None:
    said: list[str] = []
    barrier = threading.Barrier(8)

    def one(number: int) -> None:
        barrier.wait(PATIENCE)
        for turn in range(2):
            said.extend(outcome(f"say({number}, {turn})", method=method)[0])

    threads = [threading.Thread(target=one, args=[each]) for each in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(PATIENCE)
    assert sorted(said) == [f"{number} {turn}" for number in range(8) for turn in range(2)]


@each_method
def test_children_outlive_the_thread_that_started_them(method: StartMethod) -> None:
    with ExitStack() as stack, ThreadPoolExecutor(1) as threads:
        end, begun = os.pipe()
        stack.callback(os.close, end)
        stack.callback(os.close, begun)
        code = "say('here'); import os; os.read(fds[0], 1)"
        entered = threads.submit(stack.enter_context, child(code, [end], method=method))
        process, reader = entered.result(PATIENCE)
        threads.shutdown()
        assert line(reader) == "here"
        assert process.ended(0.2) is None
        os.write(begun, b"x")
        ended = process.ended(PATIENCE)
        assert ended is not None
        assert ended.code == 0


def test_methods_and_limits_are_checked() -> None:
    with pytest.raises(ValueError, match="forkserver, spawn, fork"):
        processes.start(TARGET, b"", method="thread")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="descriptors"):
        processes.start(TARGET, b"", [0] * 1000)
