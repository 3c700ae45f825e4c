"""A master and its slaves: gather a message of each, run a callback, scatter the results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

from typing_extensions import override

from pparallel.errors import ClosedError
from pparallel.patterns.slave_set import MASTER, Callback, SlaveSet, SlaveSets
from pparallel.runtime.collected import when_collected

if TYPE_CHECKING:
    from pparallel.patterns.sync_master_remote import RemoteSlaveSet
    from pparallel.runtime.rpc import RpcGroup


class _Participant(ABC):
    """Closes at the end of ``with``, and aborts when an exception leaves the block."""

    _closed = False

    def _leave_by(
        self, leave: Callable[[], object], close: Callable[[], object] | None = None
    ) -> None:
        """Have *leave* called when this is collected, and *close*, or *leave*, by :meth:`close`."""
        self._close = close or leave
        self._collected = when_collected(self, leave)

    @abstractmethod
    def abort(self, error: BaseException) -> None:
        """End the rounds of all participants, for this one has failed with *error*."""

    def close(self) -> None:
        """Run no more rounds; safe to call again."""
        if not self._closed:
            self._closed = True
            self._close()
            self._collected()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if exc is not None:
            self.abort(exc)
        self.close()


class SlavePipe(_Participant):
    """A slave's end: what :meth:`SyncMaster.register_slave` and :meth:`SyncMaster.join` return.

    As a context manager it closes at the end, and aborts when an exception leaves the block. One
    that is collected closes too.

    Attributes:
        identifier: what the slave is called in the callback.
    """

    def __init__(self, identifier: Any, way: SlaveSet | RemoteSlaveSet) -> None:
        self.identifier = identifier
        self._slaves = way
        self._leave_by(partial(way.leave, identifier))

    def run_slave(self, msg: Any) -> Any:
        """Send *msg* to the master and return this slave's result of the round.

        Raises:
            Exception: what the callback raised.
            PeerLostError: another participant failed, left or died.
            CallTimeoutError: some did not come in time; the message names them.
            ValueError: a participant called twice in one round, or the callback's results are
                not one for each participant.
            ClosedError: this pipe was closed, its set was replaced, or the job is ending.
        """
        if self._closed:
            raise ClosedError(repr(self))
        return self._slaves.run_slave(self.identifier, msg)

    @override
    def abort(self, error: BaseException) -> None:
        """End the rounds of all participants, for this slave has failed with *error*."""
        self._slaves.abort(self.identifier, error)

    @override
    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.identifier!r})"

    @override
    def __reduce__(self) -> NoReturn:
        message = (
            f"{self!r} cannot be sent: in another member, get a pipe with "
            "SyncMaster.join(group, name), where the master called SyncMaster.across"
        )
        raise TypeError(message)


class SyncMaster(_Participant):
    """The master's end, and where slaves are registered.

    In a round every slave calls ``run_slave`` and the master ``run_master``, in any order. When all
    have, the callback is run in the master's thread with ``[(0, message), (identifier, message),
    ...]``: the master's message first, then the slaves', sorted by identifier. It returns a result
    for each in the same shape, and every call returns its own.

    Slaves are threads of this process, registered with :meth:`register_slave`, or members of a
    job: there one member calls :meth:`across` and the others :meth:`join`. Between threads
    messages and results are passed as they are; between members they are the receiver's own.

    A set of slaves runs any number of rounds; the first registration after a round begins a new
    set. What goes wrong in a set, with whomever, ends it: all who wait, and all who call later,
    are told, and the message names the participant. A master that is collected, or leaves
    ``with``, closes.

    Args:
        master_callback: turns the messages of a round into its results.
        timeout: seconds that participants wait for one another; ``None`` for no limit. The callback
            has none.
    """

    def __init__(self, master_callback: Callback, *, timeout: float | None = None) -> None:
        given: object = master_callback
        if not callable(given):
            message = f"the callback must be a function of a list of messages, not {given!r}"
            raise TypeError(message)
        if timeout is not None and not timeout > 0:
            message = f"timeout is {timeout!r}: give seconds, or None for no limit"
            raise ValueError(message)
        self._callback = master_callback
        self._sets = SlaveSets(timeout)
        self._leave_by(self._sets.close)

    @classmethod
    def across(
        cls,
        group: RpcGroup,
        name: str,
        master_callback: Callback,
        *,
        timeout: float | None = None,
    ) -> Self:
        """Return the master of slaves in the other members of *group*.

        Returns when each of these has called :meth:`join` with the same *name*. The name is free
        again when the master is closed.

        Args:
            group: the members that take part, this one included.
            name: what the members call this master.
            master_callback: as for a master among threads.
            timeout: as for a master among threads; it also limits the wait for the others here.

        Raises:
            DirectoryError: another member is the master of that name.
            CallTimeoutError: not all members came in time.
        """
        from pparallel.patterns.sync_master_remote import MasterServices

        self = cls(master_callback, timeout=timeout)
        self._collected()  # these sets; others take their place
        self._sets = SlaveSets(timeout, group.get_cur_name())
        services = MasterServices(group, name, self._sets)
        self._leave_by(services.leave, services.close)
        services.open()
        return self

    @staticmethod
    def join(
        group: RpcGroup, name: str, identifier: Any = None, *, timeout: float | None = None
    ) -> SlavePipe:
        """Return the pipe to the member of *group* that calls :meth:`across`.

        Every member but that one calls this once; it returns when all have.

        Args:
            group: the members that take part, this one included.
            name: what the members call the master.
            identifier: what this slave is called in the callback; its member's name by default.
            timeout: seconds to wait for the others here; ``None`` for no limit.

        Raises:
            DirectoryError: no member is the master of that name.
            ValueError: another slave has that identifier.
            CallTimeoutError: not all members came in time.
        """
        from pparallel.patterns.sync_master_remote import join

        identifier = group.get_cur_name() if identifier is None else identifier
        return SlavePipe(identifier, join(group, name, identifier, timeout))

    @property
    def nr_slaves(self) -> int:
        """The number of slaves that are registered."""
        return len(self._sets.current)

    def register_slave(self, identifier: Any) -> SlavePipe:
        """Return the pipe of a new slave, for a thread of this process.

        After a round, this begins a new set: the pipes of the old one are of no use any more.

        Args:
            identifier: what the slave is called in the callback; anything but 0 that can be hashed
                and sorted with the others.

        Raises:
            ValueError: it is taken.
            TypeError: it cannot be hashed, or not be sorted with the others.
            ClosedError: this master is closed.
        """
        return SlavePipe(identifier, self._sets.register(identifier))

    def run_master(self, master_msg: Any) -> Any:
        """Run a round with *master_msg* as the master's message, and return its result.

        Raises:
            Exception: what the callback raised; otherwise as :meth:`SlavePipe.run_slave`.
        """
        if self._closed:
            raise ClosedError("the SyncMaster")
        return self._sets.current.run_master(master_msg, self._callback)

    @override
    def abort(self, error: BaseException) -> None:
        """End the rounds of all participants, for the master has failed with *error*."""
        self._sets.current.abort(MASTER, error)
