"""Runs programs in forks of an interpreter that has imported slow modules.

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
import weakref
from pathlib import Path
from tempfile import TemporaryDirectory

#: slow modules that many programs import
HEAVY = (
    "numpy",
    "torch",
    "torch._dynamo",
    "torch.distributed",
    "one_thread",
    "pparallel.builder.runtime",
    "pparallel_local",
    "pparallel_process",
    "pparallel_reducers",
    "pparallel_torch",
)
#: modules that each command of ``pparallel`` imports
COMMANDS = ("pparallel.cli.run", "pparallel.cli.schema.generator", "pparallel.builder.runtime")

PPARALLEL = """
import warnings
from pparallel.cli import main
warnings.simplefilter("ignore", ResourceWarning)
main()
"""

Done = subprocess.CompletedProcess[str]


class WarmInterpreter:
    """Runs programs one after another, with every warning an error; use it in ``with``.

    Args:
        modules: what it imports.
    """

    def __init__(self, *modules: str) -> None:
        self._folder = TemporaryDirectory(prefix="warm-")
        command = [sys.executable, "-W", "error", __file__, *(modules or HEAVY)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    def __enter__(self) -> WarmInterpreter:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate()
        self._folder.cleanup()
        assert self._process.returncode == 0

    def run(self, script: Path, cwd: Path, *args: str, **env: str) -> Done:
        """Run *script* to its end, as ``python -W error script args`` would in folder *cwd*.

        Args:
            script: the program.
            cwd: where it runs.
            args: its arguments.
            env: variables of its environment, among them ``PYTHONPATH``; those of pparallel that
                this process has are left out.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        out, err = (Path(self._folder.name, name) for name in ("out.txt", "err.txt"))
        order = [str(each) for each in (script, cwd, out, err)], args, env
        self._process.stdin.write(f"{json.dumps(order)}\n")
        self._process.stdin.flush()
        try:
            code = int(self._process.stdout.readline())
        except BaseException:  # a time-out: the next answer would be this program's
            self._process.kill()
            raise
        done = Done([str(script), *args], code, out.read_text(), err.read_text())
        out.unlink()
        err.unlink()
        return done

    def execute(self, code: str, cwd: Path, *args: str, **env: str) -> Done:
        """Run *code*, as ``python -W error -c code args`` would, but for the path of imports."""
        script = Path(self._folder.name, "script.py")
        script.write_text(code)
        return self.run(script, cwd, *args, **env)

    def pparallel(self, cwd: Path, *args: str, **env: str) -> Done:
        """Run the command ``pparallel``; files that it holds until it exits are no warning."""
        return self.execute(PPARALLEL, cwd, *args, **env)


def serve() -> None:
    """Run the program of each line in a fork, and print its exit code."""
    for line in iter(sys.stdin.readline, ""):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy has threads, and newer Pythons warn of them
            pid = os.fork()
        if pid == 0:
            os._exit(become(*json.loads(line)))
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)  # noqa: T201


def become(paths: list[str], args: list[str], env: dict[str, str]) -> int:
    """Be the interpreter of a script; return with what code it is to exit.

    It ends as Python does, but for the modules: to tear down those of torch takes long, too.

    Args:
        paths: of the script, its folder, standard output and standard error.
        args: of the script.
        env: variables.
    """
    script, cwd, out, err = paths
    os.chdir(cwd)
    for number, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, out, os.O_WRONLY | os.O_CREAT | os.O_APPEND),
        (2, err, os.O_WRONLY | os.O_CREAT | os.O_APPEND),
    ):
        opened = os.open(path, flags)
        os.dup2(opened, number)
        os.close(opened)
    for each in [name for name in os.environ if name.startswith("PPARALLEL_")]:
        del os.environ[each]
    os.environ.update(env)
    sys.argv, sys.path[0] = [script, *args], str(Path(script).parent)
    sys.path[1:1] = env["PYTHONPATH"].split(os.pathsep) if "PYTHONPATH" in env else []
    main = types.ModuleType("__main__")
    main.__file__ = script
    sys.modules["__main__"] = main
    code = 0
    try:
        exec(compile(Path(script).read_bytes(), script, "exec"), main.__dict__)
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
        print(left.code if code and code is not left.code else "", end="", file=sys.stderr)  # noqa: T201
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
    for each in [*weakref.finalize._registry]:  # type: ignore[attr-defined]
        each.atexit = False  # those of torch take long, and change nothing for a process that ends
    gc.collect()
    gc.freeze()
    serve()
