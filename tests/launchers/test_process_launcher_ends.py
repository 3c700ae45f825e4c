"""The launcher of processes: how ranks end, and that none stays."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import launched
import psutil
import pytest

import pparallel
from pparallel.errors import WorkerLostError
from pparallel.interfaces.launcher import LaunchContext, Launcher, StartMethod
from pparallel.runtime.processes.process import readable
from pparallel.testing.deaths import DEATHS, WhenRebuilt
from pparallel.testing.patience import PATIENCE, until
from pparallel_process import ProcessLauncherConfig

_WARNS = "ignore:This process .* is multi-threaded:DeprecationWarning"  # since Python 3.12
_FORK = pytest.param("fork", marks=pytest.mark.filterwarnings(_WARNS))
each_method = pytest.mark.parametrize("method", ["forkserver", "spawn", _FORK])
BRIEF = 0.1  #: seconds that ranks are given in tests in which they do not listen anyway
PROMPT = 5.0  #: seconds in which an end is known: five times what is promised
SOON = 10.0  #: seconds in which ranks are gone once their program is: five times what is promised
HELPERS = str(Path(__file__).parents[1] / "helpers")


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    preload = ("launched", "pparallel.testing.deaths")
    with pparallel.build(ProcessLauncherConfig(preload=preload)) as opened:
        yield opened


def context_of(
    launcher: Launcher, fn: Callable[..., Any], *args: object, ranks: int = 2, **options: Any
) -> LaunchContext:
    context = launcher.spawn(fn, args, ranks, False, **{"start_method": "forkserver", **options})
    assert isinstance(context, LaunchContext)
    return context


def pids_in(folder: Path, count: int) -> list[int]:
    """Return what so many ranks have left there, once they have."""

    def all_said() -> bool:
        found = [each.read_text() for each in folder.iterdir()]
        return len(found) == count and all(found)

    until(all_said, f"{count} ranks run")
    return [int(each.read_text()) for each in sorted(folder.iterdir())]


# -- ranks that die ---------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
def test_a_rank_that_is_killed_from_outside(
    launcher: Launcher, tmp_path: Path, number: signal.Signals
) -> None:
    context = context_of(launcher, launched.wait, tmp_path)
    pids = pids_in(tmp_path, 2)
    os.kill(pids[1], number)
    killed = time.monotonic()
    with pytest.raises(
        WorkerLostError, match=rf"died by signal {number:d}.*it was rank 1 "
    ) as lost:
        context.join()
    assert time.monotonic() - killed < PROMPT
    assert (lost.value.pid, lost.value.exitcode) == (pids[1], -number)
    assert context.processes[1].exitcode == -number
    assert not any(map(psutil.pid_exists, pids))


@pytest.mark.parametrize("how", ["exit", "segfault"])
def test_a_rank_that_dies_as_it_reads_what_it_is_to_run(launcher: Launcher, how: str) -> None:
    bomb = WhenRebuilt(*DEATHS[how][:2])
    with pytest.raises(WorkerLostError, match="it was rank") as lost:
        context_of(launcher, launched.identity, bomb).join()
    assert lost.value.exitcode == DEATHS[how].exitcode


@pytest.mark.parametrize("how", ["exit", "SIGKILL"])
def test_a_rank_that_dies_as_it_sends_its_result(launcher: Launcher, how: str) -> None:
    with pytest.raises(WorkerLostError, match="it was rank 0") as lost:
        context_of(launcher, launched.bomb, *DEATHS[how][:2], ranks=1).join()
    assert lost.value.exitcode == DEATHS[how].exitcode


def test_a_result_that_cannot_be_read_is_a_failure(launcher: Launcher) -> None:
    with pytest.raises(Exception, match="rank 0") as caught:
        context_of(launcher, launched.bad_result, ranks=1).join()
    assert "modulo by zero" in str(caught.value)


@each_method
def test_a_rank_that_has_returned_may_die(launcher: Launcher, method: StartMethod) -> None:
    context = context_of(launcher, launched.die_at_exit, start_method=method)
    assert context.results() == ["done"] * 2
    assert [each.exitcode for each in context.processes] == [3, 3]


def test_what_a_rank_logged_last_is_told_with_its_death(launcher: Launcher) -> None:
    with pytest.raises(WorkerLostError, match=r"logged:\n  WARNING launched: it smells of smoke"):
        context_of(launcher, launched.log_and_die, ranks=1).join()


def test_a_rank_that_exits_has_its_exit_code(launcher: Launcher) -> None:
    context = context_of(launcher, launched.exit_with, 3, ranks=1)
    with pytest.raises(RuntimeError, match=r"rank 0 was ended by SystemExit\(3\)"):
        context.join()
    assert [each.exitcode for each in context.processes] == [3]


# -- ranks that are ended ---------------------------------------------------------------------


def test_ranks_that_do_not_listen_are_ended(launcher: Launcher, tmp_path: Path) -> None:
    ways = ("gil", "sleep", "deaf", "stopped", "closes")
    context = context_of(launcher, launched.stay, tmp_path, *ways, ranks=len(ways))
    context.grace = BRIEF
    pids = pids_in(tmp_path, len(ways))
    context.terminate(LookupError("enough"))
    assert not any(map(psutil.pid_exists, pids))
    assert not any(each.is_alive() for each in context.processes)


def test_a_rank_that_hangs_at_its_end_is_ended_with_the_others(launcher: Launcher) -> None:
    context = context_of(launcher, launched.hang_at_exit_or_fail)
    context.grace = BRIEF
    with pytest.raises(LookupError, match="rank 1 fails"):
        context.join()
    assert not any(map(psutil.pid_exists, context.pids()))


def test_a_rank_that_hangs_at_its_end_has_not_ended(launcher: Launcher) -> None:
    context = context_of(launcher, launched.hang_at_exit_or_fail, ranks=1)
    context.grace = BRIEF
    assert context.join(0.3) is False
    context.terminate()
    assert not any(map(psutil.pid_exists, context.pids()))


def test_the_reason_to_stop_is_told(launcher: Launcher, tmp_path: Path) -> None:
    context = context_of(launcher, launched.wait, tmp_path)
    pids_in(tmp_path, 2)
    context.stop(LookupError("a" * 100_000))  # too long for one message
    context.stop(LookupError("another"))
    assert context.results() == ["None", "None"]


# -- programs that end ------------------------------------------------------------------------

PROGRAM = """\
import sys
from pathlib import Path
import launched, pparallel
from pparallel_process import ProcessLauncherConfig
from pparallel.runtime.ranks import context as job
launcher = pparallel.build(ProcessLauncherConfig())
launcher.open()
context = launcher.spawn({call}, 2, False, daemon={daemon}, start_method={method!r})
{then}
"""


@contextlib.contextmanager
def program(
    call: str, then: str, method: str = "forkserver", *, daemon: bool = False
) -> Iterator[subprocess.Popen[str]]:
    text = PROGRAM.format(call=call, then=then, method=method, daemon=daemon)
    running = subprocess.Popen(
        [sys.executable, "-c", text],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": HELPERS},
        start_new_session=True,
    )
    with running:
        try:
            yield running
        finally:
            running.kill()


@contextlib.contextmanager
def gone_soon(pids: list[int]) -> Iterator[None]:
    """Check that the processes, which run now, are gone soon after what is done inside."""
    with contextlib.ExitStack() as stack:
        watched = [os.pidfd_open(each) for each in pids]
        for each in watched:
            stack.callback(os.close, each)
        yield
        end = time.monotonic() + SOON
        for each in watched:
            assert readable(each, max(0.0, end - time.monotonic())), pids


@pytest.mark.parametrize(
    ("method", "how"), [("forkserver", "gil"), ("spawn", "deaf"), ("fork", "gil")]
)
def test_a_program_that_is_killed_leaves_no_rank(tmp_path: Path, method: str, how: str) -> None:
    call = f"launched.stay, (Path({str(tmp_path)!r}), {how!r})"
    with (
        program(call, "context.join()", method) as running,
        gone_soon(pids_in(tmp_path, 2)),
    ):
        running.kill()


def test_a_program_that_is_killed_leaves_no_rank_of_a_rank(tmp_path: Path) -> None:
    call = f"launched.stay_inside, (Path({str(tmp_path)!r}), 'spawn')"
    with program(call, "context.join()") as running, gone_soon(pids_in(tmp_path, 4)):
        running.kill()


@pytest.mark.parametrize("method", ["forkserver", "fork"])
def test_ctrl_c_ends_the_ranks_quietly(tmp_path: Path, method: str) -> None:
    call = f"launched.wait, (Path({str(tmp_path)!r}),)"
    with program(call, "print('joins', flush=True); context.join()", method) as running:
        pids = pids_in(tmp_path, 2)
        assert running.stdout is not None
        assert running.stdout.readline() == "joins\n"
        os.killpg(running.pid, signal.SIGINT)  # as a terminal does
        _, said = running.communicate(timeout=PATIENCE)
        assert running.returncode == -signal.SIGINT
        assert said.count("Traceback") == 1
        assert "KeyboardInterrupt" in said
        assert not any(map(psutil.pid_exists, pids))


def test_a_program_waits_for_its_ranks_as_it_ends(tmp_path: Path) -> None:
    call = f"launched.note_when_told, (Path({str(tmp_path)!r}),)"
    with program(call, "print('main ends', flush=True)") as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "main ends\n"
        with pytest.raises(subprocess.TimeoutExpired):
            running.wait(0.2)
        (tmp_path / "go").touch()
        running.communicate(timeout=PATIENCE)
        assert running.returncode == 0
    assert sorted(each.name for each in tmp_path.iterdir()) == ["0", "1", "go"]


def test_a_program_takes_daemonic_ranks_along(tmp_path: Path) -> None:
    call = f"launched.wait, (Path({str(tmp_path)!r}),)"
    with program(call, "sys.stdin.readline()", daemon=True) as running:
        with gone_soon(pids_in(tmp_path, 2)):
            _, said = running.communicate("\n", timeout=PATIENCE)
        assert (running.returncode, said) == (0, "")
