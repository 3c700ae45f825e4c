from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import joblib
import pytest

import pparallel
import pparallel.joblib
from pparallel.errors import ClosedError, ConfigError, UnknownBackendError, WorkerLostError
from pparallel.interfaces.pool import Pool, PoolConfig
from pparallel.testing.leftovers import no_leftovers
from pparallel.testing.patience import PATIENCE, until, until_gone
from pparallel_local import SerialPoolConfig, ThreadPoolConfig

#: imported by the fork server, not by each worker
PRELOAD = [__name__, "sklearn.linear_model", "sklearn.model_selection"]
POOLS: dict[str, PoolConfig | dict[str, Any] | str] = {
    "serial": SerialPoolConfig(size=2),
    "thread": "thread",
    "process": {"backend": "process", "preload": PRELOAD},
    "p2p": {"backend": "p2p", "preload": PRELOAD},
}


@pytest.fixture(params=["thread", "process"])
def source(request: pytest.FixtureRequest) -> Any:
    return POOLS[request.param]


@pytest.fixture
def jobs(source: Any) -> Iterator[None]:
    """Two jobs of each pool."""
    with joblib.parallel_config("pparallel", pool=source, n_jobs=2):
        yield


@pytest.fixture
def pool() -> Iterator[Pool]:
    with pparallel.build(ThreadPoolConfig(size=4)) as pool:
        yield pool


def square(number: int) -> int:
    return number * number


def refuse(number: int) -> int:
    if number == 7:
        message = "seven"
        raise LookupError(message)
    return number


def nested(number: int) -> list[int]:
    by_default = joblib.Parallel(n_jobs=2)(joblib.delayed(square)(each) for each in range(number))
    with joblib.parallel_config("pparallel", pool="thread", n_jobs=2):
        assert joblib.Parallel()(joblib.delayed(square)(each) for each in (3, 4)) == [9, 16]
    return list(by_default)


@pytest.mark.parametrize("source", POOLS, indirect=True)
@pytest.mark.usefixtures("jobs")
def test_results() -> None:
    call = joblib.delayed(square)
    expected = [each * each for each in range(500)]
    for batch_size in ("auto", 1, 7):
        parallel = joblib.Parallel(batch_size=batch_size)
        assert parallel(call(each) for each in range(500)) == expected
    assert joblib.Parallel(pre_dispatch="all")(call(each) for each in range(500)) == expected
    assert joblib.Parallel()(joblib.delayed(lambda each: -each)(each) for each in (1, 2)) == [
        -1,
        -2,
    ]
    assert joblib.Parallel()([]) == []
    with joblib.Parallel() as parallel:
        assert [parallel([call(each)]) for each in range(3)] == [[0], [1], [4]]


@pytest.mark.usefixtures("jobs")
def test_generators() -> None:
    call = joblib.delayed(square)
    expected = [each * each for each in range(100)]
    ordered = joblib.Parallel(return_as="generator")
    assert list(ordered(call(each) for each in range(100))) == expected
    unordered = joblib.Parallel(return_as="generator_unordered")
    assert sorted(unordered(call(each) for each in range(100))) == expected


@pytest.mark.parametrize("source", ["thread", "process"])
def test_an_abandoned_generator(source: str) -> None:
    with joblib.parallel_config("pparallel", pool=source, n_jobs=2):
        results = joblib.Parallel(return_as="generator")(
            joblib.delayed(square)(each) for each in range(10**6)
        )
        assert [next(results), next(results)] == [0, 1]
        with pytest.warns(UserWarning, match="not used|cancelled"):
            results.close()
        assert joblib.Parallel()([joblib.delayed(square)(3)]) == [9]


@pytest.mark.usefixtures("jobs")
def test_a_task_that_raises() -> None:
    for _ in range(2):
        with pytest.raises(LookupError, match="seven"):
            joblib.Parallel()(joblib.delayed(refuse)(each) for each in range(100))
        assert joblib.Parallel()([joblib.delayed(refuse)(3)]) == [3]


@pytest.mark.usefixtures("jobs")
def test_tasks_that_raise_while_generated() -> None:
    def calls() -> Iterator[Any]:
        yield joblib.delayed(square)(1)
        message = "no more"
        raise LookupError(message)

    with pytest.raises(LookupError, match="no more"):
        joblib.Parallel()(calls())


@pytest.mark.usefixtures("jobs")
def test_nested_calls() -> None:
    results = joblib.Parallel()(joblib.delayed(nested)(each) for each in range(4))
    assert results == [[0, 1, 4][:each] for each in range(4)]


@pytest.mark.parametrize("source", ["thread", "process"])
def test_a_time_out(source: str, tmp_path: Path) -> None:
    with joblib.parallel_config("pparallel", pool=source, n_jobs=2):
        assert joblib.Parallel()(joblib.delayed(square)(each) for each in (1, 2)) == [1, 4]
        waits = [joblib.delayed(_wait_for)(tmp_path / "end") for _ in range(3)]
        with pytest.raises(multiprocessing.TimeoutError):
            joblib.Parallel(timeout=0.2)(waits)
        (tmp_path / "end").touch()
        assert joblib.Parallel()(joblib.delayed(square)(each) for each in (1, 2)) == [1, 4]


def test_the_number_of_jobs(pool: Pool) -> None:
    with joblib.parallel_config("pparallel", pool=pool):
        assert [joblib.effective_n_jobs(each) for each in (None, -1, -2, 2, 9)] == [1, 4, 3, 2, 4]
        assert joblib.Parallel().n_jobs == -1
        with pytest.raises(ValueError, match="n_jobs == 0"):
            joblib.effective_n_jobs(0)
    with joblib.parallel_config("pparallel", pool={"backend": "thread", "size": 3}):
        assert [joblib.effective_n_jobs(each) for each in (-1, 2, 9)] == [3, 2, 3]
    with joblib.parallel_config("pparallel", pool="thread"):
        assert joblib.effective_n_jobs(9) == 9


def test_no_more_jobs_at_once_than_asked_for(pool: Pool) -> None:
    running: list[int] = []
    most: list[int] = []

    def count(number: int) -> None:
        running.append(number)
        most.append(len(running))
        threading.Event().wait(0.001)
        running.remove(number)

    with joblib.parallel_config("pparallel", pool=pool, n_jobs=2):
        joblib.Parallel(pre_dispatch="all", batch_size=1)(
            joblib.delayed(count)(each) for each in range(100)
        )
    assert max(most) <= 2


def test_a_pool_that_was_given_stays_open(pool: Pool) -> None:
    with joblib.parallel_config("pparallel", pool=pool):
        with pytest.raises(LookupError):
            joblib.Parallel()(joblib.delayed(refuse)(each) for each in range(100))
        assert joblib.Parallel()([joblib.delayed(refuse)(1)]) == [1]
    assert pool.apply(square, (3,)) == 9


def test_a_pool_that_was_closed(pool: Pool) -> None:
    with joblib.parallel_config("pparallel", pool=pool):
        pool.close()
        with pytest.raises(ClosedError):
            joblib.Parallel()(joblib.delayed(square)(each) for each in range(100))


def test_a_pool_that_is_built_is_used_again_and_ends() -> None:
    with no_leftovers():
        with joblib.parallel_config("pparallel", pool="process", n_jobs=2):
            call = joblib.delayed(os.getpid)
            pids = {each for _ in range(3) for each in joblib.Parallel()(call() for _ in range(20))}
            assert os.getpid() not in pids
            assert len(pids) <= 2
        until_gone(*pids)


def test_worker_contexts() -> None:
    config = ThreadPoolConfig(worker_contexts=("a", "b"))
    with joblib.parallel_config("pparallel", pool=config):
        assert joblib.Parallel()(joblib.delayed(square)(each) for each in range(5))[-1] == 16


def test_a_worker_that_dies() -> None:
    with joblib.parallel_config("pparallel", pool="process", n_jobs=2):
        with pytest.raises(WorkerLostError):
            joblib.Parallel()(joblib.delayed(os._exit)(3) for _ in range(2))
        assert joblib.Parallel()([joblib.delayed(square)(3)]) == [9]


def test_shared_memory() -> None:
    seen: list[int] = []
    with joblib.parallel_config("pparallel", pool="thread", n_jobs=2):
        parallel = joblib.Parallel(require="sharedmem")
        assert type(parallel._backend) is pparallel.joblib.PoolBackend
        parallel(joblib.delayed(seen.append)(each) for each in range(9))
    assert sorted(seen) == list(range(9))
    with joblib.parallel_config("pparallel", pool="process", n_jobs=2):
        assert joblib.Parallel(require="sharedmem")._backend.uses_threads  # joblib's own


def test_threads_in_each_worker(pool: Pool) -> None:
    read = joblib.delayed(_threads)()
    with joblib.parallel_config("pparallel", pool="process", n_jobs=2, inner_max_num_threads=3):
        assert joblib.Parallel()([read, read]) == ["3", "3"]
    with joblib.parallel_config("pparallel", pool="process", n_jobs=os.cpu_count() or 1):
        if joblib.effective_n_jobs() > 1:
            assert set(joblib.Parallel()([read, read])) == {"1"}
    for source in (pool, "thread"):
        with (
            joblib.parallel_config("pparallel", pool=source, n_jobs=2, inner_max_num_threads=1),
            pytest.raises(ConfigError, match="threads"),
        ):
            joblib.Parallel()([read, read])


def test_what_is_no_pool() -> None:
    with pytest.raises(UnknownBackendError, match="thread"):
        joblib.parallel_config("pparallel", pool="tread")
    with pytest.raises(ConfigError, match="size"):
        joblib.parallel_config("pparallel", pool={"backend": "thread", "size": 0})


def test_from_several_threads(pool: Pool) -> None:
    def use() -> None:
        with joblib.parallel_config("pparallel", pool=pool, n_jobs=2):
            results.append(joblib.Parallel()(joblib.delayed(square)(each) for each in range(200)))

    results: list[list[int]] = []
    users = [threading.Thread(target=use) for _ in range(3)]
    for each in users:
        each.start()
    for each in users:
        each.join(PATIENCE)
    assert results == [[each * each for each in range(200)]] * 3


def test_ctrl_c(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
            import os, signal, sys, threading, time
            import joblib, pparallel.joblib

            arrived = sys.argv[2]

            def wait():
                open(arrived, "a").close()
                time.sleep(60)

            def interrupt():
                while not os.path.exists(arrived):
                    time.sleep(0.01)
                os.kill(os.getpid(), signal.SIGINT)

            if __name__ == "__main__":
                with joblib.parallel_config("pparallel", pool=sys.argv[1], n_jobs=2):
                    joblib.Parallel()(joblib.delayed(abs)(each) for each in range(9))
                    threading.Thread(target=interrupt).start()
                    try:
                        joblib.Parallel()(joblib.delayed(wait)() for _ in range(9))
                    except KeyboardInterrupt:
                        print("interrupted", flush=True)
        """)
    )

    def run(source: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(program), source, str(tmp_path / source)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    with ThreadPoolExecutor() as threads:
        for done in threads.map(run, ("thread", "process")):
            assert (done.returncode, done.stdout) == (0, "interrupted\n"), (done.args, done.stderr)


@pytest.mark.parametrize("source", ["process"], indirect=True)
@pytest.mark.usefixtures("jobs")
def test_grid_search() -> None:
    from sklearn.datasets import load_iris  # here: workers import this module
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV

    features, labels = load_iris(return_X_y=True)
    search = GridSearchCV(LogisticRegression(max_iter=500), {"C": [0.1, 1.0]}, cv=3)
    search.fit(features, labels)
    assert search.best_score_ > 0.9
    assert set(search.cv_results_["param_C"]) == {0.1, 1.0}


def _threads() -> str | None:
    return os.environ.get("OMP_NUM_THREADS")


def _wait_for(path: Path) -> None:
    until(path.exists, f"{path} is not there")
