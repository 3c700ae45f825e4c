"""Members of one job, each in a process of its own that a test may kill, stop or start again.

No launcher stands over them: when one dies, the others go on and tell what they saw.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, cast

import preloads

import pparallel
from pparallel.interfaces.transport import Meeting, Transport, TransportConfig
from pparallel.registry import default_registry
from pparallel.runtime import processes
from pparallel.runtime.member import Member
from pparallel.testing.patience import PATIENCE, until

HERE = str(Path(__file__).parent)
BOUND = 1.0  #: seconds of the liveness bound, in tests

if HERE not in sys.path:  # the members find their programs by the path of their parent
    sys.path.insert(0, HERE)


class Outcome(NamedTuple):
    """How a member ended.

    Attributes:
        value: what its program returned; ``None`` if it failed.
        error: the type of what it raised, and what that says; empty if it did not.
    """

    value: Any
    error: str

    @property
    def result(self) -> Any:
        """What the program returned."""
        assert not self.error, self.error
        return self.value


class Crew:
    """Members of one job."""

    def __init__(
        self, folder: Path, transport: TransportConfig, names: Sequence[str], meeting: Meeting
    ) -> None:
        self._folder, self._transport, self._names = folder, transport, tuple(names)
        self._meeting = meeting
        self._starts = 0
        self.processes: dict[str, processes.Process] = {}
        self._former: list[processes.Process] = []
        self._outcomes: dict[str, Path] = {}

    def start(self, name: str, program: str, *args: object, **options: Any) -> None:
        """Start member *name*, to run a function of ``crew_programs``, or ``module:function``."""
        self._starts += 1
        if name in self.processes:
            self._former.append(self.processes[name])
        outcome = self._folder / f"outcome {name} {self._starts}"
        rank = self._names.index(name)
        keys = options.pop("keys", self._meeting.keys.get(name, {}))
        member = Member(
            name, rank, rank, len(self._names), self._names, self._meeting.address, keys
        )
        raw = {
            "members": list(self._names),
            "transport": self._transport,
            "reducer": {"backend": "local"},
            "close_timeout": 10,
            **options,
        }
        payload = pickle.dumps((raw, member, program, args, outcome))
        self.processes[name] = processes.start(
            "crew:run", payload, name=name, preload=preloads.MEMBERS
        )
        self._outcomes[name] = outcome

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to member *name*."""
        self.processes[name].signal(number)

    def kill(self, name: str) -> None:
        """Kill member *name*, and wait until it is gone."""
        self.signal(name, signal.SIGKILL)
        until(lambda: self.processes[name].ended() is not None, f"{name} did not end")

    def outcome(self, name: str) -> Outcome:
        """Wait until member *name* has ended, and return how."""
        file = self._outcomes[name]

        def is_known() -> bool:
            return file.exists() or self.processes[name].ended() is not None

        until(is_known, f"member {name} did not end")
        assert file.exists(), f"member {name} died: {self.processes[name].ended()}"
        until(lambda: self.processes[name].ended() is not None, f"{name} did not exit")
        return Outcome(*pickle.loads(file.read_bytes()))

    def answer(self, name: str) -> Any:
        """Wait until the program of member *name* has returned, and return what it has."""
        file = self._outcomes[name].with_suffix(".answer")

        def is_known() -> bool:
            return file.exists() or self.processes[name].ended() is not None

        until(is_known, f"the program of member {name} did not return")
        if not file.exists():
            assert not self.outcome(name).error, self.outcome(name).error
        return pickle.loads(file.read_bytes())

    def note(self, what: str) -> Path:
        """Return a file by which members and the test tell one another that *what* has happened."""
        return self._folder / what

    def noted(self, what: str) -> None:
        """Wait until a member has noted *what*; fail with the error of one that has failed."""

        def is_noted() -> bool:
            noted = self.note(what).exists()
            for name, file in self._outcomes.items():
                assert noted or not file.exists() or not (error := _error(file)), f"{name}: {error}"
            return noted

        until(is_noted, f"no member noted {what!r}")

    def close(self) -> None:
        """Kill who still lives."""
        for each in (*self._former, *self.processes.values()):
            each.signal(signal.SIGKILL)
            assert each.ended(PATIENCE) is not None
            each.close()


@contextmanager
def crew(
    folder: Path, transport: Mapping[str, Any], names: Sequence[str] = ("a", "b", "c")
) -> Iterator[Crew]:
    """Have members connected by *transport*; all are gone at the end."""
    raw = {"liveness_bound": BOUND, "rendezvous_timeout": 20, **transport}
    config = pparallel.load(TransportConfig, raw)
    registry = default_registry()
    cls = cast("type[Transport]", registry.load(registry.find("transport", config.backend)))
    with ExitStack() as stack:
        meeting = stack.enter_context(cls.meeting(config, names))
        members = Crew(folder, config, names, meeting)
        stack.callback(members.close)
        yield members


def run(payload: bytes, fds: Sequence[int]) -> None:
    """Be a member: what a process of a crew runs."""
    raw, member, program, args, outcome = pickle.loads(payload)
    try:
        with pparallel.build(pparallel.RuntimeConfig(**raw), member=member) as rt:
            value = _function(program)(rt, *args)
            _write(outcome.with_suffix(".answer"), value)
        told = (value, "")
    except BaseException as error:  # noqa: BLE001 - the test is told
        told = (None, f"{type(error).__name__}: {error}")
    _write(outcome, told)


def _function(program: str) -> Callable[..., Any]:
    module, _, name = program.rpartition(":")
    function: Callable[..., Any] = getattr(import_module(module or "crew_programs"), name)
    return function


def _error(outcome: Path) -> str:
    return Outcome(*pickle.loads(outcome.read_bytes())).error


def _write(file: Path, value: object) -> None:
    part = file.with_name(f"{file.name} {os.getpid()}.part")
    part.write_bytes(pickle.dumps(value))
    part.rename(file)
