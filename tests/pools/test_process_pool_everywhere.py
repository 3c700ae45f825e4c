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
from process_backends import BACKENDS, each_backend, pool_of

from pparallel.errors import PparallelError
from pparallel.machine.cpus import usable_cpus
from pparallel.testing.patience import PATIENCE
from pparallel.testing.pool.tasks import note, noted

pytestmark = pytest.mark.costly

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

from pparallel_process import CONFIG

pool = pparallel.build(CONFIG(size=2, start_method="METHOD"))

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


def program(backend: str = "process", method: str = "forkserver") -> str:
    return PROGRAM.replace("CONFIG", BACKENDS[backend].__name__).replace("METHOD", method)


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
        if "-i" not in what:  # it shows its prompts
            assert err == "", what
        assert "Traceback" not in err, what


@each_backend
def test_a_script_without_a_main_guard(tmp_path: Path, backend: str) -> None:
    scripts = {method: tmp_path / f"{method}.py" for method in METHODS}
    for method, script in scripts.items():
        script.write_text(program(backend, method))
    check_all({method: partial(run, [str(script)]) for method, script in scripts.items()})


def test_other_ways_to_start_a_program(tmp_path: Path) -> None:
    package = tmp_path / "somewhere"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "job.py").write_text(program())
    ways = {
        "python -m": partial(run, ["-m", "somewhere.job"], cwd=tmp_path),
        "python -": partial(run, ["-"], given=program()),
        "python -i, whose input is a pipe": partial(run, ["-i", "-q"], given=program()),
        **{f"-c, {each}": partial(run, ["-c", program(method=each)]) for each in METHODS[:2]},
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
    cells = {f"cells, {each}": program(each).split("\n\n") for each in BACKENDS}
    kernels = {what: NOTEBOOK.format(cells=each) for what, each in cells.items()}
    kernels["coroutines"] = COROUTINES
    for what, kernel in kernels.items():
        (tmp_path / f"{what}.py").write_text(kernel)
    check_all({what: partial(run, [str(tmp_path / f"{what}.py")]) for what in kernels})


# -- what workers have of their program --------------------------------------------------------


Script = Callable[..., str]

HEAD = """
import os, sys, pparallel
from pparallel_process import ProcessPoolConfig
method = sys.argv.pop(1)
def make(size=2, **options):
    return pparallel.build(ProcessPoolConfig(size=size, start_method=method, **options))
"""


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """Run a script in which ``make`` makes a pool, with some start methods; return what it wrote.

    They must not differ in that.
    """

    def run_script(body: str, methods: tuple[str, ...] = METHODS[:1], **options: Any) -> str:
        path = tmp_path / "main_script.py"
        path.write_text(HEAD + body)
        calls = [partial(run, [str(path), each, "first"], **options) for each in methods]
        with ThreadPoolExecutor(len(calls)) as threads:
            found = dict(zip(methods, threads.map(lambda call: call(), calls), strict=True))
        first = found[methods[0]][0]
        assert all(out == first for out, _ in found.values()), found
        return str(first)

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
        METHODS[:2],
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
        METHODS[:2],
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
with (
    make() as pool,
    make(size=1, threads_per_worker=1) as one,
    make(size=1, threads_per_worker=2) as two,
):
    print(pool.map(heavy, range(4)), one.apply(heavy, (1,)))
    handles = one.submit(own, 1), two.submit(own, torch.ones(1000))
    for each in handles:
        print(each.result())
    print(float(two.apply(abs, (torch.tensor(-2.0),))), pool.submit(min, [3, 1]).result())
print(torch.get_num_threads() == before, [each for each in NAMES if each in os.environ])
""",
        env={key: value for key, value in os.environ.items() if "NUM_THREADS" not in key},
    )
    assert out.splitlines() == [
        "[[], [], [], []] []",
        "(['1', '1', '1', '1'], 1)",
        "(['2', '2', '2', '2'], 2)",
        "2.0 1",
        "True []",
    ]


@pytest.mark.parametrize("asked", [None, "7"])
def test_a_workers_libraries_have_its_share_of_the_cores(script: Script, asked: str | None) -> None:
    environment = {key: value for key, value in os.environ.items() if "NUM_THREADS" not in key}
    cores = usable_cpus()
    share = None if cores == 1 else cores // 2
    out = script(
        """
with make(size=2) as several, make(size=1) as one:
    for pool in several, one:
        print(pool.apply(os.getenv, ("OMP_NUM_THREADS",)))
""",
        env=environment if asked is None else {**environment, "OMP_NUM_THREADS": asked},
    )
    assert out.split() == ([str(share), "None"] if asked is None else [asked, asked])


def test_the_default_size_heeds_the_cpus_that_may_be_used(
    script: Script,
) -> None:
    out = script(
        """
cpus = sorted(os.sched_getaffinity(0))
os.sched_setaffinity(0, cpus[:1])
with pparallel.build(ProcessPoolConfig()) as pool:
    print(pool.size(), len(pool.pids()))
"""
    )
    assert out == "1 1\n"


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


def test_nothing_global_is_changed(script: Script) -> None:
    out = script(
        """
import multiprocessing, resource, signal, threading
def state():
    signals = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGCHLD, signal.SIGTERM)]
    return [multiprocessing.get_start_method(allow_none=True), dict(os.environ), signals,
            sys.path[:], resource.getrlimit(resource.RLIMIT_NOFILE), sys.flags, os.getcwd(),
            signal.pthread_sigmask(signal.SIG_BLOCK, ())]
before = state()
with make() as pool:
    pool.map(abs, range(10))
    during = state()
print(before == during == state(), len(threading.enumerate()))
"""
    )
    assert out == "True 1\n"


# -- pools in workers --------------------------------------------------------------------------


@each_backend
def test_a_module_that_opens_a_pool_when_it_is_imported(
    tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each worker that imports it would have workers that import it."""
    (tmp_path / "opens_a_pool.py").write_text(
        "from process_backends import pool_of\n"
        f"pool = pool_of({backend!r})\n"
        "pool.open()\n"
        "def double(x):\n"
        "    return 2 * x\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("opens_a_pool")
    try:
        for func, args in ((module.double, (1,)), (abs, (Named(module.double),))):
            with pytest.raises(PparallelError, match="opens a pool while it is imported"):
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


@each_backend
def test_pools_are_nested_so_deep_and_no_deeper(tmp_path: Path, backend: str) -> None:
    with pytest.raises(PparallelError, match="nested 8 deep"):
        nest(backend, "forkserver", tmp_path / "notes", 0)
    assert noted(tmp_path / "notes") == [str(each) for each in range(9)]


def nest(backend: str, method: str, notes: Path, depth: int) -> None:
    note(notes, depth)
    with pool_of(backend, 1, (__name__,), start_method=method) as pool:
        pool.apply(nest, (backend, "fork", notes, depth + 1))
