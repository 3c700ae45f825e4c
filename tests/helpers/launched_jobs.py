"""What members of the launcher's tests run; quickly imported by each process that is one."""

from __future__ import annotations

import logging
import os
import sys
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from pparallel.runtime import stopping

if TYPE_CHECKING:
    from pparallel import Runtime


class Refusing(Exception):  # noqa: N818
    """Cannot be sent."""

    @override
    def __reduce__(self) -> Any:
        message = "not for others"
        raise TypeError(message)


def report(rt: Runtime, count: int = 3) -> int:
    """Report; return this process's id."""
    for step in range(count):
        rt.report(step=step, loss=0.5)
    return os.getpid()


def report_oddly(rt: Runtime) -> None:
    rt.report(step=1, lock=threading.Lock())


def fail_oddly(rt: Runtime) -> None:
    message = "no way"
    raise Refusing(message)


def is_heard(rt: Runtime) -> bool:
    return rt.events.listening or stopping.upstream() is not None


def speak(rt: Runtime) -> None:
    """Log, warn and print."""
    logging.getLogger("launched").info("I am %s", rt.name)
    warnings.warn(f"{rt.name} is odd", stacklevel=1)
    sys.stdout.write(f"printed by {rt.name}\n")


def meet(rt: Runtime) -> tuple[str, int, int, list[str]]:
    rt.group().barrier()
    return rt.name, os.getpid(), os.getppid(), rt.group().get_group_members()


def colour(rt: Runtime) -> str | None:
    return os.environ.get("COLOUR")


def wait(rt: Runtime, folder: Path) -> None:
    """Leave the pid of this member, and wait at a barrier that one member never comes to."""
    (folder / rt.name).write_text(str(os.getpid()))
    if rt.rank == 1:
        threading.Event().wait()
    rt.group().barrier()


def imported(rt: Runtime) -> list[str]:
    return sorted({"torch", "numpy", "zmq"}.intersection(sys.modules))
