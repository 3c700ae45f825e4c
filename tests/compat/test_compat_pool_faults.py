"""Faults of machin's pools, and of multiprocessing's that they follow, which are gone here."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import compat_pool_tasks as tasks
import pytest

from pparallel.compat.machin.pool import BasePool, Pool, notes
from pparallel.errors import RemoteError, SerializationError, WorkerLostError
from pparallel.testing.deaths import ErrorWhenSent, throw
from pparallel.testing.patience import PATIENCE, until_gone
from pparallel.testing.pool.tasks import lock

each_road = pytest.mark.parametrize("kind", [BasePool, Pool])


class TestOnBothRoads:
    """On the engine, and on a native pool."""

    @each_road
    def test_a_killed_worker_fails_its_task(self, kind: type[BasePool]) -> None:
        """machin respawns the worker and never fails its task; cpython 96062 hangs."""
        with kind(2) as pool:
            calls = [pool.apply_async(os.kill, (0, 0)), pool.apply_async(tasks.square, (3,))]
            assert calls[1].get(PATIENCE) == 9
            calls[0].get(PATIENCE)
            kill, killed = signal.raise_signal, signal.SIGKILL
            calls = [pool.apply_async(kill, (killed,)), pool.map_async(kill, [killed])]
            for call in calls:
                with pytest.raises(WorkerLostError, match="SIGKILL") as caught:
                    call.get(PATIENCE)
                assert caught.value.exitcode == -killed
                until_gone(caught.value.pid)
            results: Any = pool.imap(kill, [killed])
            with pytest.raises(WorkerLostError):
                results.next(PATIENCE)
            assert pool.map(tasks.square, range(4)) == [0, 1, 4, 9]
            assert pool.size() == 2

    @each_road
    def test_what_cannot_be_pickled_is_an_error(self, kind: type[BasePool]) -> None:
        """What cannot be pickled hangs multiprocessing (cpython 103061, 79492)."""
        held = threading.Lock()
        with kind(1) as pool:
            calls: list[Any] = [
                pool.apply_async(tasks.square, (held,)),
                pool.apply_async(held.acquire),
                pool.map_async(tasks.square, [1, held]),
                pool.apply_async(lock),
                pool.map_async(lambda _: lock(), [1]),
            ]
            for call in calls:
                with pytest.raises(SerializationError, match="lock"):
                    call.get(PATIENCE)
            with pytest.raises(RemoteError, match="to be sent"):
                pool.apply_async(throw, (ErrorWhenSent, tasks.refuse, ("no",))).get(PATIENCE)
            results: Any = pool.imap(tasks.square, [1, held, 3])
            assert results.next(PATIENCE) == 1
            with pytest.raises(SerializationError):
                results.next(PATIENCE)
            assert results.next(PATIENCE) == 9

    @pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
    @each_road
    def test_many_tensors_take_no_descriptors(self, kind: type[BasePool]) -> None:
        """`received 0 items of ancdata` (pytorch 973): each tensor kept takes a descriptor."""
        import torch

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        # a fork has torch already; a Pool that copies says itself how its workers start
        forking = {"context": multiprocessing.get_context("fork")}
        options: dict[str, Any] = forking if kind is BasePool else {}
        with kind(1, **options) as pool:
            before = tasks.descriptors()
            resource.setrlimit(resource.RLIMIT_NOFILE, (before + 40, hard))
            try:
                kept = pool.map(torch.ones, [1000] * 200, 1)
                sums = pool.map(tasks.sum_of, kept, 1)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert sums == [1000.0] * 200
            pool.apply(tasks.fill, (kept[0], 2.0))
            assert float(kept[0].sum()) == 1000.0, "a copy is the worker's own"
            assert tasks.descriptors() - before < 20


def test_the_tasks_of_others_go_on() -> None:
    """A death harms no task but the one that the worker ran."""
    with BasePool(2) as pool:
        calls = [
            pool.apply_async(os._exit if each == 20 else tasks.square, (each,))
            for each in range(200)
        ]
        with pytest.raises(WorkerLostError):
            calls[20].get(PATIENCE)
        others = [each.get(PATIENCE) for number, each in enumerate(calls) if number != 20]
    assert others == [each**2 for each in range(200) if each != 20]


def test_a_worker_that_dies_between_two_tasks_costs_none() -> None:
    """Nor does one that is killed while it is idle."""
    with BasePool(1) as pool:
        for number in range(3):
            os.kill(pool.apply(os.getpid), signal.SIGKILL)
            assert pool.apply_async(tasks.square, (number,)).get(PATIENCE) == number**2


def test_a_task_that_nobody_noted_fails_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker dies after it took the task out of the queue, and before it noted that."""
    note = notes.note

    def die_when_it_takes(handle: notes.Handle, job: int, chunk: int = 0) -> None:
        if job != notes.READY and handle[0] != os.getpid():
            os._exit(9)
        note(handle, job, chunk)

    monkeypatch.setattr(notes, "note", die_when_it_takes)
    expected = pytest.raises(WorkerLostError, match=r"exit code 9: .* had just taken a task")
    with BasePool(1, context=multiprocessing.get_context("fork")) as pool, expected:
        pool.apply_async(tasks.square, (3,)).get(PATIENCE)


STRATEGY = """
import copyreg, sys
import torch.multiprocessing as mp
before = mp.get_sharing_strategy(), dict(copyreg.dispatch_table)
import dill
settings = dict(dill.settings)
table = dict(dill.Pickler.dispatch)
import pparallel.compat.machin.pickle, pparallel.compat.machin.pool, pparallel.compat.machin.queue
with pparallel.compat.machin.pool.BasePool(1) as pool:
    assert pool.apply(abs, (-1,)) == 1
assert (mp.get_sharing_strategy(), dict(copyreg.dispatch_table)) == before
assert (dict(dill.settings), dict(dill.Pickler.dispatch)) == (settings, table)
"""

LIGHT = """
import sys
import pparallel.compat.machin.pickle, pparallel.compat.machin.pool, pparallel.compat.machin.queue
assert not {"torch", "numpy"} & {*sys.modules}, "torch was imported"
"""


@pytest.mark.parametrize("code", [STRATEGY, LIGHT])
def test_importing_changes_no_setting(code: str) -> None:
    """machin sets the file_system sharing strategy for the whole program as it is imported."""
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


DYING = """
import os, signal, sys
from pparallel.compat.machin.pool import BasePool
pool = BasePool(1)
print(pool.apply(os.getpid), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_workers_end_with_a_program_that_is_killed(tmp_path: Path) -> None:
    """Workers and shared memory of a killed program stay (vllm 51579)."""
    command = [sys.executable, "-c", DYING]
    done = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    until_gone(int(done.stdout))
