"""Ctrl-C, and the death of the program itself: its workers go with it, and nothing stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil

from pparallel.testing.patience import PATIENCE, until

HEAD = """
import ctypes, gc, os, sys, threading, time
import pparallel, pparallel_process
method, path = sys.argv[1:]

def arrive():
    with open(path, "a") as file:
        file.write(f"{os.getpid()}\\n")

def wait(_=None):
    arrive()
    time.sleep(1000)

def hold_the_gil(_=None):
    arrive()
    ctypes.PyDLL(None).sleep(1000)

def compute(_=None):
    arrive()
    while True:
        pass

def make(size=2, **options):
    return pparallel.build(pparallel_process.ProcessPoolConfig(
        size=size, start_method=method, **options
    ))
"""


class Case(NamedTuple):
    """A program: what comes after the head, and the pools that it makes."""

    body: str
    method: str = "forkserver"


class Program:
    """A program that runs with a process group of its own."""

    def __init__(self, directory: Path, case: Case) -> None:
        self._notes = directory / "arrived"
        script = directory / "program.py"
        script.write_text(HEAD + case.body)
        command = [sys.executable, str(script), case.method, str(self._notes)]
        self.process = subprocess.Popen(
            command,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._seen: set[psutil.Process] = set()

    def arrived(self, count: int = 2) -> list[int]:
        """Wait until tasks have begun; return their workers' process ids."""

        def all_there() -> bool:
            assert self.process.poll() is None, self.process.communicate()
            return len(self._pids()) >= count

        until(all_there, f"{count} tasks did not begin")
        self._seen.update(psutil.Process(self.process.pid).children(recursive=True))
        pids = self._pids()
        assert {each.pid for each in self._seen}.issuperset(pids), "they are not its descendants"
        return pids

    def _pids(self) -> list[int]:
        return (
            [int(each) for each in self._notes.read_text().split()] if self._notes.exists() else []
        )

    def signal(self, number: int) -> None:
        os.killpg(self.process.pid, number)

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, out, err

    def survivors(self) -> list[psutil.Process]:
        return [each for each in self._seen if each.is_running() and not is_zombie(each)]

    def stop(self) -> None:
        self.process.kill()
        for each in self.survivors():
            each.kill()
        self.process.communicate()


def is_zombie(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@contextmanager
def running(directory: Path, case: Case) -> Iterator[Program]:
    program = Program(directory, case)
    try:
        yield program
    finally:
        program.stop()


@contextmanager
def all_running(directory: Path, cases: Mapping[str, Case]) -> Iterator[dict[str, Program]]:
    """Run programs at the same time, as most of what they do is to start."""
    with ExitStack() as stack:
        programs: dict[str, Program] = {}
        for number, (what, case) in enumerate(cases.items()):
            (own := directory / str(number)).mkdir()
            programs[what] = stack.enter_context(running(own, case))
        yield programs


def check_no_survivors(what: str, program: Program) -> None:
    until(lambda: not program.survivors(), f"{what}: the workers did not end")


# -- Ctrl-C ------------------------------------------------------------------------------------

IN_MAP = """
with make() as pool:
    pool.map({task}, range(2))
"""
IN_IMAP = """
with make() as pool:
    for each in pool.imap_unordered({task}, range(100)):
        print(each)
"""
IN_SUBMIT = """
with make() as pool:
    handles = [pool.submit({task}) for _ in range(20)]
    handles[-1].result()
"""
WITHOUT_WITH = """
pool = make()
pool.open()
pool.map({task}, range(2))
"""


def test_ctrl_c(tmp_path: Path) -> None:
    check_ctrl_c(
        tmp_path,
        {
            "map": Case(IN_MAP.format(task="compute")),
            "imap": Case(IN_IMAP.format(task="wait"), "spawn"),
            "submit": Case(IN_SUBMIT.format(task="wait"), "fork"),
            "without with": Case(WITHOUT_WITH.format(task="hold_the_gil")),
        },
    )


def check_ctrl_c(directory: Path, cases: Mapping[str, Case]) -> None:
    with all_running(directory, cases) as programs:
        for program in programs.values():
            program.arrived()
        for program in programs.values():
            program.signal(signal.SIGINT)
        for what, program in programs.items():
            code, _, err = program.end()
            assert code == -signal.SIGINT, (what, err)  # which a shell calls 130
            assert err.count("Traceback") == 1, (what, err)
            assert err.strip().endswith("KeyboardInterrupt"), (what, err)
            check_no_survivors(what, program)


def test_a_pool_survives_ctrl_c_that_is_caught(tmp_path: Path) -> None:
    body = """
with make() as pool:
    def pause(_):
        arrive()
        while not os.path.exists(path + "-caught"):
            time.sleep(0.01)
    assert pool.map(abs, [1, -2]) == [1, 2]
    try:
        pool.map(pause, range(2))
    except KeyboardInterrupt:
        print("caught", flush=True)
        open(path + "-caught", "x").close()
    print(sum(pool.map(abs, range(100))), flush=True)
"""
    with running(tmp_path, Case(body)) as program:
        program.arrived()
        program.signal(signal.SIGINT)
        code, out, err = program.end()
        assert (code, out) == (0, "caught\n4950\n"), err
        assert err == ""


def test_what_a_task_starts_hears_ctrl_c(tmp_path: Path) -> None:
    """Workers do nothing at SIGINT; programs that they execute have Python's usual handler."""
    body = """
import subprocess
def start(_):
    child = subprocess.Popen(["sleep", "1000"])
    arrive()
    return child.wait()
with make() as pool:
    try:
        pool.map(start, range(2))
    except KeyboardInterrupt:
        print(pool.apply(abs, (-1,)), flush=True)
"""
    with running(tmp_path, Case(body)) as program:
        program.arrived()
        program.signal(signal.SIGINT)
        code, out, err = program.end()
        assert (code, out) == (0, "1\n"), err
        check_no_survivors("what tasks started", program)


# -- the program is killed ---------------------------------------------------------------------

KILLED = """
def nest(_):
    with make() as inner:
        inner.map(hold_the_gil, range(2))

def open_in_a_thread():
    pools[0].open()

{pools}
thread = threading.Thread(target=open_in_a_thread)
thread.start()
thread.join()
for each in pools[1:]:
    each.open()
{tasks}
time.sleep(1000)
"""
WAYS = (
    """
pools = [make(), make(), make(), make(), make(size=1), make(initializer=hold_the_gil)]
holding, waiting, computing, idle, nested, starting = pools
""",
    """
holding.map_async(hold_the_gil, range(2))
waiting.map_async(wait, range(2))
computing.map_async(compute, range(2))
idle.map_async(abs, range(100)).get()
nested.map_async(nest, range(1))
with open(path, "a") as file:
    for each in idle.pids():
        file.write(f"{each}\\n")
""",
)
FEW = "pools = [make()]", "pools[0].map_async(hold_the_gil, range(2))"


def test_workers_go_with_a_program_that_is_killed(tmp_path: Path) -> None:
    """Whatever they do; one of the pools was opened by a thread that has ended."""
    cases = {"forkserver": (WAYS, 12), "spawn": (FEW, 2), "fork": (FEW, 2)}
    programs = {
        method: Case(KILLED.format(pools=pools, tasks=tasks), method)
        for method, ((pools, tasks), _) in cases.items()
    }
    with all_running(tmp_path, programs) as running:
        for method, program in running.items():
            program.arrived(cases[method][1])
        for program in running.values():
            program.process.kill()
        for method, program in running.items():
            check_no_survivors(method, program)


def test_a_pool_with_large_values_is_killed(tmp_path: Path) -> None:
    body = """
def echo(value):
    arrive()
    return value
block = bytearray(50_000_000)
with make() as pool:
    for each in pool.imap(echo, (block for _ in range(100_000))):
        pass
"""
    with running(tmp_path, Case(body)) as program:
        program.arrived(5)
        program.process.kill()
        check_no_survivors("large values", program)


def test_sigterm_of_the_program(tmp_path: Path) -> None:
    with running(tmp_path, Case(IN_MAP.format(task="hold_the_gil"))) as program:
        program.arrived()
        program.process.terminate()
        code, _, _ = program.end()
        assert code == -signal.SIGTERM
        check_no_survivors("SIGTERM", program)


# -- the fork server is killed -----------------------------------------------------------------


def test_a_fork_server_that_is_killed(tmp_path: Path) -> None:
    """Its workers go with it, and the next ones have another."""
    body = """
import psutil, signal
with make(retries=3) as pool:
    assert pool.map(abs, range(10)) == list(range(10))
    for _ in range(3):
        worker = psutil.Process(pool.pids()[0])
        os.kill(worker.ppid(), signal.SIGKILL)
        assert pool.map(abs, range(1000)) == list(range(1000))
    print("done", flush=True)
"""
    with running(tmp_path, Case(body)) as program:
        code, out, err = program.end()
        assert (code, out) == (0, "done\n"), err


# -- after os.fork in the user's program -------------------------------------------------------

FORKS: dict[str, str] = {
    "the child ends at once": "os._exit(0)",
    "the child ends as programs do": "del pool, stack; gc.collect(); sys.exit(0)",
    "the child has a pool of its own": """
    with make() as own:
        assert own.map(abs, range(-9, 0)) == list(range(9, 0, -1))
    os._exit(0)
""",
    "the child cannot use its parent's pool": """
    try:
        pool.submit(abs, -1).result(10)
    except RuntimeError as error:
        assert "fork" in str(error), error
        os._exit(0)
    os._exit(1)
""",
    "the child closes its parent's pool": """
    pool.terminate()
    pool.join()
    os._exit(0)
""",
}


FORKING = """
import contextlib
with contextlib.ExitStack() as stack:
    pool = stack.enter_context(make())
    assert pool.map(abs, range(-9, 0)) == list(range(9, 0, -1))
    large = pool.apply(bytearray, (1_000_000,))
"""
FORK = """
    pid = os.fork()
    if pid == 0:
        {child}
    assert os.waitpid(pid, 0)[1] == 0, {what!r}
    large[0] = 1
    assert pool.map(abs, range(-99, 0)) == list(range(99, 0, -1))
    assert len(pool.apply(bytearray, (1_000_000,))) == 1_000_000
"""


def test_a_program_that_forks(tmp_path: Path) -> None:
    inside = {what: child.strip().replace("\n", "\n    ") for what, child in FORKS.items()}
    forks = "".join(FORK.format(child=child, what=what) for what, child in inside.items())
    with running(tmp_path, Case(f"{FORKING}{forks}print('done')\n")) as program:
        code, out, err = program.end()
        assert (code, out.splitlines()[-1:]) == (0, ["done"]), err
        assert "Error" not in err


def test_a_forked_child_keeps_no_worker(tmp_path: Path) -> None:
    """It inherits descriptors: workers end all the same when its parent closes the pool."""
    body = """
reading, writing = os.pipe()
with make() as pool:
    pids = pool.pids()
    assert pool.map(abs, range(-9, 0)) == list(range(9, 0, -1))
    if os.fork() == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    os.close(reading)
deadline = time.monotonic() + 10
while any(os.path.exists(f"/proc/{each}") for each in pids) and time.monotonic() < deadline:
    time.sleep(0.01)
print(sum(os.path.exists(f"/proc/{each}") for each in pids))
os.close(writing)
os.wait()
"""
    with running(tmp_path, Case(body)) as program:
        code, out, err = program.end()
        assert (code, out) == (0, "0\n"), err


def test_a_task_that_forks_and_dies(tmp_path: Path) -> None:
    """Its child holds the worker's descriptors: the death is told all the same."""
    body = """
def fork_and_die(way):
    if os.fork() == 0:
        os.closerange(1, 3)  # the test waits for their end
        open(way).close()
        os._exit(0)
    os._exit(9)
way = path + "-way"
os.mkfifo(way)
with make() as pool:
    error = pool.submit(fork_and_die, way).exception()
    print(error.exitcode, sum(pool.map(abs, range(10))))
    open(way, "w").close()  # the child has lived on to here
"""
    with running(tmp_path, Case(body)) as program:
        code, out, err = program.end()
        assert (code, out) == (0, "9 45\n"), err
