"""Members of a world that call one another, as ``machin.parallel.distributed.RpcGroup``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from typing_extensions import override

from pparallel.compat.machin.distributed import calls
from pparallel.compat.machin.distributed.current import get_cur_name, joined_world
from pparallel.compat.machin.distributed.script_functions import sendable
from pparallel.errors import ClosedError
from pparallel.runtime import rpc
from pparallel.runtime.rpc import RemoteRef, context
from pparallel.runtime.rpc.directory import WORLD
from pparallel.runtime.rpc.future import RpcFuture
from pparallel.runtime.timeouts import DEFAULT

Kwargs = Mapping[str, Any] | None


class RpcGroup:
    """Some members of a world that call one another, under a name.

    It does what :class:`pparallel.RpcGroup` does, and keeps what that promises: a call runs at most
    once, a member that has ended raises ``PeerLostError`` in whoever waits for it, and the names it
    held are free again. It pickles as its name and members, and works in the member where it
    arrives.

    Time-outs are in seconds: -1 is the world's ``rpc_timeout``, 0 no limit.

    Attributes:
        native: the group that does the work.
    """

    def __init__(
        self, group_name: str, group_members: Sequence[str], first_create: bool = True
    ) -> None:
        """Enter a group; ``World.create_rpc_group`` is the usual way.

        Args:
            group_name: its name, unique in the world.
            group_members: the names of its members.
            first_create: whether to enter it, and wait until all its members have; else it is one
                that they are in.

        Raises:
            RuntimeError: this process is in no world, or not among the members.
            PeerLostError: a member ended before it entered.
            ValueError: others gave other members.
        """
        self._name, self._members = group_name, list(group_members)
        # What is called so there is the group that a runtime has of all its members.
        name = f"{WORLD} of the program" if group_name == WORLD else group_name
        self.native: rpc.RpcGroup
        if first_create:
            self._check_is_member(get_cur_name())
            self.native = joined_world().runtime.group(name, self._members, timeout=None)
        else:
            self.native = rpc.RpcGroup(context.endpoint(), name, self._members)

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return RpcGroup, (self._name, self._members, False)

    @override
    def __repr__(self) -> str:
        return f"RpcGroup({self._name!r}, {self._members})"

    # -- calls --------------------------------------------------------------------------------

    def rpc_sync(
        self,
        to: object,
        func: Callable[..., Any],
        timeout: float = -1,
        args: Sequence[Any] = (),
        kwargs: Kwargs = None,
    ) -> Any:
        """Run ``func(*args, **kwargs)`` in member *to* and return its result.

        Args:
            to: a member's name, its rank in the world, or an object with a ``name``.
            func: any function; one in TorchScript is sent by module and name.
            timeout: seconds.
            args: positional arguments.
            kwargs: keyword arguments.

        Raises:
            RpcException: for what *func* raised; it is of that class too.
            RuntimeError: *to* is not a member of the group.
            CallTimeoutError: no answer came in time; the function may still run.
            PeerLostError: the member ended.
            SerializationError: the call or its result cannot be sent.
        """
        run = (sendable(func), args, kwargs)
        return self.native.rpc_sync(self._member(to), calls.guarded, run, timeout=_seconds(timeout))

    def rpc_async(
        self,
        to: object,
        func: Callable[..., Any],
        timeout: float = -1,
        args: Sequence[Any] = (),
        kwargs: Kwargs = None,
    ) -> RpcFuture[Any]:
        """As :meth:`rpc_sync`, but return a future with ``wait()``."""
        run = (sendable(func), args, kwargs)
        return self.native.rpc_async(
            self._member(to), calls.guarded, run, timeout=_seconds(timeout)
        )

    def remote(
        self,
        to: object,
        func: Callable[..., Any],
        timeout: float = -1,
        args: Sequence[Any] = (),
        kwargs: Kwargs = None,
    ) -> RemoteRef[Any]:
        """As :meth:`rpc_sync`, but leave the result there and return a reference at once."""
        run = (sendable(func), args, kwargs)
        return self.native.remote(self._member(to), calls.guarded, run, timeout=_seconds(timeout))

    # -- values that all know by name ---------------------------------------------------------

    def pair(self, key: Any, value: Any) -> None:
        """Name *value*, which stays in this member, *key* for the group.

        Raises:
            KeyError: the name is taken, by anyone.
            RuntimeError: this process is not a member of the group.
        """
        self._check_is_member(get_cur_name())
        self.native.pair(key, value)

    def unpair(self, key: Any) -> None:
        """Take the name *key* back; references that others hold stay valid.

        Raises:
            KeyError: this member named nothing so.
            RuntimeError: this process is not a member of the group.
        """
        self._check_is_member(get_cur_name())
        self.native.unpair(key)

    def is_paired(self, key: Any) -> bool:
        """Return whether *key* names a value."""
        return self.native.is_paired(key)

    def get_paired(self, key: Any) -> RemoteRef[Any]:
        """Return a reference to the value that *key* names.

        Raises:
            KeyError: it names none.
        """
        return self.native.get_paired(key)

    # -- services that all know by name -------------------------------------------------------

    def register(self, key: Any, service: Callable[..., Any]) -> None:
        """Offer *service* to the group under *key*, until deregistered or this member ends.

        Raises:
            KeyError: somebody offers one under that key already.
            RuntimeError: this process is not a member of the group.
        """
        self._check_is_member(get_cur_name())
        self.native.register(key, calls.service(service))

    def deregister(self, key: Any) -> None:
        """Offer the service under *key* no more.

        Raises:
            KeyError: this member offers none.
            RuntimeError: this process is not a member of the group.
        """
        self._check_is_member(get_cur_name())
        self.native.deregister(key)

    def is_registered(self, key: Any) -> bool:
        """Return whether a member offers a service under *key*."""
        return self.native.is_registered(key)

    def registered_sync(self, key: Any, args: Sequence[Any] = (), kwargs: Kwargs = None) -> Any:
        """Run the service *key* where it is offered and return its result.

        Raises:
            KeyError: nobody offers it.
            RpcException: for what the service raised; it is of that class too.
        """
        return self.native.registered_sync(key, args=args, kwargs=kwargs)

    def registered_async(
        self, key: Any, args: Sequence[Any] = (), kwargs: Kwargs = None
    ) -> RpcFuture[Any]:
        """As :meth:`registered_sync`, but return a future with ``wait()``."""
        return self.native.registered_async(key, args=args, kwargs=kwargs)

    def registered_remote(
        self, key: Any, args: Sequence[Any] = (), kwargs: Kwargs = None
    ) -> RemoteRef[Any]:
        """As :meth:`registered_sync`, but leave the result there and return a reference."""
        return self.native.registered_remote(key, args=args, kwargs=kwargs)

    # -- together -----------------------------------------------------------------------------

    def barrier(self) -> None:
        """Wait until every member of the group has called this as often.

        Raises:
            PeerLostError: a member ended, so that not all can come.
            RuntimeError: this process is not a member of the group.
        """
        self._check_is_member(get_cur_name())
        self.native.barrier()

    def destroy(self) -> None:
        """Leave the group: what this member paired and registered in it is gone.

        The name is free again when all members have left. Safe to call again.

        Raises:
            RuntimeError: this process is not a member of the group.
        """
        self._check_is_member(get_cur_name())
        self.native.destroy()

    # -- who ----------------------------------------------------------------------------------

    def size(self) -> int:
        """Return the number of members."""
        return self.native.size()

    def is_member(self, target: object = None) -> bool:
        """Return whether *target*, by default the calling member, belongs to this group."""
        return self.native.is_member(target)

    def get_group_name(self) -> str:
        """Return the name of this group."""
        return self._name

    def get_group_members(self) -> list[str]:
        """Return the names of the members, sorted."""
        return self.native.get_group_members()

    @staticmethod
    def get_cur_name() -> str:
        """Return the name of this process among the members of its world."""
        return get_cur_name()

    # -- inside -------------------------------------------------------------------------------

    def _member(self, to: object) -> str:
        try:
            return self.native.member_name(to)
        except ClosedError:
            raise
        except ValueError as error:
            raise RuntimeError(str(error)) from None

    def _check_is_member(self, name: str) -> None:
        if name not in self._members:
            message = f"{name!r} is not in group {self._name!r} of {sorted(self._members)}"
            raise RuntimeError(message)


def _seconds(timeout: float) -> float | None:
    """Return a time-out of the seed's as the native group takes it."""
    return DEFAULT if timeout == -1 else timeout or None
