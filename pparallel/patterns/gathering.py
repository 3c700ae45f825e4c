"""One set of slaves, and the rounds that they run with their master."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any

from pparallel.errors import CallTimeoutError, PeerLostError, SerializationError
from pparallel.patterns.failures import keepable, one_line, own_copy
from pparallel.patterns.matching import MASTER, Callback, matched
from pparallel.patterns.slave import Codec, Slave
from pparallel.patterns.waiting import wait_for
from pparallel.runtime.future import fail, settle

_numbers = itertools.count(1)


class Gathering:
    """Collects a message of each participant, and hands out the results; again and again.

    What goes wrong once ends it: whoever waits, and whoever comes later, is told of the first
    failure. So participants can never be out of step without noticing.
    """

    def __init__(self, master: str | None, timeout: float | None) -> None:
        self.number = next(_numbers)
        self.timeout = timeout
        self._master = master  # the member that it is, if it is one
        self._where = master or "master"
        self._lock = threading.Lock()
        self._slaves: dict[Any, Slave] = {}
        self._rounds = 0  # those that ended well
        self._whole: Future[None] | None = None  # there while the master waits, or computes
        self._computing = False
        self._master_gone: PeerLostError | None = None
        self._error: BaseException | None = None

    def __len__(self) -> int:
        return len(self._slaves)

    @property
    def used(self) -> bool:
        """Whether a round has begun, or none can: the next registration is for a new set."""
        with self._lock:
            return self._rounds > 0 or self._whole is not None or self._trouble() is not None

    def enrol(self, identifier: Any, codec: Codec, holder: str | None = None) -> None:
        """Count on one more slave.

        Raises:
            ValueError: the identifier is taken.
            TypeError: it cannot be hashed, or not be sorted with the others.
        """
        with self._lock:
            known = ", ".join(map(repr, self._slaves)) or "none"
            try:
                taken = identifier in self._slaves
                slaves = {**self._slaves, identifier: Slave(identifier, codec, holder)}
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
            self._slaves = ordered

    def submit(self, identifier: Any, message: Any) -> Future[Any]:
        """Take a slave's message; return the future of its result.

        Raises:
            Exception: what has ended this set, or ends it now.
        """
        reply: Future[Any] = Future()
        with self._lock:
            slave, trouble, whole = self._slaves[identifier], self._trouble(), None
            if trouble is None and slave.reply is not None:
                trouble = ValueError(self._out_of_step(self._title(identifier), "run_slave"))
            if trouble is None:
                slave.message, slave.reply = message, reply
                whole = self._whole if self._all_here() else None
        if trouble is not None:
            raise self.end(trouble)
        if whole is not None:
            settle(whole, None)
        return reply

    def run_slave(self, identifier: Any, message: Any) -> Any:
        """Take part in a round, and return the slave's result."""
        return self._wait(identifier, self.submit(identifier, message))

    def run_master(self, message: Any, callback: Callback) -> Any:
        """Run a round, and return the master's result."""
        self._wait(MASTER, self._call())
        try:
            results = matched(
                callback([(MASTER, message), *self._messages()]), [MASTER, *self._slaves]
            )
            sealed = [self._sealed(slave, results) for slave in self._slaves.values()]
        except BaseException as error:
            self.end(error)
            raise
        self._scatter(sealed)
        return results[MASTER]

    # -- ends ---------------------------------------------------------------------------------

    def end(self, error: BaseException) -> BaseException:
        """Tell all who wait, and those to come, of *error*, unless another was first.

        Returns:
            The first one, as an exception of the caller's own.
        """
        kept = keepable(error, self._where)
        with self._lock:
            first, waiting = self._error, []
            if first is None:
                self._error = kept
                waiting = [self._whole, *(slave.reply for slave in self._slaves.values())]
                first = error
                self._forget_the_round()
        for future in waiting:
            if future is not None:
                fail(future, own_copy(first, self._where))
        return own_copy(first, self._where)

    def abort(self, identifier: Any, error: BaseException) -> None:
        """End the set, for a participant has failed with *error*."""
        lost = PeerLostError(
            self._peer(identifier), f"failed in round {self._rounds + 1}: {one_line(error)}"
        )
        lost.__cause__ = error
        self.end(lost)

    def leave(self, identifier: Any, lost: PeerLostError | None = None) -> None:
        """Count on a participant no more; safe to call again."""
        if lost is None:
            count = f"{self._rounds} round{'' if self._rounds == 1 else 's'}"
            lost = PeerLostError(self._peer(identifier), f"left after {count}")
        with self._lock:
            if identifier == MASTER:
                self._master_gone = self._master_gone or lost
            else:
                slave = self._slaves[identifier]
                slave.gone = slave.gone or lost
            awaited = self._whole is not None or bool(self._here())
        if awaited:
            self.end(lost)

    def lose(self, member: str, reason: str) -> None:
        """Count on the slaves of a member that ended no more."""
        for slave in list(self._slaves.values()):
            if slave.holder == member:
                whose = "" if slave.identifier == member else f" (slave {slave.identifier!r})"
                self.leave(slave.identifier, PeerLostError(member, reason + whose))

    def expire(self, future: Future[Any]) -> None:
        """End the set, for the time in which *future* should have ended is over.

        Not if all have come: then the callback is running, which has no limit.
        """
        with self._lock:
            if future.done() or self._computing:
                return
            here = {*self._here(), *([] if self._whole is None else [MASTER])}
            missing = [self._title(each) for each in (MASTER, *self._slaves) if each not in here]
            what = f"the call to {', '.join(missing)} for round {self._rounds + 1}"
        self.end(CallTimeoutError(what, self.timeout or 0.0))

    # -- inside -------------------------------------------------------------------------------

    def _call(self) -> Future[None]:
        """Begin a round as its master; return the future that ends when all have come."""
        whole: Future[None] = Future()
        with self._lock:
            trouble, complete = self._trouble(), False
            if trouble is None and self._whole is not None:
                trouble = ValueError(self._out_of_step(self._title(MASTER), "run_master"))
            if trouble is None:
                self._whole = whole
                complete = self._all_here()
        if trouble is not None:
            raise self.end(trouble)
        if complete:
            settle(whole, None)
        return whole

    def _wait(self, identifier: Any, future: Future[Any]) -> Any:
        try:
            return wait_for(future, self.timeout, self.expire, self.end)
        except BaseException as error:
            if not future.done():  # an interrupt
                self.abort(identifier, error)
            raise
        finally:
            del future  # as in wait_for

    def _messages(self) -> Iterable[tuple[Any, Any]]:
        with self._lock:
            ended = self._error
            messages = [(slave, slave.message) for slave in self._slaves.values()]
        if ended is not None:
            raise own_copy(ended, self._where)
        for slave, message in messages:
            try:
                yield slave.identifier, slave.codec.opened(message)
            except Exception as error:
                what = f"the message of {self._title(slave.identifier)}"
                raise SerializationError(what, error, loading=True) from error

    def _sealed(self, slave: Slave, results: dict[Any, Any]) -> Any:
        try:
            return slave.codec.sealed(results[slave.identifier])
        except Exception as error:
            what = f"the result for {self._title(slave.identifier)}"
            raise SerializationError(what, error) from error

    def _scatter(self, sealed: list[Any]) -> None:
        with self._lock:
            ended = self._error
            if ended is None:
                replies = [slave.reply for slave in self._slaves.values()]
                self._forget_the_round()
                self._rounds += 1
        if ended is not None:
            raise own_copy(ended, self._where)
        for reply, result in zip(replies, sealed, strict=True):
            if reply is not None:
                settle(reply, result)

    def _forget_the_round(self) -> None:
        """Make room for the next messages; called with the lock held."""
        for slave in self._slaves.values():
            slave.message = slave.reply = None
        self._whole, self._computing = None, False

    def _all_here(self) -> bool:
        """Whether the master may compute; called with the lock held."""
        everybody = len(self._here()) == len(self._slaves)
        self._computing = self._whole is not None and everybody
        return self._computing

    def _here(self) -> list[Any]:
        """Return the slaves that wait for a result; called with the lock held."""
        return [key for key, slave in self._slaves.items() if slave.reply is not None]

    def _trouble(self) -> BaseException | None:
        """Why no round can be run any more; called with the lock held."""
        gone = (slave.gone for slave in self._slaves.values() if slave.gone is not None)
        return self._error or self._master_gone or next(gone, None)

    def _out_of_step(self, who: str, method: str) -> str:
        return (
            f"{who} called {method} a second time in round {self._rounds + 1}, "
            "before the first call had returned"
        )

    def _peer(self, identifier: Any) -> str:
        return self._where if identifier == MASTER else str(identifier)

    def _title(self, identifier: Any) -> str:
        if identifier != MASTER:
            return f"slave {identifier!r}"
        return "the master" if self._master is None else f"master {self._master!r}"
