"""What goes with launchers: one rank after the other, and a model that is made once."""

from __future__ import annotations

import copy
import os
import pickle
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import launched_patterns
import pytest

import pparallel
from pparallel import MpModelWrapper, MpSerialExecutor
from pparallel.errors import ClosedError, WorkerLostError
from pparallel.interfaces.launcher import Launcher
from pparallel.runtime import stopping
from pparallel.runtime.stopping import StopSignal
from pparallel.testing.patience import PATIENCE
from pparallel_local import ThreadLauncherConfig
from pparallel_process import ProcessLauncherConfig

_WARNS = "ignore:This process .* is multi-threaded:DeprecationWarning"  # since Python 3.12
_FORK = pytest.param("fork", marks=pytest.mark.filterwarnings(_WARNS))
each_way = pytest.mark.parametrize("method", ["thread", "forkserver", _FORK])

Spawn = Callable[..., Any]


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    preload = ("launched_patterns", "torch")  # once, and not in every rank
    with pparallel.build(ProcessLauncherConfig(preload=preload)) as opened:
        yield opened


@pytest.fixture
def spawn(launcher: Launcher) -> Iterator[Spawn]:
    def start(method: str, fn: Any, *args: object, ranks: int = 3, join: bool = True) -> Any:
        chosen = threads if method == "thread" else launcher
        how: Any = "spawn" if method == "thread" else method
        return chosen.spawn(fn, args, ranks, join, start_method=how)

    with pparallel.build(ThreadLauncherConfig()) as threads:
        yield start


# -- MpSerialExecutor -------------------------------------------------------------------------


@each_way
def test_ranks_take_turns(spawn: Spawn, tmp_path: Path, method: str) -> None:
    executor = MpSerialExecutor()
    found = spawn(method, lambda rank: launched_patterns.take_turns(rank, executor, tmp_path))
    assert [len(set(each)) for each in found] == [1, 1, 1]
    assert len({each[0] for each in found}) == (1 if method == "thread" else 3)
    assert (tmp_path / "done").stat().st_size == 3 * launched_patterns.RUNS


def test_the_death_of_a_holder_ends_its_turn(spawn: Spawn) -> None:
    executor = MpSerialExecutor()
    with pytest.raises(WorkerLostError):
        spawn("forkserver", launched_patterns.die_inside, executor, ranks=1)
    assert executor.run(lambda: 3) == 3


def test_a_rank_is_told_to_stop_while_it_waits() -> None:
    executor, stop = MpSerialExecutor(), StopSignal()

    def wait() -> None:
        with stopping.running_under(stop):
            executor.run(int)

    def stay() -> BaseException | None:
        waiting = threads.submit(wait)
        stop.set()
        return waiting.exception(PATIENCE)

    with ThreadPoolExecutor(1) as threads:
        error = executor.run(stay)
    assert isinstance(error, ClosedError)
    assert error.consequence


def test_a_function_that_waits_for_its_own_end_is_refused(spawn: Spawn) -> None:
    executor = MpSerialExecutor()
    with pytest.raises(RuntimeError, match="is called inside itself"):
        executor.run(lambda: executor.run(int))
    with pytest.raises(RuntimeError, match="is called inside itself"):
        spawn("forkserver", launched_patterns.run_inside, executor, ranks=1)
    with pytest.raises(ZeroDivisionError):
        executor.run(lambda: 1 / 0)
    assert executor.run(int) == 0


@pytest.mark.filterwarnings(_WARNS)
def test_a_fork_does_not_go_on_with_the_turn_of_its_parent() -> None:
    executor = MpSerialExecutor()

    def fork() -> int:
        pid = os.fork()
        if not pid:
            signal.pause()
        return pid

    pid = executor.run(fork)
    try:
        assert executor.run(int) == 0
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_one_that_is_gone_says_so() -> None:
    executor = MpSerialExecutor()
    sent = pickle.dumps(executor)
    del executor
    with pytest.raises(FileNotFoundError, match="which sent a lock, has ended or has let go"):
        pickle.loads(sent)


# -- MpModelWrapper ---------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["thread", "forkserver"])
def test_one_rank_at_a_time_moves_the_model(spawn: Spawn, tmp_path: Path, method: str) -> None:
    model: Any = launched_patterns.Slow(tmp_path)
    assert spawn(method, launched_patterns.move, MpModelWrapper(model)) == [True] * 3
    assert (tmp_path / "done").stat().st_size == 6


@each_way
def test_each_rank_changes_its_own_weights(spawn: Spawn, method: str) -> None:
    import torch

    model = torch.nn.Linear(300, 300, bias=False)
    torch.nn.init.ones_(model.weight)
    found = spawn(method, launched_patterns.train, MpModelWrapper(model), ranks=2)
    assert found == [(90_000.0, 90_000.0 * (rank + 2)) for rank in range(2)]
    assert float(model.weight.detach().sum()) == 90_000.0


def test_ranks_that_are_sent_a_model_share_its_memory(spawn: Spawn) -> None:
    import torch

    wrapper = MpModelWrapper(torch.nn.Linear(600, 600))
    found = spawn("forkserver", launched_patterns.where_the_weights_are, wrapper, ranks=2)
    assert all("memfd:pparallel-cargo" in each for each in found)
    assert len({each.split()[4] for each in found}) == 1  # it is the same file


def test_the_program_itself_gets_the_model_that_it_made() -> None:
    import torch

    model = torch.nn.Linear(2, 2)
    wrapper = MpModelWrapper(model)
    assert wrapper.to("cpu") is model
    assert torch.equal(copy.deepcopy(wrapper).to("cpu").weight, model.weight)
    assert wrapper.to(torch.device("meta")).weight.is_meta
