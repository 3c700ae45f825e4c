"""A forked child has none of the workers of its parent's pools: what asks for them is refused."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

import pparallel
from pparallel.config import BackendConfig
from pparallel.errors import ClosedError
from pparallel.interfaces.pool import Pool
from pparallel.testing.patience import PATIENCE
from pparallel_local import ThreadPoolConfig
from pparallel_process import ProcessPoolConfig

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

LIMIT = 10  #: seconds after which a child that hangs is ended

CALLS: dict[str, Callable[[Pool], object]] = {
    "map": lambda pool: pool.map(abs, [-1]),
    "imap": lambda pool: next(pool.imap(abs, [-1])),
    "submit": lambda pool: pool.submit(abs, -1).result(),
    "apply_async": lambda pool: pool.apply_async(abs, (-1,), callback=print).get(),
}


def in_child(act: Callable[[], object]) -> int:
    """Return the exit code of a forked child in which *act* is called: 0 if it is refused."""
    pid = os.fork()
    if not pid:
        _call(act)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _call(act: Callable[[], object]) -> NoReturn:
    code = 2
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(LIMIT)
        act()
        code = 1
    except ClosedError as error:
        code = 0 if "fork" in str(error) else 3
    finally:
        os._exit(code)


POOLS: list[Any] = [ThreadPoolConfig(size=2), ProcessPoolConfig(size=2)]


@pytest.mark.parametrize("config", POOLS, ids=lambda each: str(each.backend))
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_call_in_a_forked_child_is_refused(
    config: BackendConfig[Pool], call: Callable[[Pool], object]
) -> None:
    with pparallel.build(config) as pool:
        assert pool.map(abs, range(-9, 0)) == list(range(9, 0, -1))
        assert in_child(lambda: call(pool)) == 0
        assert pool.map(abs, range(-9, 0)) == list(range(9, 0, -1))


@pytest.mark.parametrize("config", POOLS, ids=lambda each: str(each.backend))
def test_a_forked_child_ends_its_parents_pool(config: BackendConfig[Pool]) -> None:
    def end(pool: Pool) -> None:
        pool.close()
        pool.join()
        pool.terminate()
        pool.join()
        pool.map(abs, [-1])

    with pparallel.build(config) as pool:
        assert in_child(lambda: end(pool)) == 0
        assert pool.map(abs, range(-9, 0)) == list(range(9, 0, -1))


def read(path: str) -> str:
    """Wait until the test writes to *path*, which is a pipe."""
    with open(path) as file:
        return file.read()


@pytest.mark.parametrize("config", POOLS, ids=lambda each: str(each.backend))
def test_a_result_of_the_parent_is_not_waited_for_in_a_forked_child(
    config: BackendConfig[Pool], tmp_path: Path
) -> None:
    paths = [str(tmp_path / each) for each in "ab"]
    for each in paths:
        os.mkfifo(each)
    with pparallel.build(config) as pool:
        handle, stream = pool.submit(read, paths[0]), pool.imap(read, paths[1:])
        try:
            assert in_child(handle.result) == 0
            assert in_child(lambda: next(stream)) == 0
        finally:
            for each in paths:
                with open(each, "w") as file:
                    file.write(each)
        assert [handle.result(PATIENCE), stream.next(PATIENCE)] == paths
