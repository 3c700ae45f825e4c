"""Every error pparallel raises on purpose.

PparallelError
├── ConfigError                the config cannot be built
│   └── UnknownBackendError    (LookupError) no plugin offers the backend
├── MissingDependencyError     (ImportError) the backend's library is not installed
├── ClosedError                (ValueError, RuntimeError) used before open or after close
├── WorkerLostError            a pool's worker died while it held the task
├── TaskTimeoutError           (TimeoutError, multiprocessing.TimeoutError) a task took too long
├── CallTimeoutError           (TimeoutError, multiprocessing.TimeoutError) a call took too long
├── PeerLostError              (ConnectionError) another member died or left
├── ResourceExhaustedError     (OSError) threads, descriptors, memory or disk ran out
├── SerializationError         an object cannot be turned into bytes, or bytes into an object
├── AuthenticationError        (PermissionError) a peer could not prove who it is
├── DirectoryError             (KeyError) a paired value or service is taken, absent or another's
├── RemoteError                a remote exception whose own type cannot be rebuilt here
└── PlacementError             (RuntimeError) no placement respects the limits
"""

from __future__ import annotations

import difflib
import signal
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from typing_extensions import override

if TYPE_CHECKING:
    from multiprocessing import TimeoutError as PoolTimeoutError
else:
    try:
        from multiprocessing import TimeoutError as PoolTimeoutError
    except ImportError:  # where pickle is blocked nobody has multiprocessing, or catches its error

        class PoolTimeoutError(Exception):
            """Stands for ``multiprocessing.TimeoutError`` where that cannot be imported."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` for the nearest of *known*, or an empty string."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def _joined(between: str, *parts: str) -> str:
    return between.join(part for part in parts if part)


def _rounded(seconds: float) -> str:
    return f"{round(seconds, 3) or seconds:g}"


def _rebuild(cls: type[PparallelError], args: tuple[Any, ...], state: Any) -> PparallelError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


class PparallelError(Exception):
    """Base of every error pparallel raises on purpose; all of them survive pickling."""

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class ConfigError(PparallelError):
    """Raised when a config cannot be built.

    Attributes:
        path: the dotted key at fault, such as ``pool.size``; empty for the whole, or for several.
        source: the file it was read from; empty for a mapping or a typed config.
    """

    def __init__(self, message: str, *, path: str = "", source: str = "") -> None:
        super().__init__(message)
        self.source, self._problems = source, [(path, message)]
        self.locate()

    @classmethod
    def of_all(cls, errors: Sequence[ConfigError]) -> ConfigError:
        """Return one error for what several say; one alone as it is."""
        if len(errors) == 1:
            return errors[0]
        error = ConfigError("", source=errors[0].source)
        error._problems = [problem for each in errors for problem in each._problems]
        error.locate()
        return error

    def locate(self, path: str = "", source: str = "") -> None:
        """Put *path* before the path of each problem, and *source* where there is none yet."""
        self.source = self.source or source
        self._problems = [(_joined(".", path, at), what) for at, what in self._problems]
        self.path, message = self._problems[0]
        if len(self._problems) > 1:
            lines = "".join(f"\n  {_joined(': ', at, what)}" for at, what in self._problems)
            self.path, message = "", f"{len(self._problems)} problems:{lines}"
        self.args = (_joined(": ", self.source, self.path, message),)


class UnknownBackendError(ConfigError, LookupError):
    """Raised when no installed plugin offers the backend that a config names.

    Attributes:
        interface: the interface asked for.
        name: the backend asked for.
        known: the names that exist.
    """

    def __init__(
        self,
        interface: str,
        name: str,
        known: Iterable[str],
        *,
        broken: Iterable[str] = (),
        path: str = "",
        source: str = "",
    ) -> None:
        known = sorted(known)
        hint = did_you_mean(name, known)
        message = f"no {interface} backend {name!r}"
        message += f".{hint}" if hint else f"; installed: {', '.join(known) or 'none'}."
        if broken := sorted(broken):
            message += (
                f" Plugins that failed to load may offer it: {', '.join(broken)};"
                " type 'pparallel backends' to see why."
            )
        super().__init__(message, path=path, source=source)
        self.interface, self.name, self.known = interface, name, known
        self.broken = list(broken)


class MissingDependencyError(PparallelError, ImportError):
    """Raised when something is known but its library is not installed."""

    def __init__(self, what: str, missing: str, install: str = "") -> None:
        hint = f"; to install it: {install}" if install else ""
        super().__init__(f"{what} cannot be loaded: {missing}{hint}")
        self.what, self.missing, self.install = what, missing, install


class ClosedError(PparallelError, ValueError, RuntimeError):
    """Raised when something is used before it is opened, after it is closed, or as the job ends.

    Attributes:
        consequence: the job is ending because of something else, so this is not what went wrong.
    """

    def __init__(self, what: str, why: str = "is closed", *, consequence: bool = False) -> None:
        super().__init__(f"{what} {why}")
        self.consequence = consequence


class WorkerLostError(PparallelError):
    """Raised when the worker that held a task died.

    Attributes:
        pid: process id of the worker.
        exitcode: its exit code, or minus the number of the signal that ended it.
    """

    def __init__(self, pid: int, exitcode: int | None, detail: str = "") -> None:
        how = (
            "for an unknown reason"
            if exitcode is None
            else f"by {_signal_name(-exitcode)}"
            if exitcode < 0
            else f"with exit code {exitcode}"
        )
        super().__init__(f"worker {pid} died {how}{': ' + detail if detail else ''}")
        self.pid, self.exitcode = pid, exitcode


def _signal_name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


class TaskTimeoutError(PparallelError, TimeoutError, PoolTimeoutError):
    """Raised when a task, or the wait for it, took longer than allowed."""

    def __init__(self, what: str, timeout: float) -> None:
        super().__init__(f"{what} was not done within {_rounded(timeout)} s")
        self.timeout = timeout


class CallTimeoutError(PparallelError, TimeoutError, PoolTimeoutError):
    """Raised when a member did not answer in time."""

    def __init__(self, what: str, timeout: float) -> None:
        when = f"within {_rounded(timeout)} s" if timeout else "yet"
        super().__init__(f"{what} was not answered {when}")
        self.timeout = timeout


class PeerLostError(PparallelError, ConnectionError):
    """Raised when another member is gone.

    Attributes:
        peer: its name.
        reason: what is known of its end: ``"has left"``, ``"died (signal 9)"``.
    """

    def __init__(self, peer: str, reason: str = "is gone") -> None:
        super().__init__(f"member {peer!r} {reason}")
        self.peer, self.reason = peer, reason


class ResourceExhaustedError(PparallelError, OSError):
    """Raised when the system has no more of something; the operation may be tried again.

    Attributes:
        resource: ``"threads"``, ``"processes"``, ``"file descriptors"``, ``"memory"`` or
            ``"disk space"``.
        errno: the system's number of the error.
    """

    def __init__(self, what: str, resource: str, number: int, advice: str) -> None:
        message = f"{what} failed, as no more {resource} can be had: {advice}"
        super().__init__(number, message)
        self.what, self.resource, self.advice = what, resource, advice

    @override
    def __str__(self) -> str:
        return str(self.args[1])

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        # An OSError has its number only from its constructor.
        return type(self), (self.what, self.resource, self.errno, self.advice)


class SerializationError(PparallelError):
    """Raised when an object cannot be turned into bytes, or bytes into an object.

    Args:
        what: the object, or with *path* its type.
        why: what is wrong with it.
        loading: it could not be rebuilt from bytes.
        path: the way to it, as code, in the object that was to be sent.

    Attributes:
        what: as given.
        why: as given, as text.
        path: as given.
    """

    def __init__(
        self, what: str, why: object, *, loading: bool = False, path: str | None = None
    ) -> None:
        self.path, self.what, self.why = path, what, str(why)
        located = what if path is None else f"obj{path} ({what})"
        super().__init__(f"{located} cannot be {'read' if loading else 'serialised'}: {why}")

    def locate(self, names: Mapping[str, str], hint: str = "") -> None:
        """Begin its path with a name.

        Args:
            names: beginnings of paths, and the names of the objects there; the first one counts.
            hint: what to do, at the end.
        """
        path = self.path
        for start, name in names.items():
            if path is not None and path.startswith(start):
                located = f"{name}{path.removeprefix(start)} ({self.what})"
                self.args = (f"{located} cannot be serialised: {self.why}{hint}",)
                return


class AuthenticationError(PparallelError, PermissionError):
    """Raised when a peer could not prove who it is."""


class DirectoryError(PparallelError, KeyError):
    """Raised when a paired value or a service is taken, absent, or another member's."""

    __str__ = Exception.__str__  # KeyError shows the repr of its message


class RemoteError(PparallelError):
    """Raised for a remote exception whose own type cannot be rebuilt here.

    It is also the ``__cause__`` of those that can, so that the remote traceback is shown.

    Attributes:
        member: where it was raised, a member or a worker.
        type_name: module and name of the exception's type.
        traceback: the remote traceback as text.
    """

    def __init__(
        self, member: str, type_name: str, message: str, traceback: str, *, kind: str = "member"
    ) -> None:
        where = f"in {kind} {member!r}"
        super().__init__(f"{_joined(': ', type_name, message)}\n\n{where}:\n{traceback}".rstrip())
        self.member, self.type_name, self.message = member, type_name, message
        self.traceback = traceback


class PlacementError(PparallelError, RuntimeError):
    """Raised when no placement respects the limits."""


def is_consequence(error: BaseException | None) -> bool:
    """Return whether *error* only says that the job was ending because of something else."""
    seen: set[int] = set()  # a program may chain errors in a circle
    while error is not None and id(error) not in seen:
        if isinstance(error, ClosedError) and error.consequence:
            return True
        seen.add(id(error))
        error = error.__cause__
    return False
