"""What may become of the tasks of the pool's machine."""

from __future__ import annotations

from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pparallel.errors import ClosedError, SerializationError, WorkerLostError
from pparallel.interfaces.pool import PoolResult, ResultStream
from pparallel.testing.gate import Gate
from pparallel.testing.machines.machine import LIMIT
from pparallel.testing.machines.tasks import EXITCODE, Deed, Refused
from pparallel.testing.patience import until


class Task(NamedTuple):
    """One task: what it does, and its number."""

    deed: Deed
    number: int

    def is_outcome(self, value: Any, error: BaseException | None) -> bool:
        """Return whether a task that does this ends so."""
        match self.deed:
            case "return":
                return error is None and value == 2 * self.number
            case "hold":
                return error is None and value is None
            case "refuse":
                return isinstance(error, Refused) and error.args == (self.number,)
            case "exit":
                return isinstance(error, SystemExit) and error.code == self.number
            case "die":
                return isinstance(error, WorkerLostError) and error.exitcode == EXITCODE
            case "unsendable":
                return isinstance(error, SerializationError)


@dataclass(eq=False)
class Doubts:
    """What may befall a task that is no fault of its own.

    Attributes:
        death: a worker may have died that held it.
        end: the pool was terminated, or joined, before it had ended.
    """

    death: bool = False
    end: bool = False

    def allow(self, error: BaseException | None) -> bool:
        """Return whether a task may have failed with *error*."""
        if isinstance(error, WorkerLostError):
            return self.death
        return isinstance(error, ClosedError) and self.end


@dataclass(eq=False)
class Call:
    """One call that gave a handle: of one task, or of several whose results come as a list.

    Attributes:
        tasks: what it runs.
        mapped: whether the result is a list.
        handle: its result to come.
        called_back: what its callbacks were called with: those for a value, and for an error.
        told: what its done-callback was called with.
        doubts: what may befall it.
        behind: the gate at which every worker was held when it was handed over.
        cancelled: ``cancel()`` said so.
        ran: numbers of tasks that were started, as its outcome says.
    """

    tasks: tuple[Task, ...]
    mapped: bool
    handle: PoolResult[Any]
    called_back: tuple[list[Any], list[Any]] | None
    doubts: Doubts
    behind: Gate | None
    told: list[object] = field(default_factory=list)
    cancelled: bool = False
    ran: set[int] = field(default_factory=set)

    def holds_a_death(self) -> bool:
        """Return whether a task that ends its worker may not have ended yet."""
        return not self.handle.done() and any(each.deed == "die" for each in self.tasks)

    def check(self) -> None:
        """Wait for the outcome, and look whether it is one that its tasks can have."""
        assert self.handle.wait(LIMIT), f"{self.tasks} did not end within {LIMIT} s"
        try:
            error = self.handle.exception(0)
        except CancelledError:
            assert self.cancelled, f"{self.tasks} seem to be cancelled, and nobody did"
            assert self.called_back in (None, ([], [])), "a cancelled call called back"
            return
        assert not self.cancelled, f"{self.tasks} ran to their end, after they were cancelled"
        value = None if error else self.handle.result(0)
        self._check_callbacks(value, error)
        if not (self._is_list(value, error) if self.mapped else self._is_one(value, error)):
            assert self.doubts.allow(error), f"{self.tasks} ended with {error or value!r}"

    def check_told(self) -> None:
        """Check that its done-callback was called, once."""
        until(lambda: bool(self.told), f"the done-callback of {self.tasks} was not called")
        assert len(self.told) == 1, f"the done-callback of {self.tasks} was called again"

    def _is_one(self, value: Any, error: BaseException | None) -> bool:
        (task,) = self.tasks
        fits = task.is_outcome(value, error)
        if fits and not self.doubts.allow(error):
            self.ran.add(task.number)
        return fits

    def _is_list(self, value: Any, error: BaseException | None) -> bool:
        if error is None:
            self.ran.update(each.number for each in self.tasks)
            results = zip(self.tasks, value, strict=True)
            return all(task.is_outcome(each, None) for task, each in results)
        causes = [each.number for each in self.tasks if each.is_outcome(None, error)]
        if len(causes) == 1 and not self.doubts.allow(error):
            self.ran.update(causes)
        return bool(causes)

    def _check_callbacks(self, value: Any, error: BaseException | None) -> None:
        if self.called_back is None:
            return
        expected = ([value], []) if error is None else ([], [error])
        assert self.called_back == expected, (
            f"the result is {error or value!r}, and the callbacks were called with "
            f"{self.called_back}"
        )


@dataclass(eq=False)
class Stream:
    """One call of ``imap`` or ``imap_unordered``.

    Attributes:
        results: the iterator.
        left: the tasks whose results have not been taken, or were lost.
        ordered: whether results come in the order of the tasks.
        doubts: what may befall its tasks.
        lost: how many results of those left are not to come any more.
        ran: numbers of tasks that were started, as their results say.
        is_over: it has said that there are no more.
    """

    results: ResultStream[Any]
    left: list[Task]
    ordered: bool
    doubts: Doubts
    lost: int = 0
    ran: set[int] = field(default_factory=set)
    is_over: bool = False

    def holds_a_death(self) -> bool:
        """Return whether a task that ends its worker may not have ended yet."""
        return any(each.deed == "die" for each in self.left)

    def take(self) -> None:
        """Take the next result, and look whether it is one that may come now."""
        try:
            value, error = self.results.next(LIMIT), None
        except StopIteration:
            self.is_over = True
            assert len(self.left) == self.lost, f"no results of {self.left} came"
            return
        except BaseException as raised:  # noqa: BLE001 - what tasks raise, an exit too
            value, error = None, raised
        if not self._is_next(value, error):
            assert self.doubts.allow(error), f"{error or value!r} came instead of {self.left}"
            self.is_over = isinstance(error, ClosedError)

    def _is_next(self, value: Any, error: BaseException | None) -> bool:
        expected = self.left[:1] if self.ordered else self.left
        for each in expected:
            if each.is_outcome(value, error):
                self.left.remove(each)
                if not self.doubts.allow(error):
                    self.ran.add(each.number)
                return True
        if isinstance(error, WorkerLostError) and self.doubts.death:
            self.lost += not self.ordered
            del self.left[: 1 if self.ordered else 0]
        return False
