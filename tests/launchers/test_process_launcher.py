"""The launcher of processes: what ranks are, what they return, and what they may say."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import launched
import psutil
import pytest

import pparallel
from pparallel.errors import PparallelError, RemoteError, ResourceExhaustedError, SerializationError
from pparallel.interfaces.launcher import LaunchContext, Launcher, RankSpec, StartMethod
from pparallel.runtime import processes, stopping
from pparallel.runtime.pools import nesting
from pparallel.runtime.stopping import StopSignal
from pparallel.testing.patience import PATIENCE, until
from pparallel_process import ProcessLauncherConfig
from pparallel_process.launcher.cargo import INLINE, MAPPED

_WARNS = "ignore:This process .* is multi-threaded:DeprecationWarning"  # since Python 3.12
_FORK = pytest.param("fork", marks=pytest.mark.filterwarnings(_WARNS))
each_method = pytest.mark.parametrize("method", ["forkserver", "spawn", _FORK])
#: one that is sent what it runs, and the one that inherits it
sent_and_inherited = pytest.mark.parametrize("method", ["forkserver", _FORK])


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    with pparallel.build(ProcessLauncherConfig(preload=("launched",))) as opened:
        yield opened


@pytest.fixture
def torch_launcher() -> Iterator[Launcher]:
    with pparallel.build(ProcessLauncherConfig(preload=("launched", "torch"))) as opened:
        yield opened


def spawned(
    launcher: Launcher, fn: Callable[..., Any], *args: object, ranks: int = 1, **options: Any
) -> Any:
    return launcher.spawn(fn, args, ranks, **{"start_method": "forkserver", **options})


def context_of(
    launcher: Launcher, fn: Callable[..., Any], *args: object, **options: Any
) -> LaunchContext:
    context = spawned(launcher, fn, *args, join=False, **options)
    assert isinstance(context, LaunchContext)
    return context


# -- what ranks are ----------------------------------------------------------------------------


@each_method
def test_ranks_are_processes(launcher: Launcher, method: StartMethod) -> None:
    context = context_of(launcher, launched.whoami, ranks=2, start_method=method)
    assert [pid for pid, _ in context.results()] == context.pids()
    assert len({os.getpid(), *context.pids()}) == 3
    assert [each.pid for each in context.processes] == context.pids()
    assert [each.exitcode for each in context.processes] == [0, 0]


def test_a_handle_tells_whether_its_rank_runs(launcher: Launcher, tmp_path: Path) -> None:
    context = context_of(launcher, launched.wait, tmp_path)
    (process,) = context.processes
    assert process.name == "rank-0"
    process.join(0.01)
    assert (process.is_alive(), process.exitcode) == (True, None)
    assert f"{process.pid}, running" in repr(process)
    context.stop(LookupError("enough"))
    assert context.results() == ["LookupError('enough')"]
    assert (process.is_alive(), process.exitcode) == (False, 0)
    assert "ended with 0" in repr(process)


def test_many_ranks_start_and_end(launcher: Launcher) -> None:
    results = spawned(launcher, launched.whoami, ranks=64)
    assert len({pid for pid, _ in results}) == 64
    assert not any(psutil.pid_exists(pid) for pid, _ in results)


def test_a_rank_without_torch_work_imports_none(launcher: Launcher) -> None:
    for method in ("forkserver", "spawn"):
        assert spawned(launcher, launched.loaded, start_method=method) == [[]]


def test_ranks_have_the_environment_without_a_place_in_a_job(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "7")
    monkeypatch.setenv("PPARALLEL__TRANSPORT__SECRET", "hush")
    monkeypatch.setenv("PPARALLEL_DISABLE_PLUGINS", "nosuch")
    monkeypatch.setenv("COLOUR", "red")
    names = ("RANK", "PPARALLEL__TRANSPORT__SECRET", "PPARALLEL_DISABLE_PLUGINS", "COLOUR")
    (found,) = spawned(launcher, launched.variables, *names)
    assert found == [None, None, "nosuch", "red"]


def test_ranks_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    name = "OMP_NUM_THREADS"
    with pparallel.build(ProcessLauncherConfig(threads_per_rank=3)) as launcher:
        assert spawned(launcher, launched.variables, name, ranks=2) == [["3"], ["3"]]
    own = {"OMP_NUM_THREADS": "5"}
    with pparallel.build(ProcessLauncherConfig()) as launcher:
        ranks = [RankSpec(each, launched.variables, (name,), own) for each in range(2)]
        context = launcher.start(ranks, daemon=False, start_method="forkserver")
        assert context.results() == [["5"], ["5"]]


def test_a_secret_among_the_arguments_is_shown_to_nobody(launcher: Launcher) -> None:
    secret = "sesame-" + os.urandom(8).hex()
    for method in ("forkserver", "spawn"):
        (shown,) = spawned(launcher, launched.seen_from_outside, secret, start_method=method)
        assert secret.encode() not in shown
    own = Path("/proc/self/cmdline").read_bytes()
    assert secret.encode() not in own


# -- functions, arguments, results ------------------------------------------------------------

PROGRAM = """\
import sys, pparallel
from pparallel_process import ProcessLauncherConfig
print("main runs")
class Point:
    def __init__(self, x):
        self.x = x
class Refused(Exception):
    pass
scale = 2
def moved(rank, point):
    assert isinstance(point, Point)
    return Point(point.x + scale * rank)
def refuse(rank):
    raise Refused(rank)
with pparallel.build(ProcessLauncherConfig()) as launcher:
    found = launcher.spawn(moved, (Point(1),), 3, start_method="METHOD")
    assert [type(each) for each in found] == [Point] * 3
    assert [each.x for each in found] == [1, 3, 5]
    assert launcher.spawn(lambda rank: scale, (), 2, start_method="METHOD") == [2, 2]
    try:
        launcher.spawn(refuse, (), 1, start_method="METHOD")
    except Refused as error:
        assert error.args == (0,)
print("all is well")
"""


def run(command: list[str], given: str = "") -> str:
    done = subprocess.run(
        [sys.executable, *command],
        input=given,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_programs_without_a_main_guard(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(PROGRAM.replace("METHOD", "forkserver"))
    calls = [
        ([str(script)], ""),
        (["-"], PROGRAM.replace("METHOD", "spawn")),
        (["-c", PROGRAM.replace("METHOD", "fork")], ""),
    ]
    with ThreadPoolExecutor(2) as threads:
        for found in threads.map(lambda call: run(*call), calls):
            assert found == "main runs\nall is well\n"


def test_results_of_any_size(torch_launcher: Launcher) -> None:
    for nbytes in (0, INLINE - 200, INLINE, MAPPED - 200, MAPPED):
        (found,) = spawned(torch_launcher, launched.tensor, nbytes // 4)
        assert found["value"].tolist() == [0.0] * (nbytes // 4)
        found["value"] += 1


def test_large_results(launcher: Launcher) -> None:
    found = spawned(launcher, launched.data, 10_000_000, ranks=2)
    assert found == [launched.data(rank, 10_000_000) for rank in range(2)]


def test_tensors_that_return_are_the_callers_own(torch_launcher: Launcher) -> None:
    import torch

    found = spawned(torch_launcher, launched.tensor, 1_000_000, ranks=2)
    found[1]["value"] += 1
    assert [each["rank"] for each in found] == [0, 1]
    assert torch.equal(found[0]["value"], torch.zeros(1_000_000))
    assert torch.equal(found[1]["value"], torch.full((1_000_000,), 2.0))


@sent_and_inherited
def test_tensors_that_are_given_are_each_ranks_own(
    torch_launcher: Launcher, method: StartMethod
) -> None:
    import torch

    given = torch.ones(1_000_000)
    found = spawned(torch_launcher, launched.changed, given, ranks=2, start_method=method)
    assert found == [1_000_000.0] * 2
    assert torch.equal(given, torch.ones(1_000_000))


def test_what_cannot_be_sent_is_refused_at_once(launcher: Launcher) -> None:
    with pytest.raises(SerializationError, match="lock"):
        spawned(launcher, launched.whoami, threading.Lock(), ranks=2)


@sent_and_inherited
def test_a_result_that_cannot_be_sent(launcher: Launcher, method: StartMethod) -> None:
    with pytest.raises(SerializationError, match="lock") as caught:
        spawned(launcher, launched.unpicklable, ranks=1, start_method=method)
    assert {"it was the result of rank 0", "raised in rank 0"} <= set(caught.value.__notes__)


def test_an_exception_that_cannot_be_sent(launcher: Launcher) -> None:
    with pytest.raises(RemoteError, match=r"Refusing: no way") as caught:
        spawned(launcher, launched.raise_unpicklable)
    assert "in raise_unpicklable" in str(caught.value)
    assert "in rank 'rank-0'" in str(caught.value)


# -- ranks in ranks ---------------------------------------------------------------------------


@sent_and_inherited
def test_launches_and_pools_in_ranks(launcher: Launcher, method: StartMethod) -> None:
    found = spawned(launcher, launched.launch_inside, 2, method, ranks=2, start_method=method)
    assert found == [[0, 1, 0], [10, 11, 1]]


def test_a_launch_inside_a_rank_is_told_to_stop(launcher: Launcher, tmp_path: Path) -> None:
    context = context_of(launcher, launched.wait_inside, tmp_path, "forkserver")
    until(lambda: len(list(tmp_path.iterdir())) == 2, "the inner ranks run")
    context.stop(LookupError("enough"))
    assert context.results() == [["LookupError('enough')"] * 2]


def test_a_thread_that_is_a_rank_launches_processes(launcher: Launcher, tmp_path: Path) -> None:
    outer = StopSignal()

    def work() -> None:
        with stopping.running_under(outer):
            results.extend(spawned(launcher, launched.wait, tmp_path))

    results: list[str] = []
    thread = threading.Thread(target=work)
    thread.start()
    until(lambda: len(list(tmp_path.iterdir())) == 1, "the rank runs")
    outer.set(LookupError("enough"))
    thread.join(PATIENCE)
    assert results == ["LookupError('enough')"]


def test_a_module_that_launches_when_it_is_imported(tmp_path: Path) -> None:
    (tmp_path / "eager.py").write_text(
        "import pparallel\n"
        "from pparallel_process import ProcessLauncherConfig\n"
        "def work(rank):\n    return rank\n"
        "with pparallel.build(ProcessLauncherConfig()) as launcher:\n"
        "    launcher.spawn(work, (), 1, start_method='forkserver')\n"
    )
    command = [sys.executable, "-c", "import eager"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "a module launches ranks while another process imports it" in done.stderr


def test_a_rank_that_leaves_a_child_of_its_own(launcher: Launcher) -> None:
    (pid,) = spawned(launcher, launched.leave_a_child)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def test_a_fork_of_the_program_keeps_nothing_of_a_launch(
    launcher: Launcher, tmp_path: Path
) -> None:
    context = context_of(launcher, launched.wait, tmp_path)
    until(lambda: len(list(tmp_path.iterdir())) == 1, "the rank runs")
    sockets = processes.start("launched:count_sockets", str(tmp_path).encode(), method="fork")
    end = sockets.ended(PATIENCE)
    sockets.close()
    assert end is not None
    assert end.code == 0
    context.stop()
    assert context.results() == ["None"]


# -- what ranks say ---------------------------------------------------------------------------


@sent_and_inherited
def test_logs_and_warnings_are_the_programs(
    launcher: Launcher, method: StartMethod, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with pytest.warns(UserWarning, match=r"this is odd \(in rank-0\)"):
        spawned(launcher, launched.speak, start_method=method)
    (record,) = (each for each in caplog.records if each.name == "launched")
    assert (record.getMessage(), record.processName) == ("rank 0 is here", "rank-0")


def test_logs_arrive_however_many(launcher: Launcher, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "launched")
    spawned(launcher, launched.log_much, 900, ranks=2)
    texts = [each.getMessage() for each in caplog.records if each.name == "launched"]
    assert sorted(texts) == sorted(f"line {e} of {rank}" for e in range(900) for rank in range(2))


@pytest.mark.filterwarnings("ignore:this is odd")
@sent_and_inherited
def test_prints_go_to_what_stands_for_standard_output(
    launcher: Launcher, method: StartMethod
) -> None:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        spawned(launcher, launched.speak, start_method=method)
    assert out.getvalue() == "out of 0\nand no line"
    assert "err of 0\n" in err.getvalue()


def test_prints_go_where_the_program_writes() -> None:
    code = (
        "import launched, pparallel\n"
        "from pparallel_process import ProcessLauncherConfig\n"
        "with pparallel.build(ProcessLauncherConfig()) as launcher:\n"
        "    launcher.spawn(launched.speak, (), 1, start_method='forkserver')\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "helpers")}
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "out of 0\nand no line"
    assert done.stderr == "err of 0\n"


def test_what_cannot_be_printed_is_said_once(
    launcher: Launcher, caplog: pytest.LogCaptureFixture
) -> None:
    closed = io.StringIO()
    closed.close()
    with contextlib.redirect_stdout(closed):
        spawned(launcher, launched.print_lines, 3)
    texts = [each.getMessage() for each in caplog.records]
    assert [each for each in texts if "is not written any more" in each] == [
        "what ranks print is not written any more: I/O operation on closed file"
    ]


# -- starting ---------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [OSError(24, "no descriptors"), KeyboardInterrupt()])
def test_ranks_start_all_or_none(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch, error: BaseException, tmp_path: Path
) -> None:
    start = processes.start
    pids: list[int] = []

    def refuse_the_third(*args: Any, **options: Any) -> processes.Process:
        if len(pids) == 2:
            raise error
        process = start(*args, **options)
        pids.append(process.pid)
        return process

    monkeypatch.setattr(processes, "start", refuse_the_third)
    with pytest.raises(type(error)):
        spawned(launcher, launched.wait, tmp_path, ranks=4)
    assert len(pids) == 2
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_a_thread_that_cannot_be_started(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        message = "can't start new thread"
        raise RuntimeError(message)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(ResourceExhaustedError, match="no more threads"):
        spawned(launcher, launched.whoami, ranks=2)


def test_there_is_an_end_to_launches_in_launches(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nesting, "DEEPEST", 2)
    with pytest.raises(PparallelError, match="launches are nested 2 deep"):
        spawned(launcher, launched.launch_deeper, start_method="fork")
