"""Pools work wherever Python runs: no main guard, ``python -``, ``-c``, the REPL, a notebook.

Workers never run ``__main__`` again, and an instance of one of its classes comes back as the
program's own class. No kernel of Jupyter is installed here: the notebook is an interpreter that
compiles one cell after the other into a ``__main__`` without a file, as a kernel does.
"""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pparallel.testing.patience import PATIENCE

LIMIT = 60.0
CONFIGS = {"process": "ProcessPoolConfig", "p2p": "P2PPoolConfig"}
each_backend = pytest.mark.parametrize("backend", ["process", "p2p"])

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


def program(backend: str, method: str = "forkserver") -> str:
    return PROGRAM.replace("CONFIG", CONFIGS[backend]).replace("METHOD", method)


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


def check(out: str, err: str = "") -> None:
    assert out == "main runs\nall is well\n", err
    assert err == ""


@each_backend
@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
def test_a_script_without_a_main_guard(tmp_path: Path, backend: str, method: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(program(backend, method))
    check(*run([str(script)]))


@pytest.mark.parametrize("backend", ["process"])
def test_a_module_that_is_run(tmp_path: Path, backend: str) -> None:
    package = tmp_path / "somewhere"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "job.py").write_text(program(backend))
    check(*run(["-m", "somewhere.job"], cwd=tmp_path))


@pytest.mark.parametrize("backend", ["process"])
def test_python_dash(backend: str) -> None:
    check(*run(["-"], given=program(backend)))


@pytest.mark.parametrize("backend", ["process"])
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_python_c(backend: str, method: str) -> None:
    check(*run(["-c", program(backend, method)]))


@pytest.mark.parametrize("backend", ["process"])
def test_an_interactive_interpreter_whose_input_is_a_pipe(backend: str) -> None:
    out, err = run(["-i", "-q"], given=program(backend))
    assert out == "main runs\nall is well\n", err
    assert "Traceback" not in err


@pytest.mark.parametrize("backend", ["process"])
def test_the_repl(backend: str) -> None:
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
        for statement in program(backend).split("\n\n"):
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


@each_backend
def test_cells_of_a_notebook(tmp_path: Path, backend: str) -> None:
    script = tmp_path / "kernel.py"
    script.write_text(NOTEBOOK.format(cells=program(backend).split("\n\n")))
    check(*run([str(script)]))


@pytest.mark.parametrize("backend", ["process"])
def test_coroutines_of_a_notebook(tmp_path: Path, backend: str) -> None:
    """A kernel's cells run while its event loop does."""
    script = tmp_path / "kernel.py"
    script.write_text(f"""
import asyncio, pparallel
def double(x):
    return 2 * x
async def cell():
    with pparallel.build({{"pool": {{"backend": "{backend}", "size": 2}}}}) as rt:
        assert rt.pool.map(double, range(3)) == [0, 2, 4]
        handles = [rt.pool.submit(double, each) for each in range(50)]
        assert await asyncio.gather(*handles) == list(range(0, 100, 2))
        loop = asyncio.get_running_loop()
        assert await loop.run_in_executor(rt.pool.as_executor(), double, 4) == 8
    print("main runs")
    print("all is well")
asyncio.run(cell())
""")
    check(*run([str(script)]))


# -- what workers have of their program --------------------------------------------------------


@pytest.fixture(params=["forkserver", "spawn"])
def script(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., tuple[str, str]]:
    """Run a script in which ``make`` makes a pool; return what it wrote."""

    def run_script(body: str, *, where: Path = tmp_path, **options: Any) -> tuple[str, str]:
        path = where / "main_script.py"
        path.write_text(
            "import os, sys, pparallel\nfrom pparallel_process import ProcessPoolConfig\n"
            "def make(size=2, **options):\n"
            f"    method = {request.param!r}\n"
            "    return pparallel.build(\n"
            "        ProcessPoolConfig(size=size, start_method=method, **options))\n" + body
        )
        return run([str(path), "first", "second"], **options)

    return run_script


def test_modules_beside_the_script(script: Callable[..., tuple[str, str]], tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("import os\ndef number(x):\n    return 3 * x\n")
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "added.py").write_text("def number(x):\n    return 4 * x\n")
    out, _ = script(
        """
import beside
with make(initializer="beside:number", initargs=(1,)) as pool:
    print(pool.map(beside.number, range(3)))
sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "later"))
import added
with make() as pool:
    print(pool.map(added.number, range(3)))
    print(pool.apply(lambda: sys.argv[1:]))
"""
    )
    assert out == "[0, 3, 6]\n[0, 4, 8]\n['first', 'second']\n"


def test_the_environment_of_workers(script: Callable[..., tuple[str, str]]) -> None:
    out, _ = script(
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


@pytest.mark.parametrize("script", ["forkserver"], indirect=True)
def test_workers_that_do_no_torch_work_import_no_torch(
    script: Callable[..., tuple[str, str]],
) -> None:
    pytest.importorskip("torch")
    out, _ = script(
        """
import numpy, torch
def heavy(_):
    return sorted({"torch", "numpy", "multiprocessing.pool", "pytest"} & set(sys.modules))
with make() as pool:
    print(pool.map(heavy, range(4)))
    print(float(pool.apply(abs, (torch.tensor(-2.0),))), pool.submit(min, [3, 1]).result())
"""
    )
    assert out == "[[], [], [], []]\n2.0 1\n"


@pytest.mark.parametrize("script", ["forkserver"], indirect=True)
def test_threads_per_worker(script: Callable[..., tuple[str, str]]) -> None:
    pytest.importorskip("torch")
    out, _ = script(
        """
import torch
NAMES = ["OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"]
def own(_):
    before = [os.environ.get(each) for each in NAMES]
    import torch
    return before, torch.get_num_threads()
before = torch.get_num_threads()
with make(threads_per_worker=1) as pool:
    print(pool.apply(own, (1,)))
with make(threads_per_worker=2) as pool:
    print(pool.apply(own, (torch.ones(1000),)))
print(torch.get_num_threads() == before, [each for each in NAMES if each in os.environ])
""",
        env={key: value for key, value in os.environ.items() if "NUM_THREADS" not in key},
    )
    assert out.splitlines() == [
        "(['1', '1', '1', '1'], 1)",
        "(['2', '2', '2', '2'], 2)",
        "True []",
    ]


@pytest.mark.parametrize("script", ["forkserver"], indirect=True)
def test_the_default_size_heeds_the_cpus_that_may_be_used(
    script: Callable[..., tuple[str, str]],
) -> None:
    out, _ = script(
        """
cpus = sorted(os.sched_getaffinity(0))
os.sched_setaffinity(0, cpus[:1])
with pparallel.build(ProcessPoolConfig()) as pool:
    print(pool.size(), len(pool.pids()))
"""
    )
    assert out == "1 1\n"


@pytest.mark.parametrize("script", ["forkserver"], indirect=True)
def test_share_tensors(script: Callable[..., tuple[str, str]]) -> None:
    pytest.importorskip("torch")
    out, _ = script(
        """
import torch
def fill(tensor, value):
    tensor.fill_(value)
    return tensor
def later(_):
    return float(KEPT[0][0])
def keep(tensor):
    global KEPT
    KEPT = [tensor]
for how in ("copy", "cpu"):
    tensor = torch.zeros(100_000)
    with make(size=1, share_tensors=how, preload=("torch",)) as pool:
        result = pool.apply(fill, (tensor, 5.0))
        print(how, float(tensor[0]), float(result[-1]), float(result.sum()))
        result[0] = 7.0
        print(float(tensor[0]))
        small = torch.zeros(3)
        pool.apply(fill, (small, 5.0))
        print(small.tolist())
        # several at once, more than there are descriptors to spare
        many = [torch.zeros(10_000) for _ in range(50)]
        pool.starmap(fill, [(each, at) for at, each in enumerate(many)])
        print(sum(float(each[0]) for each in many))
    print(float(result[0]), torch.multiprocessing.get_sharing_strategy())
"""
    )
    copy = ["copy 0.0 5.0 500000.0", "0.0", "[0.0, 0.0, 0.0]", "0.0", "7.0 file_descriptor"]
    cpu = ["cpu 5.0 5.0 500000.0", "7.0", "[5.0, 5.0, 5.0]", "1225.0", "7.0 file_descriptor"]
    assert out.splitlines() == copy + cpu


@pytest.mark.parametrize("script", ["forkserver"], indirect=True)
def test_output_of_workers_comes_out(script: Callable[..., tuple[str, str]]) -> None:
    """Also what is not flushed as a worker ends, or a task calls ``sys.exit``."""
    out, _ = script(
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


@pytest.mark.parametrize("script", ["forkserver"], indirect=True)
def test_nothing_global_is_changed(script: Callable[..., tuple[str, str]]) -> None:
    out, _ = script(
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
