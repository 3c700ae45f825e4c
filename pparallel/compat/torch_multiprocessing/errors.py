"""How processes fail: errors that handlers written for the original catch."""

from __future__ import annotations

import importlib
import signal
from typing import Any

from pparallel.errors import RemoteError, WorkerLostError
from pparallel.interfaces.launcher import LaunchContext

# Not an attribute of the package, which has a function of this name.
_original: Any = importlib.import_module("torch.multiprocessing.spawn")


class ProcessException(_original.ProcessException):  # type: ignore[misc]
    """Raised where processes are joined, one of which has failed.

    Attributes:
        msg: what happened.
        error_index: the index of the process.
        error_pid: its process id.
    """

    __slots__ = ()


class ProcessRaisedException(ProcessException, _original.ProcessRaisedException):  # type: ignore[misc]
    """Raised when the function of a process has raised; its traceback is in the message."""

    __slots__ = ()


class ProcessExitedException(ProcessException, _original.ProcessExitedException):  # type: ignore[misc]
    """Raised when a process was ended by a signal or has ended itself.

    Attributes:
        exit_code: its exit code, or minus the number of the signal; ``None``: not known.
        signal_name: the name of the signal, ``None`` if there was none.
    """

    __slots__ = ()


def raised(context: LaunchContext, rank: int, failure: BaseException) -> ProcessException:
    """Return what is raised for the *failure* of a rank of *context*."""
    pid = context.pids()[rank]
    if isinstance(failure, WorkerLostError) and not isinstance(failure.__cause__, RemoteError):
        return _exited(str(failure), rank, pid, failure.exitcode)
    if isinstance(failure.__cause__, SystemExit):
        code = failure.__cause__.code
        return _exited(f"it called sys.exit({code!r})", rank, pid, code)
    return ProcessRaisedException(
        f"process {rank} ({pid}) has failed:\n\n{_trace(failure)}", rank, pid
    )


def _exited(why: str, rank: int, pid: int, code: object) -> ProcessExitedException:
    number = code if isinstance(code, int) or code is None else 1
    name = None
    if number is not None and number < 0:
        try:
            name = signal.Signals(-number).name
        except ValueError:
            name = f"signal {-number}"
    how = f"by {name}" if name else f"with exit code {number}"
    return ProcessExitedException(
        f"process {rank} ({pid}) has ended {how}: {why}", rank, pid, number, name
    )


def _trace(error: BaseException | None) -> str:
    """Return the traceback of the process in which *error* was raised."""
    text = ""
    while error is not None:
        if isinstance(error, RemoteError):
            return error.traceback
        text = text or f"{type(error).__name__}: {error}"
        error = error.__cause__
    return text
