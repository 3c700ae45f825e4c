"""``compat.torch_multiprocessing``: its names, and processes that run one function together."""

from __future__ import annotations

import inspect
import multiprocessing
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import compat_spawn_programs as programs
import psutil
import pytest
import torch.multiprocessing

import pparallel.compat.torch_multiprocessing as mp
from pparallel.errors import SerializationError
from pparallel.testing.patience import PATIENCE

ORIGINAL: Any = torch.multiprocessing
OURS = {
    "Pool",
    "ProcessContext",
    "Queue",
    "SimpleQueue",
    "SpawnContext",
    "spawn",
    "start_processes",
}


def event_of() -> Any:
    """Return an event, which is no fixture: pytest would keep it and its semaphores for long."""
    return multiprocessing.get_context("spawn").Event()


def started(fn: Any, *args: object, nprocs: int = 2, **options: Any) -> Any:
    return mp.start_processes(fn, args, nprocs, start_method="forkserver", **options)


# -- names -------------------------------------------------------------------------------------


def test_every_other_name_is_the_originals() -> None:
    names = {each for each in dir(torch.multiprocessing) if not each.startswith("_")}
    assert names <= set(dir(mp))
    own = OURS | {"ProcessExitedException", "ProcessRaisedException", "pool"}
    for name in names - own:
        assert getattr(mp, name) == getattr(torch.multiprocessing, name), name
    with pytest.raises(AttributeError, match="nosuch"):
        mp.nosuch  # noqa: B018


def test_all_names_can_be_imported_by_a_star() -> None:
    found: dict[str, Any] = {}
    exec("from pparallel.compat.torch_multiprocessing import *", found)
    assert found["Process"] is multiprocessing.Process
    assert found["spawn"] is mp.spawn
    assert set(found) >= OURS


def test_importing_it_changes_nothing() -> None:
    """What torch keeps is seen by ``test_compat_distributed_faults.py``, for all modules."""
    code = """
import sys
import pparallel.compat.torch_multiprocessing as mp
from pparallel.compat.torch_multiprocessing import Pool, Queue, spawn
assert "torch" not in sys.modules
import multiprocessing
assert multiprocessing.get_start_method(allow_none=True) is None
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert issubclass(mp.ProcessException, ORIGINAL.spawn.__globals__["ProcessException"])


def test_the_sharing_strategy_is_torchs() -> None:
    assert mp.get_all_sharing_strategies() == torch.multiprocessing.get_all_sharing_strategies()
    before = mp.get_sharing_strategy()
    try:
        mp.set_sharing_strategy("file_system")
        assert torch.multiprocessing.get_sharing_strategy() == "file_system"
    finally:
        mp.set_sharing_strategy(before)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("spawn", "(fn, args=(), nprocs=1, join=True, daemon=False, start_method='spawn')"),
        (
            "start_processes",
            "(fn, args=(), nprocs=1, join=True, daemon=False, start_method='spawn')",
        ),
        (
            "Pool",
            "(processes=None, initializer=None, initargs=(), maxtasksperchild=None, context=None)",
        ),
        ("Queue", "(maxsize=0, *, ctx=None)"),
    ],
)
def test_parameters(name: str, parameters: str) -> None:
    found = inspect.signature(getattr(mp, name))
    plain = [each.replace(annotation=each.empty) for each in found.parameters.values()]
    shown = found.replace(parameters=plain, return_annotation=found.empty)
    assert str(shown) == parameters


# -- processes ---------------------------------------------------------------------------------


def test_spawn_runs_a_function_with_its_index(tmp_path: Path) -> None:
    assert mp.spawn(programs.note, (tmp_path, "here"), nprocs=2) is None
    notes = [(tmp_path / str(index)).read_text().split() for index in range(2)]
    assert [word for word, _ in notes] == ["here", "here"]
    assert len({pid for _, pid in notes}) == 2


def test_only_start_processes_takes_a_start_method(tmp_path: Path) -> None:
    with pytest.warns(FutureWarning, match="start_processes"):
        mp.spawn(programs.note, (tmp_path, "here"), start_method="fork")
    assert (tmp_path / "0").exists()


def test_a_context_tells_when_all_have_ended() -> None:
    event = event_of()
    context = started(programs.wait_for, event, join=False)
    assert isinstance(context, mp.SpawnContext)
    assert isinstance(context, mp.ProcessContext)
    assert context.join(timeout=0.01) is False
    assert [each.pid for each in context.processes] == context.pids()
    assert all(each.is_alive() for each in context.processes)
    event.set()
    assert context.join(PATIENCE) is True
    assert context.join() is True
    assert [each.exitcode for each in context.processes] == [0, 0]


def test_how_processes_may_be_ended() -> None:
    event = event_of()
    context = started(programs.wait_for, event, join=False)
    context.processes[1].terminate()
    with pytest.raises(mp.ProcessExitedException) as caught:
        context.join(grace_period=0.05)
    assert (caught.value.error_index, caught.value.signal_name) == (1, "SIGTERM")


def test_no_processes_are_refused() -> None:
    with pytest.raises(ValueError, match="nprocs"):
        mp.spawn(print, nprocs=0)


def test_what_cannot_be_sent_starts_nothing() -> None:
    children = psutil.Process().children()
    with pytest.raises(SerializationError, match="lock"):
        started(programs.wait_for, programs.unpicklable())
    assert len(psutil.Process().children()) <= len(children) + 1  # the fork server


# -- failures ----------------------------------------------------------------------------------


def test_what_a_process_raises_is_raised_with_its_traceback() -> None:
    with pytest.raises(ORIGINAL.ProcessRaisedException) as caught:
        started(programs.refuse, 1)
    error = caught.value
    assert isinstance(error, mp.ProcessRaisedException)
    assert isinstance(error, mp.ProcessException)
    assert error.error_index == 1
    assert error.error_pid > 0
    assert "in refuse\n" in error.msg
    assert "LookupError: no such thing" in str(error)
    assert isinstance(error.__cause__, LookupError)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert vars(copy) == vars(error)


@pytest.mark.parametrize(
    ("fn", "how", "code", "name"),
    [
        (programs.leave, 3, 3, None),
        (programs.leave, "goodbye", 1, None),
        (programs.leave_in_c, 4, 4, None),
        (programs.be_killed, signal.SIGKILL, -9, "SIGKILL"),
        (programs.be_killed, signal.SIGSEGV, -11, "SIGSEGV"),
    ],
)
def test_a_process_that_exits(fn: Any, how: object, code: int, name: str | None) -> None:
    context = started(fn, 1, how, join=False)
    with pytest.raises(ORIGINAL.ProcessExitedException) as caught:
        context.join()
    error = caught.value
    assert isinstance(error, mp.ProcessExitedException)
    assert (error.error_index, error.error_pid) == (1, context.pids()[1])
    assert (error.exit_code, error.signal_name) == (code, name)
    assert (name or f"exit code {code}") in str(error)
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.exit_code, copy.signal_name, copy.msg) == (code, name, error.msg)
    with pytest.raises(mp.ProcessExitedException):  # each join says so
        context.join()


@pytest.mark.parametrize("code", [None, 0])
def test_to_exit_with_zero_is_not_to_fail(code: int | None) -> None:
    assert started(programs.leave, 1, code) is None


def test_the_others_have_a_time_to_end() -> None:
    there = multiprocessing.get_context("spawn").Semaphore(0)
    context = started(programs.fail_beside_the_deaf, 1, there, join=False)
    with pytest.raises(mp.ProcessRaisedException, match="shapes differ"):
        context.join(grace_period=0.05)
    assert context.processes[0].exitcode == -signal.SIGKILL
