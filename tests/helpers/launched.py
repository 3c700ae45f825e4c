"""What ranks of the launcher's tests run; quickly imported by each process that is one."""

from __future__ import annotations

import atexit
import ctypes
import functools
import logging
import os
import signal
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

from typing_extensions import override

import pparallel
from pparallel.interfaces.launcher import StartMethod
from pparallel.runtime import stopping
from pparallel.runtime.stopping import StopSignal
from pparallel.testing.patience import until


def signal_of() -> StopSignal:
    found = stopping.current()
    assert found is not None
    return found


def whoami(rank: int) -> tuple[int, int]:
    return os.getpid(), os.getppid()


def wait(rank: int, ready: Path | None = None) -> str:
    """Wait to be told to stop; return why."""
    if ready is not None:
        (ready / str(rank)).write_text(str(os.getpid()))
    signal_of().wait()
    return repr(signal_of().reason)


def stay(rank: int, ready: Path, *ways: str) -> None:
    """Never end, whatever is said, each rank in one of the ways."""
    (ready / str(rank)).write_text(str(os.getpid()))
    match ways[rank % len(ways)]:
        case "gil":
            ctypes.PyDLL(None).sleep(1000)
        case "sleep":
            while True:
                time.sleep(1000)
        case "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            threading.Event().wait()
        case "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "closes":
            os.closerange(3, 200)
            time.sleep(1000)


def data(rank: int, nbytes: int) -> bytes:
    return bytes([rank + 1]) * nbytes


def tensor(rank: int, length: int) -> Any:
    import torch

    return {"rank": rank, "value": torch.full((length,), float(rank))}


def changed(rank: int, given: Any) -> float:
    """Change what was given; return what it was."""
    before = float(given.sum())
    given += rank + 1
    return before


def loaded(rank: int) -> list[str]:
    return sorted({"torch", "numpy", "zmq"}.intersection(sys.modules))


def variables(rank: int, *names: str) -> list[str | None]:
    return [os.environ.get(name) for name in names]


def seen_from_outside(rank: int, *_: object) -> bytes:
    """Return the command line and the environment that anybody on this machine may read."""
    own = Path(f"/proc/{os.getpid()}")
    return (own / "cmdline").read_bytes() + (own / "environ").read_bytes()


def die_at_exit(rank: int) -> str:
    atexit.register(os._exit, 3)
    return "done"


def kill_itself(rank: int, number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(1000)


def unpicklable(rank: int) -> object:
    return threading.Lock()


class Refusing(Exception):  # noqa: N818
    """Cannot be sent."""

    @override
    def __reduce__(self) -> Any:
        message = "not for others"
        raise TypeError(message)


def raise_unpicklable(rank: int) -> None:
    message = "no way"
    raise Refusing(message)


def speak(rank: int) -> None:
    """Log, warn and print."""
    logging.getLogger("launched").info("rank %d is here", rank)
    warnings.warn("this is odd", stacklevel=1)
    sys.stdout.write(f"out of {rank}")
    sys.stdout.write("\nand no line")
    sys.stderr.write(f"err of {rank}\n")


def log_much(rank: int, lines: int) -> None:
    for each in range(lines):
        logging.getLogger("launched").info("line %d of %d", each, rank)


def launch_inside(rank: int, count: int, method: StartMethod) -> list[int]:
    """Launch ranks in a rank, and use a pool there."""
    from pparallel_process import ProcessLauncherConfig, ProcessPoolConfig

    with pparallel.build(ProcessLauncherConfig()) as launcher:
        inner = launcher.spawn(functools.partial(_add, rank), nprocs=count, start_method=method)
    with pparallel.build(ProcessPoolConfig(size=1)) as pool:
        return [*inner, *pool.map(abs, [-rank])]


def _add(outer: int, rank: int) -> int:
    return 10 * outer + rank


def wait_inside(rank: int, ready: Path, method: StartMethod) -> list[str]:
    """Launch ranks in a rank that wait to be told to stop."""
    from pparallel_process import ProcessLauncherConfig

    with pparallel.build(ProcessLauncherConfig()) as launcher:
        return launcher.spawn(wait, (ready,), nprocs=2, start_method=method)


def leave_a_child(rank: int) -> int:
    """Return while a fork of this rank goes on, which holds what this one had open."""
    pid = os.fork()
    if not pid:
        time.sleep(1000)
    return pid


def count_sockets(payload: bytes, fds: object) -> None:
    """Fail if this process, a fork, has a socket open."""
    for each in Path("/proc/self/fd").iterdir():
        assert not (each.exists() and str(each.readlink()).startswith("socket:")), each


def print_lines(rank: int, lines: int) -> None:
    for each in range(lines):
        sys.stdout.write(f"line {each}\n")


def launch_deeper(rank: int) -> Any:
    from pparallel_process import ProcessLauncherConfig

    with pparallel.build(ProcessLauncherConfig(preload=("launched",))) as launcher:
        return launcher.spawn(launch_deeper, nprocs=1, start_method="fork")


def identity(rank: int, given: object) -> object:
    return given


def bomb(rank: int, call: Any, args: tuple[Any, ...]) -> object:
    """Return what ends this process as it is sent."""
    from pparallel.testing.deaths import WhenSent

    return WhenSent(call, args)


def bad_result(rank: int) -> object:
    """Return what cannot be read."""
    from pparallel.testing.deaths import WhenRebuilt

    return WhenRebuilt(divmod, (1, 0))


def log_and_die(rank: int) -> None:
    logging.getLogger("launched").warning("it smells of smoke")
    os._exit(7)


def exit_with(rank: int, code: int) -> None:
    sys.exit(code)


def hang_at_exit_or_fail(rank: int) -> None:
    """Return in rank 0, whose process does not end then, and fail in rank 1."""
    if rank == 0:
        threading.Thread(target=threading.Event().wait).start()
        return
    message = "rank 1 fails"
    raise LookupError(message)


def stay_inside(rank: int, ready: Path, method: StartMethod) -> None:
    """Launch ranks in a rank that never end."""
    from pparallel_process import ProcessLauncherConfig

    with pparallel.build(ProcessLauncherConfig()) as launcher:
        launcher.spawn(_stay_beside, (ready, rank), nprocs=2, start_method=method)


def _stay_beside(rank: int, ready: Path, outer: int) -> None:
    (ready / f"{outer}-{rank}").write_text(str(os.getpid()))
    ctypes.PyDLL(None).sleep(1000)


def note_when_told(rank: int, folder: Path) -> None:
    """Leave a note once the test says so, by a file."""
    until((folder / "go").exists, "the test did not say so")
    (folder / str(rank)).touch()
