"""Slaves that live in other members than their master."""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

from pparallel.errors import ClosedError, DirectoryError, PeerLostError
from pparallel.patterns.slave_set import Participant, SlaveSet, SlaveSets
from pparallel.runtime import remote_errors
from pparallel.runtime.future import when_done
from pparallel.runtime.rpc import Reply, Request, RpcGroup
from pparallel.runtime.timers import Timers


class MasterServices:
    """The services of a master for slaves in other members, none of which blocks."""

    def __init__(self, group: RpcGroup, name: str, sets: SlaveSets) -> None:
        self._group = group
        self._name = name
        self._sets = sets
        self._timers = Timers(f"SyncMaster {name!r}")  # of slaves: no thread here waits for them

    def open(self) -> None:
        """Take the name, and wait until every other member of the group has joined.

        Raises:
            DirectoryError: the name is taken.
            CallTimeoutError: not all came in time.
        """
        self._group.pair(_key(self._name), self._name)
        for service in (self._join, self._run, self._end):
            key = _key(self._name, service.__name__.strip("_"))
            self._group.withdraw(key)  # of an earlier master, which only says that it is closed
            self._group.serve(key, service)
        self._group.when_lost(self._lost)
        self._group.when_closed(self._ended)
        try:
            for stage in ("open", "joined"):
                self._group.meet(_key(self._name, stage), self._sets.timeout)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Leave, and give the name back."""
        self.leave()
        with suppress(ClosedError, PeerLostError):  # with the group goes the name
            self._group.unpair(_key(self._name))

    def leave(self) -> None:
        """End the last set; never waits for another member, and is safe to call again.

        The services stay and say that the master has left: a service that is not there would look
        like a mistake in the program.
        """
        self._sets.close()
        self._group.forget(self._lost)
        self._group.forget(self._ended)
        self._timers.close()

    def _join(self, asked: Request) -> Reply:
        slave = Participant(asked.sender, self._group.serializer.loads, self._reply)
        try:
            return Reply(self._sets.register(asked.body, slave).number)
        except (TypeError, ValueError) as error:
            self._sets.current.end(error)  # or the others would run without this slave
            raise

    def _reply(self, result: Any) -> Reply:
        # Copied: the caller of run_master may change its tensors before they are sent.
        return Reply(None, [bytearray(each) for each in self._group.serializer.dumps(result)])

    def _run(self, asked: Request) -> Future[Reply]:
        number, identifier = asked.body
        slaves = self._slaves(number)
        call = slaves.submit(identifier, asked.buffers)
        if slaves.timeout is not None:
            timer = self._timers.call_later(slaves.timeout, partial(slaves.expire, call))
            when_done(call, lambda _: timer.cancel())
        return call

    def _end(self, asked: Request) -> Reply:
        number, identifier, envelope = asked.body
        slaves = self._slaves(number)
        if envelope is None:
            slaves.leave(identifier)
        else:
            serializer = self._group.serializer
            slaves.abort(identifier, remote_errors.unpack(envelope, asked.sender, serializer))
        return Reply()

    def _slaves(self, number: int) -> SlaveSet:
        if self._sets.current.number != number:
            raise ClosedError(f"this set of slaves of {self._name!r}", "was replaced by a new one")
        return self._sets.current

    def _lost(self, member: str, reason: str) -> None:
        self._sets.current.lose(member, reason)

    def _ended(self, reason: BaseException) -> None:
        self._sets.current.end(reason)
        self._timers.close()


class RemoteSlaveSet:
    """A set of slaves as one that has joined it from another member, or the master's own, sees it.

    Its methods are those of :class:`SlaveSet`.
    """

    def __init__(self, group: RpcGroup, name: str, master: str, number: int) -> None:
        self._group = group
        self._name = name
        self._master = master
        self._number = number

    def run_slave(self, identifier: Any, message: Any) -> Any:
        """Take part in a round, and return the slave's result."""
        serializer, ticket = self._group.serializer, (self._number, identifier)
        try:
            buffers = serializer.dumps(message)
            reply = self._group.ask(self._master, _key(self._name, "run"), ticket, buffers)
            return serializer.loads(reply.buffers)
        except BaseException as error:
            self.abort(identifier, error)  # of no effect where the set has ended, as it mostly has
            raise

    def abort(self, identifier: Any, error: BaseException) -> None:
        """End the set, for the slave has failed."""
        self._end(identifier, tuple(remote_errors.pack(error, self._group.serializer)))

    def leave(self, identifier: Any) -> None:
        """Take part in no more rounds; safe to call again."""
        self._end(identifier, None)

    def _end(self, identifier: Any, envelope: tuple[Any, ...] | None) -> None:
        body = self._number, identifier, envelope
        with suppress(ClosedError, PeerLostError):  # the set has ended with its master
            self._group.ask_async(self._master, _key(self._name, "end"), body)


def join(group: RpcGroup, name: str, identifier: Any, timeout: float | None) -> RemoteSlaveSet:
    """Become a slave of the member that is the master of *name*."""
    group.meet(_key(name, "open"), timeout)
    try:
        master = group.get_paired(_key(name)).owner_name()
        number = group.ask(master, _key(name, "join"), identifier, timeout=timeout).body
    except DirectoryError as error:
        message = (
            f"no member of group {group.get_group_name()!r} is the master of {name!r}: "
            f"one of {', '.join(group.get_group_members())} calls SyncMaster.across"
        )
        raise DirectoryError(message) from error
    finally:
        group.meet(_key(name, "joined"), timeout)
    return RemoteSlaveSet(group, name, master, number)


def _key(name: str, service: str = "") -> str:
    return f"SyncMaster {name}/{service}".rstrip("/")
