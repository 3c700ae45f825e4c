"""Pools work wherever Python runs: no main guard, ``python -``, ``-c``, the REPL, a notebook.

Workers never run ``__main__`` again, and an instance of one of its classes comes back as the
program's own class. No kernel of Jupyter is installed here: the notebook is an interpreter that
compiles one cell after the other into a ``__main__`` without a file, as a kernel does.
"""

from __future__ import annotations

import importlib
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from process_backends import pool_of

from pparallel.errors import PparallelError
from pparallel.machine.cpus import usable_cpus
from pparallel.testing.patience import PATIENCE
from pparallel.testing.pool.tasks import note, noted

LIMIT = 60.0
METHODS = ("forkserver", "spawn", "fork")

#: what is done in each place; blank lines only between statements, for the REPL
PROGRAM = """\
import os, sys, pparallel

print("main runs")

class Point:
    def __init__(self, x):
        self.x = x
    def __eq__(self, other):
        return type(other) is Point and self.x == other.x

class Refused(Exception):
    pass

scale = 2

def scaled(x):
    return scale * x

def moved(point):
    assert isinstance(point, Point)
    return Point(point.x + 1)

def refuse(x):
    raise Refused(x)

from pparallel_process import ProcessPoolConfig

pool = pparallel.build(ProcessPoolConfig(size=2, start_method="METHOD"))

pool.open()

assert pool.map(scaled, range(5)) == [0, 2, 4, 6, 8]

assert pool.map(moved, [Point(1), Point(2)]) == [Point(2), Point(3)]

assert list(pool.imap(lambda x: Point(x + scale), [1])) == [Point(3)]

assert type(pool.submit(refuse, 1).exception()) is Refused

def scaled(x):
    return 100 * x

assert pool.map(scaled, range(3)) == [0, 100, 200]

scale = 7

assert pool.apply(lambda: scale) == 7

class Point:
    def __init__(self, x):
        self.x = -x
    def __eq__(self, other):
        return type(other) is Point and self.x == other.x

assert pool.apply(Point, (4,)) == Point(4)

pool.close()

pool.join()

print("all is " + "well")
"""


def program(method: str = "forkserver") -> str:
    return PROGRAM.replace("METHOD", method)


def run(command: list[str], *, given: str = "", **options: Any) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, *command],
        input=given,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
        **options,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def check_all(calls: Mapping[str, Callable[[], tuple[str, str]]]) -> None:
    """Run programs at the same time, as most of what they do is to start; all must be well."""
    with ThreadPoolExecutor(len(calls)) as threads:
        running = {what: threads.submit(call) for what, call in calls.items()}
    for what, each in running.items():
        out, err = each.result()
        assert out == "main runs\nall is well\n", (what, err)
        assert err == "", what


def test_a_script_without_a_main_guard(tmp_path: Path) -> None:
    scripts = {method: tmp_path / f"{method}.py" for method in METHODS}
    for method, script in scripts.items():
        script.write_text(program(method))
    check_all({method: partial(run, [str(script)]) for method, script in scripts.items()})


def test_other_ways_to_start_a_program(tmp_path: Path) -> None:
    package = tmp_path / "somewhere"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "job.py").write_text(program())
    ways = {
        "python -m": partial(run, ["-m", "somewhere.job"], cwd=tmp_path),
        "python -": partial(run, ["-"], given=program()),
        "-c": partial(run, ["-c", program("spawn")]),
    }
    check_all(ways)


def test_the_repl() -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-q"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env={**os.environ, "TERM": "dumb", "PYTHON_BASIC_REPL": "1"},
    )
    os.close(theirs)
    try:
        shown = ""
        for statement in program().split("\n\n"):
            os.write(ours, f"{statement.strip()}\n\n".encode())
            shown += read_until_quiet(ours, ">>> ")
        os.write(ours, b"exit()\n")
        end = time.monotonic() + PATIENCE
        while "all is well" not in shown and time.monotonic() < end:
            shown += read_until_quiet(ours, ">>> ")
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert "Traceback" not in shown, shown
    assert "\nmain runs" in shown.replace("\r", "")
    assert "\nall is well" in shown.replace("\r", "")


def read_until_quiet(terminal: int, prompt: str) -> str:
    """Return what is shown up to the next prompt."""
    shown, end = "", time.monotonic() + PATIENCE
    while not shown.endswith(prompt) and time.monotonic() < end:
        if select.select([terminal], [], [], 0.3)[0]:
            try:
                shown += os.read(terminal, 65536).decode()
            except OSError:  # it has ended
                return shown
        elif prompt in shown:
            return shown
    return shown


NOTEBOOK = """
import ast, sys, types
main = types.ModuleType("__main__")  # as a kernel has: no file, no spec
main.__builtins__ = __builtins__
sys.modules["__main__"] = main
for number, cell in enumerate({cells!r}):
    exec(compile(cell, f"<cell {{number}}>", "exec"), main.__dict__)
"""


COROUTINES = """
import asyncio, pparallel
def double(x):
    return 2 * x
async def cell():
    with pparallel.build({"pool": {"backend": "process", "size": 2}}) as rt:
        assert rt.pool.map(double, range(3)) == [0, 2, 4]
        handles = [rt.pool.submit(double, each) for each in range(50)]
        assert await asyncio.gather(*handles) == list(range(0, 100, 2))
        loop = asyncio.get_running_loop()
        assert await loop.run_in_executor(rt.pool.as_executor(), double, 4) == 8
    print("main runs")
    print("all is well")
asyncio.run(cell())
"""


def test_a_notebook(tmp_path: Path) -> None:
    """Its cells, and its coroutines: a kernel's cells run while its event loop does."""
    cells = NOTEBOOK.format(cells=program().split("\n\n"))
    kernels = {"cells": cells, "coroutines": COROUTINES}
    for what, kernel in kernels.items():
        (tmp_path / f"{what}.py").write_text(kernel)
    check_all({what: partial(run, [str(tmp_path / f"{what}.py")]) for what in kernels})


# -- what workers have of their program --------------------------------------------------------


Script = Callable[..., str]

HEAD = """
import os, sys, pparallel
from pparallel_process import ProcessPoolConfig
def make(size=2, **options):
    return pparallel.build(ProcessPoolConfig(size=size, **options))
"""


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """Run a script in which ``make`` makes a pool; return what it wrote."""

    def run_script(body: str, **options: Any) -> str:
        path = tmp_path / "main_script.py"
        path.write_text(HEAD + body)
        return run([str(path), "first"], **options)[0]

    return run_script


def test_modules_beside_the_script(script: Script, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("import os\ndef number(x):\n    return 3 * x\n")
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "added.py").write_text("def number(x):\n    return 4 * x\n")
    out = script(
        """
import beside
with make(initializer="beside:number", initargs=(1,)) as pool:
    print(pool.map(beside.number, range(3)))
sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "later"))
import added
with make() as pool:
    print(pool.map(added.number, range(3)))
    print(pool.apply(lambda: sys.argv[1:]))
""",
    )
    assert out == "[0, 3, 6]\n[0, 4, 8]\n['first']\n"


def test_the_environment_of_workers(script: Script) -> None:
    out = script(
        """
def own(names):
    return [os.environ.get(each) for each in names]
hidden = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PPARALLEL_ANYTHING"]
with make() as pool:
    print(pool.apply(own, (["BEFORE", "LATER", *hidden],)))
os.environ["LATER"] = "there"
os.chdir("/")
with make() as pool:
    print(pool.apply(own, (["BEFORE", "LATER"],)), pool.apply(os.getcwd))
    print(pool.apply(lambda: sys.stdin.read()))
""",
        env={
            **os.environ,
            "BEFORE": "there",
            "RANK": "1",
            "LOCAL_RANK": "1",
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "1234",
            "PPARALLEL_ANYTHING": "1",
        },
    )
    assert out.splitlines() == [
        "['there', None, None, None, None, None, None, None]",
        "['there', 'there'] /",
        "",
    ]


def test_torch_in_workers(script: Script) -> None:
    """It is imported by those that do its work, and has as many threads as it is told."""
    pytest.importorskip("torch")
    out = script(
        """
import numpy, torch
NAMES = ["OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"]
def heavy(_):
    return sorted({"torch", "numpy", "multiprocessing.pool", "pytest"} & set(sys.modules))
def own(_):
    before = [os.environ.get(each) for each in NAMES]
    import torch
    return before, torch.get_num_threads()
before = torch.get_num_threads()
with make(size=1) as pool, make(size=1, threads_per_worker=2) as two:
    print(pool.map(heavy, range(4)), two.apply(heavy, (1,)))
    print(two.apply(own, (torch.ones(1000),)))
    print(float(two.apply(abs, (torch.tensor(-2.0),))), pool.submit(min, [3, 1]).result())
print(torch.get_num_threads() == before, [each for each in NAMES if each in os.environ])
""",
        env={key: value for key, value in os.environ.items() if "NUM_THREADS" not in key},
    )
    assert out.splitlines() == [
        "[[], [], [], []] []",
        "(['2', '2', '2', '2'], 2)",
        "2.0 1",
        "True []",
    ]


def test_cores_and_global_state(script: Script) -> None:
    """What workers have of the cores; and nothing of the program itself is changed."""
    share = None if usable_cpus() == 1 else usable_cpus() // 2
    out = script(
        """
import multiprocessing, resource, signal, threading
def state():
    signals = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGCHLD, signal.SIGTERM)]
    return [multiprocessing.get_start_method(allow_none=True), dict(os.environ), signals,
            sys.path[:], resource.getrlimit(resource.RLIMIT_NOFILE), sys.flags, os.getcwd(),
            signal.pthread_sigmask(signal.SIG_BLOCK, ())]
def share():
    with make(size=2) as several, make(size=1) as one:
        return [each.apply(os.getenv, ("OMP_NUM_THREADS",)) for each in (several, one)]
before = state()
with make() as pool:
    pool.map(abs, range(10))
    during = state()
print(before == during == state(), len(threading.enumerate()))
print(share())
os.environ["OMP_NUM_THREADS"] = "7"
print(share())
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
with pparallel.build(ProcessPoolConfig()) as pool:
    print(pool.size(), len(pool.pids()))
""",
        env={key: value for key, value in os.environ.items() if "NUM_THREADS" not in key},
    )
    assert out.splitlines() == [
        "True 1",
        str([share and str(share), None]),
        "['7', '7']",
        "1 1",
    ]


def test_output_of_workers_comes_out(script: Script) -> None:
    """Also what is not flushed as a worker ends, or a task calls ``sys.exit``."""
    out = script(
        """
def say(text):
    print(text)
    sys.exit(1)
with make(size=1) as pool:
    pool.apply(print, ("hello",))
    pool.submit(say, "exiting").exception()
print("end", flush=True)
"""
    )
    assert sorted(out.split()) == ["end", "exiting", "hello"]


# -- pools in workers --------------------------------------------------------------------------


def test_a_module_that_opens_a_pool_when_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each worker that imports it would have workers that import it."""
    (tmp_path / "opens_a_pool.py").write_text(
        "from process_backends import pool_of\n"
        "pool = pool_of('process')\n"
        "pool.open()\n"
        "def double(x):\n"
        "    return 2 * x\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("opens_a_pool")
    try:
        for func, args in ((module.double, (1,)), (abs, (Named(module.double),))):
            with pytest.raises(PparallelError, match="opens a pool while another process"):
                module.pool.apply(func, args)
        assert module.pool.apply(abs, (-1,)) == 1
    finally:
        module.pool.terminate()
        module.pool.join()
        del sys.modules["opens_a_pool"]


class Named:
    """Has a function, which goes by name."""

    def __init__(self, func: Callable[..., Any]) -> None:
        self.func = func


def test_pools_are_nested_so_deep_and_no_deeper(tmp_path: Path) -> None:
    with pytest.raises(PparallelError, match="nested 8 deep"):
        nest("forkserver", tmp_path / "notes", 0)
    assert noted(tmp_path / "notes") == [str(each) for each in range(9)]


def nest(method: str, notes: Path, depth: int) -> None:
    note(notes, depth)
    with pool_of("process", 1, start_method=method) as pool:
        pool.apply(nest, ("fork", notes, depth + 1))
