"""Programs that need not import what takes long: each is a fork of an interpreter that has.

Importing torch takes seconds, and so do some of its parts when they are first used. Run as a
script, this imports the modules named in its arguments, and forks for each program it reads of.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import subprocess
import sys
import threading
import traceback
import types
import warnings
from pathlib import Path

#: what many programs import, and takes long
HEAVY = (
    "numpy",
    "torch",
    "torch._dynamo",
    "torch.distributed",
    "pparallel.builder.runtime",
    "pparallel_local",
    "pparallel_process",
    "pparallel_reducers",
    "pparallel_torch",
)


class WarmInterpreter:
    """Runs scripts one after another, with every warning an error; use it in ``with``."""

    def __init__(self) -> None:
        command = [sys.executable, "-W", "error", __file__, *HEAVY]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    def __enter__(self) -> WarmInterpreter:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate()
        assert self._process.returncode == 0

    def run(self, script: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run *script* to its end, as ``python -W error script`` would."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        out, err = cwd / "out.txt", cwd / "err.txt"
        self._process.stdin.write(json.dumps([str(each) for each in (script, cwd, out, err)]))
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        code = int(self._process.stdout.readline())
        return subprocess.CompletedProcess([script], code, out.read_text(), err.read_text())


def serve() -> None:
    """Run what is read of, and say how it ended."""
    for line in iter(sys.stdin.readline, ""):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy has threads, and newer Pythons warn of them
            pid = os.fork()
        if pid == 0:
            os._exit(become(*json.loads(line)))
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)  # noqa: T201


def become(script: str, cwd: str, out: str, err: str) -> int:
    """Be the interpreter of *script*; return with what code it is to exit.

    It ends as Python does, but for the modules: to tear down those of torch takes long, too.
    """
    os.chdir(cwd)
    for number, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, out, os.O_WRONLY | os.O_CREAT),
        (2, err, os.O_WRONLY | os.O_CREAT),
    ):
        opened = os.open(path, flags)
        os.dup2(opened, number)
        os.close(opened)
    sys.argv, sys.path[0] = [script], str(Path(script).parent)
    main = types.ModuleType("__main__")
    main.__file__ = script
    sys.modules["__main__"] = main
    code = 0
    try:
        exec(compile(Path(script).read_bytes(), script, "exec"), main.__dict__)
    except Exception:  # noqa: BLE001 - told as Python tells it
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined] # waits for threads, as its name does not say
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


if __name__ == "__main__":
    for each in sys.argv[1:]:
        importlib.import_module(each)
    gc.collect()
    gc.freeze()
    serve()
