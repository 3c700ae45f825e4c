"""``__main__`` in workers and launched members: the script's in file, package and contents.

Fresh processes have a real module, which the script is not run in; forks keep what they inherit.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

LIMIT = 60.0

#: functions that children import by name
SEEN = """\
import builtins, sys, types
import pparallel
from pparallel.runtime.processes import main_module
from pparallel_process import ProcessLauncherConfig, ProcessPoolConfig


def main_of(*_):
    main = sys.modules["__main__"]
    assert type(main) is types.ModuleType
    assert main.__name__ == "__main__"
    assert main.__builtins__ is builtins
    assert sys.modules["__mp_main__"] is main
    return {
        "file": getattr(main, "__file__", None),
        "package": main.__package__,
        "spec": getattr(main.__spec__, "name", None),
        "has run": hasattr(main, "marker"),
        "follows": main_module.follows_caller,
    }


def main_in_pool(*_):
    with pparallel.build(ProcessPoolConfig(size=1, start_method="spawn")) as pool:
        return pool.apply(main_of)


def main_in_fork():
    with pparallel.build(ProcessLauncherConfig()) as launcher:
        return launcher.spawn(main_of, nprocs=1, start_method="fork")[0]

"""

#: prints what children see of their ``__main__``, two for each start method
LOOK = """\
import json, sys, pparallel
from pparallel_process import ProcessLauncherConfig, ProcessPoolConfig
from seen import main_in_fork, main_in_pool, main_of

marker = 1
found = []
for method in sys.argv[1:]:
    with pparallel.build(ProcessPoolConfig(size=1, start_method=method)) as pool:
        found.append(pool.apply(main_of))
        if method == "fork":
            found.append(pool.apply(main_in_fork))
            continue
    with pparallel.build(ProcessLauncherConfig()) as launcher:
        found += launcher.spawn(main_in_pool, nprocs=1, start_method=method)
print(json.dumps(found))
"""


def run(
    arguments: Sequence[str | Path], folder: Path, *, given: str = "", fails: bool = False
) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        input=given,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert bool(done.returncode) is fails, done.stderr
    return done.stdout, done.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "seen.py").write_text(SEEN)
    (tmp_path / "script.py").write_text(LOOK)
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "main.py").write_text(LOOK)
    return tmp_path


def test_what_a_child_knows_of_the_script(folder: Path) -> None:
    script, nothing = str(folder / "script.py"), dict.fromkeys(("file", "package", "spec"))
    module = {"file": str(folder / "pkg" / "main.py"), "package": "pkg", "spec": "pkg.main"}
    profiled = ["-m", "cProfile", "-o", "profile", "script.py"]  # not in sys.modules
    ways: list[tuple[list[str], dict[str, Any], list[str]]] = [
        (["script.py"], {**nothing, "file": script}, ["forkserver", "spawn", "fork"]),
        (["-m", "pkg.main"], module, ["forkserver", "fork"]),
        (["-"], nothing, ["forkserver"]),
        (profiled, nothing, ["forkserver"]),
    ]
    for arguments, expected, methods in ways:
        out, err = run([*arguments, *methods], folder, given=LOOK)
        fresh = {**expected, "has run": False, "follows": True}
        forked = {**expected, "has run": True}
        assert json.loads(out) == [
            each
            for method in methods
            for each in (
                [{**forked, "follows": True}, {**forked, "follows": False}]
                if method == "fork"
                else [fresh, fresh]
            )
        ]
        assert err == ""


#: starts children by multiprocessing in a task; GUARD is a line that guards it, or not
LOADING = """\
import io, multiprocessing

import pparallel
from pparallel_process import ProcessPoolConfig

print("runs as", __name__, flush=True)


class Data:
    def __len__(self):
        return 2

    def __getitem__(self, at):
        return at + 1


def write(path):
    with open(path, "w") as file:
        file.write("written")


def start(path):
    process = multiprocessing.get_context("spawn").Process(target=write, args=(path,))
    process.start()
    process.join()
    return process.exitcode


def load():
    import torch
    from torch.utils.data import DataLoader

    file = io.BytesIO()
    torch.save(Data(), file)
    file.seek(0)
    assert type(torch.load(file, weights_only=False)) is Data
    batches = DataLoader(Data(), num_workers=1, multiprocessing_context="spawn")
    return [each.item() for each in batches]


GUARD
    with pparallel.build(ProcessPoolConfig(size=1)) as pool:
        print(pool.apply(start, ("written",)))
"""


def test_a_task_that_starts_children_by_multiprocessing(folder: Path) -> None:
    """They run the script as ``__mp_main__``, as under the standard library."""
    guarded = LOADING.replace("GUARD", 'if __name__ == "__main__":')
    (folder / "script.py").write_text(f"{guarded}        print(pool.apply(load))\n")
    out, err = run(["script.py"], folder)
    assert out.splitlines() == [
        "runs as __main__",
        "runs as __mp_main__",
        "0",
        "runs as __mp_main__",
        "[1, 2]",
    ]
    assert err == ""
    assert (folder / "written").read_text() == "written"


def test_a_script_without_a_guard_whose_task_starts_children(folder: Path) -> None:
    (folder / "script.py").write_text(LOADING.replace("GUARD", "if True:"))
    out, err = run(["script.py"], folder)
    assert out.splitlines() == ["runs as __main__", "runs as __mp_main__", "1"]
    refusal = "the script or a module opens a pool while another process imports it"
    assert err.count(refusal) == 1
    assert 'guard the script with `if __name__ == "__main__":`' in err


#: has a child of multiprocessing open each kind of pool of processes, and launch
EACH_KIND = """\
import multiprocessing

import joblib

import pparallel
import pparallel.joblib
from pparallel.compat import torch_multiprocessing as mp
from pparallel.compat.machin import pool as machin
from pparallel.errors import PparallelError
from pparallel_process import P2PPoolConfig, ProcessLauncherConfig, ProcessPoolConfig
from pparallel_torch import TorchrunLauncherConfig

if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=print)
    child.start()
    child.join()
    raise SystemExit(child.exitcode)


def launch(config):
    with pparallel.build(config) as launcher:
        launcher.spawn(abs, nprocs=1)


ways = {
    "process": lambda: pparallel.build(ProcessPoolConfig(size=1)).open(),
    "p2p": lambda: pparallel.build(P2PPoolConfig(size=1)).open(),
    "machin": lambda: machin.Pool(1),
    "machin.P2PPool": lambda: machin.P2PPool(1),
    "machin.CtxPool": lambda: machin.CtxPool(1),
    "mp.Pool": lambda: mp.Pool(1),
    "joblib": lambda: joblib.Parallel(2, backend="pparallel")([joblib.delayed(abs)(-1)] * 2),
    "launch": lambda: launch(ProcessLauncherConfig()),
    "mp.spawn": lambda: mp.spawn(abs, nprocs=1),
    "torchrun": lambda: launch(TorchrunLauncherConfig()),
}
for what, way in ways.items():
    try:
        way()
    except PparallelError as error:
        print(what, error)
"""


def test_what_starts_processes_is_refused_while_multiprocessing_imports_the_script(
    folder: Path,
) -> None:
    (folder / "script.py").write_text(EACH_KIND)
    out, err = run(["script.py"], folder)
    assert err == ""
    *refused, last = out.splitlines()
    assert last == ""
    ways = [
        "process",
        "p2p",
        "machin",
        "machin.P2PPool",
        "machin.CtxPool",
        "mp.Pool",
        "joblib",
        "launch",
        "mp.spawn",
        "torchrun",
    ]
    assert [each.split()[0] for each in refused] == ways
    assert all("guard the script" in each for each in refused)


#: everything inside the script, under its own names, for pools with each start method and launch
STANDARD = """\
from __future__ import annotations

import copy, json, multiprocessing, pickle, sys, typing

import pparallel
from pparallel_process import ProcessLauncherConfig, ProcessPoolConfig


class Net:
    def __init__(self, size: int = 3) -> None:
        self.size = size


def double(net: Net) -> Net:
    return Net(2 * net.size)


def child(connection):
    connection.send(Net(5))


def receive(method):
    here, there = multiprocessing.Pipe()
    context = multiprocessing.get_context(method)
    process = context.Process(target=child, args=(there,))
    process.start()
    received = here.recv()
    process.join()
    assert process.exitcode == 0
    assert type(received) is Net
    return received.size


def use(*_):
    from .consts import K

    main = sys.modules["__main__"]
    assert sys.modules[__name__] is main
    assert getattr(main, "Net") is Net is globals()["Net"]
    assert getattr(main, "double") is double
    assert double.__globals__ is vars(main)
    assert type(pickle.loads(pickle.dumps(Net()))) is Net
    assert pickle.loads(pickle.dumps(double)) is double
    assert type(copy.deepcopy(Net())) is Net
    assert typing.get_type_hints(double) == {"net": Net, "return": Net}
    assert __file__.endswith("main.py")
    return K, double(Net(4)).size, receive("spawn")


if __name__ == "__main__":
    found = []
    for method in sys.argv[1:]:
        with pparallel.build(ProcessPoolConfig(size=1, start_method=method)) as pool:
            found.append(pool.apply(use))
        with pparallel.build(ProcessLauncherConfig()) as launcher:
            found += launcher.spawn(use, nprocs=1, start_method=method)
    print(json.dumps(found))
"""


def test_the_script_by_name_inside_tasks_and_ranks(folder: Path) -> None:
    (folder / "pkg" / "main.py").write_text(STANDARD)
    (folder / "pkg" / "consts.py").write_text("K = 7\n")
    methods = ["forkserver", "spawn", "fork"]
    out, err = run(["-m", "pkg.main", *methods], folder)
    assert json.loads(out) == 2 * len(methods) * [[7, 8, 5]]
    assert err == ""


#: the globals of a script that an initializer sets, with pools opened elsewhere than in the script
INITIALIZED = """\
import json, os, sys

import pparallel
from pparallel_process import ProcessLauncherConfig, ProcessPoolConfig

model = None


def initialize(value):
    global model
    model = {"value": value}


def look(_):
    return None if model is None else model["value"]


def inner(method):
    config = ProcessPoolConfig(
        size=1, start_method=method, initializer=initialize, initargs=(os.getpid(),)
    )
    with pparallel.build(config) as pool:
        return pool.map(look, range(2)) == 2 * [os.getpid()] and model is None


def member(runtime):
    return inner("forkserver")


def rank(_, method):
    return inner(method)


if __name__ == "__main__":
    if "profiled" in sys.argv:
        print(inner("forkserver"), inner("spawn"))
        raise SystemExit
    found = {"script": inner("forkserver")}
    for method in ("forkserver", "spawn"):
        with pparallel.build(ProcessLauncherConfig()) as launcher:
            (found[f"rank {method}"],) = launcher.spawn(
                rank, (method,), nprocs=1, start_method=method
            )
        with pparallel.build(ProcessPoolConfig(size=1, start_method=method)) as pool:
            found[f"task {method}"] = pool.apply(inner, ("forkserver",))
    config = {"members": 1, "launcher": {"backend": "process"}, "transport": {"backend": "ipc"}}
    (found["member"],) = pparallel.launch(config, member)
    print(json.dumps(found))
"""


def test_an_initializer_of_a_pool_that_is_opened_in_a_child(folder: Path) -> None:
    (folder / "script.py").write_text(INITIALIZED)
    out, err = run(["script.py"], folder)
    found = json.loads(out)
    assert found == dict.fromkeys(found, True)
    assert len(found) == 6
    assert err == ""
    out, err = run(["-m", "cProfile", "-o", "profile", "script.py", "profiled"], folder)
    assert (out, err) == ("True True\n", "")


#: torch's programs inherit by fork what cannot be sent
INHERITED = """\
from pparallel.compat import torch_multiprocessing as mp

counter = mp.Value("i", 0)
lock = mp.Lock()


def count(step):
    with lock:
        counter.value += step


if __name__ == "__main__":
    with mp.Pool(2, context=mp.get_context("fork")) as pool:
        pool.map(count, range(10))
    print(counter.value)
"""


def test_a_forked_pool_inherits_values_and_locks(folder: Path) -> None:
    (folder / "script.py").write_text(INHERITED)
    assert run(["script.py"], folder) == ("45\n", "")
