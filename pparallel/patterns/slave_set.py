"""One set of slaves, and the rounds that they run with their master."""

from __future__ import annotations

import copy
import itertools
import reprlib
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

from pparallel.errors import (
    CallTimeoutError,
    ClosedError,
    PeerLostError,
    RemoteError,
    SerializationError,
    is_consequence,
)
from pparallel.runtime import stopping
from pparallel.runtime.future import LeanFuture, fail, settle
from pparallel.runtime.rpc import context

MASTER = 0  #: the identifier that stands for the master

Messages = list[tuple[Any, Any]]  #: identifier and message, the master's first
Callback = Callable[[Messages], Iterable[tuple[Any, Any]]]

_numbers = itertools.count(1)


@dataclass(slots=True)
class Participant:
    """A slave, or the master.

    Attributes:
        member: the one that a slave lives in, if it came from another.
        loads: makes the message of what a slave has sent.
        dumps: makes what ends a slave's call of its result.
        message: of this round.
        call: ends with the result; there while the participant waits or computes.
        gone: why it takes part no more.
    """

    member: str | None = None
    loads: Callable[[Any], Any] = lambda message: message
    dumps: Callable[[Any], Any] = lambda result: result
    message: Any = None
    call: Future[Any] | None = None
    gone: PeerLostError | None = None


class SlaveSet:
    """Collects a message of each participant, and hands out the results; again and again.

    The first failure ends it: all who wait, and all who come later, get that error. So no
    participant can be out of step unnoticed.
    """

    def __init__(self, master: str | None, timeout: float | None) -> None:
        self.number = next(_numbers)
        self.timeout = timeout
        self._master_name = master  # the member that it is, if it is one
        self._where = master or "master"
        self._lock = threading.Lock()
        self._master = Participant()
        self._everybody: dict[Any, Participant] = {MASTER: self._master}  # the slaves sorted
        self._rounds = 0  # those that ended well
        self._error: BaseException | None = None

    def __len__(self) -> int:
        return len(self._everybody) - 1

    def used(self) -> bool:
        """Return whether a round has begun or none can: the next slave is of a new set."""
        with self._lock:
            begun = self._rounds > 0 or self._master.call is not None
            return begun or self._trouble() is not None

    def add(self, identifier: Any, slave: Participant) -> None:
        """Count on one more slave.

        Raises:
            ValueError: the identifier is taken.
            TypeError: it cannot be hashed, or not be sorted with the others.
        """
        with self._lock:
            slaves = dict(list(self._everybody.items())[1:])
            known = _listed(slaves) or "none"
            try:
                taken = identifier in slaves
                slaves[identifier] = slave
                ordered = {key: slaves[key] for key in sorted(slaves)}
            except TypeError as error:
                message = (
                    f"{identifier!r} is no identifier: give one that can be hashed, and sorted "
                    f"with the others ({known})"
                )
                raise TypeError(message) from error
            if taken:
                message = f"slave {identifier!r} is registered already; registered: {known}"
                raise ValueError(message)
            if identifier == MASTER:
                message = f"identifier {identifier!r} is the master's: give slaves another"
                raise ValueError(message)
            self._everybody = {MASTER: self._master, **ordered}

    def submit(self, identifier: Any, message: Any) -> Future[Any]:
        """Take a participant's message; return the future of its result.

        The master's ends without one, when all messages are there.

        Raises:
            Exception: the failure that has ended this set, or ends it now.
        """
        call = LeanFuture[Any]()
        with self._lock:
            each, trouble, master = self._everybody[identifier], self._trouble(), None
            if trouble is None and each.call is not None:
                method = "run_master" if identifier == MASTER else "run_slave"
                trouble = ValueError(
                    f"{self._title(identifier)} called {method} a second time in round "
                    f"{self._rounds + 1}, before the first call had returned"
                )
            if trouble is None:
                each.message, each.call = message, call
                master = None if self._missing() else self._master.call
        if trouble is not None:
            raise self.end(trouble)
        if master is not None:
            settle(master, None)
        return call

    def run_slave(self, identifier: Any, message: Any) -> Any:
        """Take part in a round, and return the participant's result."""
        call = self.submit(identifier, message)
        try:
            with stopping.waking(self.end), _blocked():
                with suppress(TimeoutError):
                    call.exception(self.timeout)
                self.expire(call)
                return call.result()
        except BaseException as error:
            if not call.done():  # an interrupt
                self.abort(identifier, error)
            raise
        finally:
            del call  # else the traceback of what it raises would keep it, and it the exception

    def run_master(self, message: Any, callback: Callback) -> Any:
        """Run a round, and return the master's result."""
        self.run_slave(MASTER, message)
        try:
            results = matched(callback(self._messages()), list(self._everybody))
            replies = []
            for identifier, each in self._everybody.items():
                with _serializing(f"the result for {self._title(identifier)}"):
                    replies.append(each.dumps(results[identifier]))
        except BaseException as error:
            self.end(error)
            raise
        self._hand_out(replies)
        return results[MASTER]

    # -- ends ---------------------------------------------------------------------------------

    def end(self, error: BaseException) -> BaseException:
        """Fail all who wait, and those to come, with *error*, unless another was first.

        Returns:
            The first one, as an exception of the caller's own.
        """
        kept = _without_frames(error, self._where)
        with self._lock:
            first, calls = self._error, []
            if first is None:
                first, self._error = error, kept
                calls = [each.call for each in self._everybody.values()]
                self._forget_the_round()
        for call in calls:
            if call is not None:
                fail(call, _own_copy(first, self._where))
        return _own_copy(first, self._where)

    def abort(self, identifier: Any, error: BaseException) -> None:
        """End the set, for a participant has failed with *error*."""
        reason = f"failed in round {self._rounds + 1}: {_one_line(error)}"
        lost = PeerLostError(self._peer(identifier), reason)
        lost.__cause__ = error
        self.end(lost)

    def leave(self, identifier: Any, lost: PeerLostError | None = None) -> None:
        """Count on a participant no more; safe to call again."""
        if lost is None:
            count = f"{self._rounds} round{'' if self._rounds == 1 else 's'}"
            lost = PeerLostError(self._peer(identifier), f"left after {count}")
        with self._lock:
            left = self._everybody[identifier]
            left.gone = left.gone or lost
            awaited = any(each.call for each in self._everybody.values())
        if awaited:
            self.end(lost)

    def lose(self, member: str, reason: str) -> None:
        """Count on the slaves of a member that ended no more."""
        for identifier, slave in list(self._everybody.items()):
            if slave.member == member:
                whose = "" if identifier == member else f" (slave {identifier!r})"
                self.leave(identifier, PeerLostError(member, reason + whose))

    def expire(self, call: Future[Any]) -> None:
        """End the set, for the time in which *call* should have ended is over.

        Not if all have come: then the callback is running, which has no limit.
        """
        with self._lock:
            missing = self._missing()
            if call.done() or not missing:
                return
            what = f"the call to {', '.join(missing)} for round {self._rounds + 1}"
        self.end(CallTimeoutError(what, self.timeout or 0.0))

    # -- inside -------------------------------------------------------------------------------

    def _messages(self) -> Messages:
        with self._lock:
            error = self._error
            sent = {key: (each, each.message) for key, each in self._everybody.items()}
        if error is not None:
            raise _own_copy(error, self._where)
        messages = []
        for identifier, (each, message) in sent.items():
            with _serializing(f"the message of {self._title(identifier)}", loading=True):
                messages.append((identifier, each.loads(message)))
        return messages

    def _hand_out(self, replies: list[Any]) -> None:
        with self._lock:
            error = self._error
            if error is None:
                calls = [each.call for each in self._everybody.values()]
                self._forget_the_round()
                self._rounds += 1
        if error is not None:
            raise _own_copy(error, self._where)
        for call, reply in zip(calls, replies, strict=True):
            if call is not None:
                settle(call, reply)

    def _forget_the_round(self) -> None:
        """Make room for the next messages; called with the lock held."""
        for each in self._everybody.values():
            each.message = each.call = None

    def _missing(self) -> list[str]:
        """Return who has not come yet; called with the lock held."""
        return [self._title(key) for key, each in self._everybody.items() if not each.call]

    def _trouble(self) -> BaseException | None:
        """Return why no round can be run any more; called with the lock held."""
        if self._error is not None:
            return self._error
        return next((each.gone for each in self._everybody.values() if each.gone), None)

    def _peer(self, identifier: Any) -> str:
        return self._where if identifier == MASTER else str(identifier)

    def _title(self, identifier: Any) -> str:
        if identifier != MASTER:
            return f"slave {identifier!r}"
        return f"master {self._master_name!r}" if self._master_name else "the master"


class SlaveSets:
    """The set of slaves that a master has: a registration after a round begins a new one."""

    def __init__(self, timeout: float | None, master: str | None = None) -> None:
        self.timeout = timeout
        self._master = master
        self._lock = threading.Lock()
        self._closed = False
        self.current = SlaveSet(master, timeout)  #: takes part in the next round

    def register(self, identifier: Any, remote: Participant | None = None) -> SlaveSet:
        """Count on one more slave in the next round; return the set that it is in.

        Args:
            identifier: of the slave.
            remote: the slave if it is in another member. These join together, one set at a time: a
                set that one of them has ended already is not replaced.

        Raises:
            ClosedError: the master is closed.
            ValueError: the identifier is taken.
            TypeError: it cannot be hashed, or not be sorted with the others.
        """
        with self._lock:
            if self._closed and remote is None:
                raise ClosedError("the SyncMaster")
            old = self.current
            new = SlaveSet(self._master, self.timeout) if remote is None and old.used() else old
            new.add(identifier, remote or Participant())
            self.current = new
        if new is not old:
            why = f"was replaced by a new one, which began with slave {identifier!r}"
            old.end(ClosedError("the set of slaves", why))
        return new

    def close(self) -> None:
        """Run no more rounds; safe to call again."""
        with self._lock:
            self._closed = True
        self.current.leave(MASTER)


def matched(results: Any, wanted: Sequence[Any]) -> dict[Any, Any]:
    """Return the results of a callback by identifier.

    Args:
        results: pairs of identifier and result, the master's first.
        wanted: the identifiers of which there must be one each.

    Raises:
        ValueError: they are not that.
    """
    try:
        pairs = [(identifier, result) for identifier, result in results]
        found = dict(pairs)
    except (TypeError, ValueError) as error:
        raise _refusal(wanted, reprlib.repr(results)) from error
    given = [identifier for identifier, _ in pairs]
    if given[:1] != [MASTER] or len(given) != len(found) or found.keys() != set(wanted):
        raise _refusal(wanted, f"those for {_listed(given) or 'nobody'}")
    return found


def _refusal(wanted: Sequence[Any], given: str) -> ValueError:
    rule = "the callback must return [(0, result), (identifier, result), ...], the master's first"
    return ValueError(f"{rule}, with one for each of {_listed(wanted)}, not {given}")


def _listed(identifiers: Iterable[Any]) -> str:
    return ", ".join(map(repr, identifiers))


@contextmanager
def _serializing(what: str, loading: bool = False) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise SerializationError(what, error, loading=loading) from error


def _blocked() -> AbstractContextManager[object]:
    """Let the member run another function meanwhile, if it runs this one for somebody else."""
    try:
        return context.endpoint().executor.blocked()
    except ClosedError:
        return nullcontext()


def _own_copy(error: BaseException, where: str) -> BaseException:
    """Return *error*, raised in *where*, as an exception that one of several may raise and change.

    It is of the same type where that can be copied, else a :class:`RemoteError`; the original is
    its cause. ``SystemExit`` and the like do not spread.
    """
    try:
        own: BaseException | None = copy.copy(error) if isinstance(error, Exception) else None
    except Exception:  # noqa: BLE001 - the user's exception may refuse in any way
        own = None
    if own is None or type(own) is not type(error) or own is error:
        own = _as_text(error, where)
    elif notes := getattr(error, "__notes__", None):
        own.__notes__ = list(notes)
    own.__cause__ = error.__cause__ if error.__traceback__ is None else error
    return own


def _without_frames(error: BaseException, where: str) -> BaseException:
    """Return a copy of *error* to be kept: frames would keep alive all that they use."""
    own = _own_copy(error, where)
    if is_consequence(own):
        own.__cause__ = ClosedError("the job", "is ending", consequence=True)
    elif own.__cause__ is not None:
        own.__cause__ = _as_text(own.__cause__, where)
    return own


def _as_text(error: BaseException, where: str) -> RemoteError:
    text = "".join(traceback.format_exception(error))
    kind = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
    return RemoteError(where, kind, _one_line(error), text)


def _one_line(error: BaseException) -> str:
    return traceback.format_exception_only(error)[-1].strip()
