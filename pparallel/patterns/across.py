"""Slaves that live in other members than their master."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

from typing_extensions import override

from pparallel.errors import ClosedError, DirectoryError, PeerLostError
from pparallel.patterns.gathering import Gathering
from pparallel.patterns.sets import Sets
from pparallel.patterns.slave import Codec
from pparallel.runtime import remote_errors
from pparallel.runtime.rpc import Reply, Request, RpcGroup
from pparallel.runtime.timers import Timers


class Desk:
    """Where slaves come to their master: its services, none of which blocks."""

    def __init__(self, group: RpcGroup, name: str, sets: Sets) -> None:
        self._group = group
        self._name = name
        self._sets = sets
        # Nobody here may be waiting when a slave's time is over.
        self._timers = Timers(f"SyncMaster {name!r}")
        self._named = False

    def open(self) -> None:
        """Take the name, and wait until every other member of the group has joined.

        Raises:
            DirectoryError: the name is taken.
            CallTimeoutError: not all came in time.
        """
        self._group.pair(_key(self._name), self._name)
        self._named = True
        for service, answer in self._services().items():
            key = _key(self._name, service)
            self._group.withdraw(key)  # that of an earlier desk, which only says that it is closed
            self._group.serve(key, answer)
        self._group.when_lost(self._lost)
        self._group.when_closed(self._ended)
        try:
            meet(self._group, self._name, "open", self._sets.timeout)
            meet(self._group, self._name, "joined", self._sets.timeout)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Leave, and give the name back; safe to call again."""
        self.leave()
        named, self._named = self._named, False
        if named:
            with suppress(ClosedError, PeerLostError):  # with the group goes the name
                self._group.unpair(_key(self._name))

    def leave(self) -> None:
        """End the last set; never waits for another member, and is safe to call again.

        The services stay and say that the master has left: were they gone, that would look like a
        mistake in the program.
        """
        self._sets.close()
        self._group.forget(self._lost)
        self._group.forget(self._ended)
        self._timers.close()

    def _services(self) -> dict[str, Callable[[Request], Reply | Future[Reply]]]:
        return {"join": self._join, "run": self._run, "abort": self._abort, "leave": self._leave}

    def _join(self, asked: Request) -> Reply:
        try:
            gathering = self._sets.join(asked.body, AcrossCodec(self._group), asked.sender)
        except (TypeError, ValueError) as error:
            self._sets.current.end(error)  # or the others would run without this slave
            raise
        return Reply(gathering.number)

    def _run(self, asked: Request) -> Future[Reply]:
        number, identifier = asked.body
        gathering = self._found(number)
        reply = gathering.submit(identifier, asked.buffers)
        if gathering.timeout is not None and not reply.done():
            expire = partial(gathering.expire, reply)
            timer = self._timers.call_later(gathering.timeout, expire)
            reply.add_done_callback(lambda _: timer.cancel())
        return reply

    def _abort(self, asked: Request) -> Reply:
        number, identifier, envelope = asked.body
        error = remote_errors.unpack(envelope, asked.sender, self._group.serializer)
        self._found(number).abort(identifier, error)
        return Reply()

    def _leave(self, asked: Request) -> Reply:
        number, identifier = asked.body
        self._found(number).leave(identifier)
        return Reply()

    def _found(self, number: int) -> Gathering:
        gathering = self._sets.current
        if gathering.number != number:
            raise ClosedError(f"this set of slaves of {self._name!r}", "was replaced by a new one")
        return gathering

    def _lost(self, member: str, reason: str) -> None:
        self._sets.current.lose(member, reason)

    def _ended(self, reason: BaseException) -> None:
        self._sets.current.end(reason)
        self._timers.close()


class AcrossCodec(Codec):
    """Messages and results travel as raw buffers, the receiver's own."""

    def __init__(self, group: RpcGroup) -> None:
        self._serializer = group.serializer

    @override
    def opened(self, message: Any) -> Any:
        return self._serializer.loads(message)

    @override
    def sealed(self, result: Any) -> Any:
        # Copied, for the caller of run_master may change its tensors before they are sent.
        return Reply(None, [bytearray(each) for each in self._serializer.dumps(result)])


class Across:
    """The way from a slave to a master in another member, or in its own."""

    def __init__(self, group: RpcGroup, name: str, master: str, ticket: tuple[int, Any]) -> None:
        self._group = group
        self._name = name
        self._master = master
        self._ticket = ticket

    def run(self, message: Any) -> Any:
        """Take part in a round."""
        serializer = self._group.serializer
        try:
            buffers = serializer.dumps(message)
            reply = self._group.ask(self._master, _key(self._name, "run"), self._ticket, buffers)
            return serializer.loads(reply.buffers)
        except BaseException as error:
            self.abort(error)  # of no effect where the set has ended, as it mostly has
            raise

    def abort(self, error: BaseException) -> None:
        """Say that this slave failed."""
        envelope = remote_errors.pack(error, self._group.serializer)
        self._tell("abort", (*self._ticket, tuple(envelope)))

    def leave(self) -> None:
        """Say that this slave runs no more rounds."""
        self._tell("leave", self._ticket)

    def _tell(self, service: str, body: object) -> None:
        with suppress(ClosedError, PeerLostError):  # nobody is left to be told
            self._group.ask_async(self._master, _key(self._name, service), body)


def join(group: RpcGroup, name: str, identifier: Any, timeout: float | None) -> Across:
    """Become a slave of the member that opens a desk under *name*."""
    meet(group, name, "open", timeout)
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
        meet(group, name, "joined", timeout)
    return Across(group, name, master, (number, identifier))


def meet(group: RpcGroup, name: str, stage: str, timeout: float | None) -> None:
    """Wait until all members of *group* are at *stage* of taking part in *name*."""
    group.meet(_key(name, stage), timeout)


def _key(name: str, service: str = "") -> str:
    return f"SyncMaster {name}/{service}".rstrip("/")
