"""Groups: some members of a job, what they call of one another, and what backends ask them."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, Self, TypedDict, TypeVar, overload

from typing_extensions import Buffer, Unpack, override

from pparallel.errors import (
    CallTimeoutError,
    ClosedError,
    DirectoryError,
    PeerLostError,
    PparallelError,
    ResourceExhaustedError,
    did_you_mean,
)
from pparallel.interfaces.serializer import Serializer
from pparallel.runtime.rpc import context, directory
from pparallel.runtime.rpc.codec import NotRegisteredHereError, Registered
from pparallel.runtime.rpc.endpoint import Endpoint
from pparallel.runtime.rpc.future import RpcFuture
from pparallel.runtime.rpc.refs import RemoteRef
from pparallel.runtime.rpc.service import Reply, Service
from pparallel.runtime.timeouts import DEFAULT, deadline_of, left, limit

if TYPE_CHECKING:
    from pparallel.runtime.memory import Arena

logger = logging.getLogger(__name__)

T = TypeVar("T")

Now = Callable[..., T]
Later = Callable[..., Coroutine[Any, Any, T] | Future[T]]  #: a function that answers later
Args = Sequence[Any]
Kwargs = Mapping[str, Any] | None

_SMALL = 1 << 14  #: bytes below which memory travels in the message
_MOMENT = 1.0  #: seconds that it may take to undo what has failed
_LONG = 10.0  #: seconds after which a wait for a member whose program has ended is logged


class ServiceGroup:
    """Some members of a job, and what the system itself does among them.

    Services are scoped by the group's name. They never run on the threads that run user functions,
    so that they answer however busy those are.
    """

    def __init__(self, endpoint: Endpoint, name: str, members: Sequence[str]) -> None:
        self._endpoint = endpoint
        self._name = name
        self._members = list(members)
        self._destroyed = False

    @override
    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r}, {self._members}, in {self._endpoint.name!r})"

    # -- who ----------------------------------------------------------------------------------

    @property
    def destroyed(self) -> bool:
        """Whether this member has left the group."""
        return self._destroyed

    def size(self) -> int:
        """Return the number of members."""
        return len(self._members)

    def is_member(self, target: object = None) -> bool:
        """Return whether *target*, by default the calling member, belongs to this group."""
        return (self._endpoint.name if target is None else _name_of(target)) in self._members

    def get_group_name(self) -> str:
        """Return the name of this group."""
        return self._name

    def get_group_members(self) -> list[str]:
        """Return the names of the members, sorted."""
        return sorted(self._members)

    def get_cur_name(self) -> str:
        """Return the name of the member that this object belongs to."""
        return self._endpoint.name

    def within(self, name: str) -> Self:
        """Return the same members under a longer name, whose services do not mix with others."""
        return type(self)(self._endpoint, f"{self._name}/{name}", self._members)

    def member_name(self, to: object) -> str:
        """Return the name of the member that *to* means: a name, a rank in the job, or an object.

        Raises:
            ValueError: it is not in this group.
            TypeError: it means none.
        """
        if self._destroyed:
            self._live()  # it raises
        if type(to) is str and to in self._members:
            return to
        if type(to) is int or (hasattr(to, "__index__") and not isinstance(to, bool)):
            to, names = operator.index(to), self._endpoint.member.names
            if not 0 <= to < len(names):
                message = f"there is no member of rank {to}; ranks go from 0 to {len(names) - 1}"
                raise ValueError(message)
            to = names[to]
            if to in self._members:
                return to
        name = _name_of(to)
        if name not in self._members:
            hint = did_you_mean(name, self._members)
            message = (
                f"{name!r} is not in group {self._name!r}; "
                f"its members: {', '.join(self._members)}.{hint}"
            )
            raise ValueError(message)
        return name

    # -- services -------------------------------------------------------------------------

    @property
    def default_timeout(self) -> float | None:
        """Seconds that the job's calls have where they say nothing of it; None: no limit."""
        return self._endpoint.timeout

    @property
    def serializer(self) -> Serializer:
        """The serializer of the RPC layer."""
        return self._endpoint.serializer

    @property
    def closed(self) -> bool:
        """Whether the runtime has ended, and every call with it."""
        return self._endpoint.closed

    def serve(self, key: str, service: Service, *, heavy: bool = False) -> None:
        """Answer what others :meth:`ask` under *key*.

        *service* must not block, or has to be *heavy*: it runs on a thread of its own then.
        """
        self._endpoint.serve(self._scoped(key), service, heavy=heavy)

    def withdraw(self, key: str) -> None:
        """Answer no more; harmless if *key* was not served."""
        self._endpoint.withdraw(self._scoped(key))

    def ask(
        self,
        to: str,
        key: str,
        body: object = None,
        buffers: Sequence[Buffer] = (),
        timeout: float | None = None,
    ) -> Reply:
        """Return what the service *key* of member *to* answers; ``None`` waits without limit.

        Raises:
            DirectoryError: *to* does not serve *key*.
            CallTimeoutError: it did not answer in time.
            PeerLostError: it ended.
            ClosedError: this member's runtime is not open.
            Exception: what the service raised.
        """
        return self._endpoint.ask(to, self._scoped(key), body, buffers, timeout)

    def ask_async(
        self,
        to: str,
        key: str,
        body: object = None,
        buffers: Sequence[Buffer] = (),
        timeout: float | None = None,
    ) -> Future[Reply]:
        """As :meth:`ask`, but return a future."""
        return self._endpoint.ask_async(to, self._scoped(key), body, buffers, timeout)

    def memory(self, nbytes: int) -> memoryview:
        """Return writable memory for what is to be sent to others.

        Where members share memory it lies there: what is sent of it after :meth:`publish` is not
        copied. It is used again when nothing refers to it any more, here or elsewhere.
        """
        arena = self._endpoint.arena() if nbytes >= _SMALL else None
        with suppress(ResourceExhaustedError):
            if arena is not None:
                return arena.allocate(nbytes)
        return memoryview(bytearray(nbytes))

    def publish(self, memory: memoryview) -> None:
        """Promise that *memory*, which :meth:`memory` returned, is not written to any more.

        Whoever it is sent to may from now on be given the memory itself, to read: a view that is
        read-only.
        """
        arena = self._endpoint.arena()
        if arena is not None and not isinstance(memory.obj, bytearray):
            arena.publish(memory)

    def arena(self, of: str) -> Arena | None:
        """Return the shared memory of member *of*, as far as this one sees it."""
        return self._endpoint.arena(of)

    def meet(self, key: str, timeout: float | None = None) -> list[str]:
        """Wait until every member that still lives has called this for *key*; return who has.

        Raises:
            CallTimeoutError: not all came within *timeout* seconds.
        """
        return self._meet(f"meet/{key}", False, timeout)

    def wait_for(self, future: Future[T], what: str, place: tuple[str, ...] | None = None) -> T:
        """Return the result of *future*, which the programs of other members bring about.

        Where the program of one has ended, this may wait without end: it is logged.

        Args:
            future: ends when the others have come so far.
            what: is waited for, for the log.
            place: where members meet for it, if they do.
        """
        began, logged = monotonic(), set[str]()
        while not future.done():
            look = monotonic() + _LONG
            try:
                return future.result(_LONG)
            except TimeoutError:
                if monotonic() < look:  # the future's own, or that of a signal's handler
                    raise
            ended = self._ended(place)
            if not (future.done() or ended <= logged):
                logged |= ended
                logger.warning(
                    "%s has waited %.0f s for %s, which these members may never come to, as their"
                    " programs have ended and wait for the others to leave: %s. All members have"
                    " to start, take part and stop alike before they return",
                    self._endpoint.name,
                    monotonic() - began,
                    what,
                    ", ".join(sorted(ended)),
                )
        return future.result()

    def when_lost(self, callback: Callable[[str, str], None]) -> None:
        """Have *callback* called with the name and the end of each member that ends."""
        self._endpoint.when_lost(callback)

    def when_closed(self, callback: Callable[[BaseException], None]) -> None:
        """Have *callback* called with the reason when the runtime ends."""
        self._endpoint.when_ended(callback)

    def forget(self, callback: Callable[..., None]) -> None:
        """Undo :meth:`when_lost` and :meth:`when_closed`."""
        self._endpoint.forget(callback)

    # -- inside -------------------------------------------------------------------------------

    def _ended(self, place: tuple[str, ...] | None) -> set[str]:
        """Return the members of this group whose programs have ended, and are not at *place*."""
        try:
            ended: list[str] = self._ask_first(directory.ENDED, place, _MOMENT).body
        except PparallelError:  # the reply that is waited for fails likewise
            return set()
        return set(ended) & set(self._members)

    def _scoped(self, key: str) -> str:
        return f"{len(self._name)}/{self._name}/{key}"  # names and keys may hold any character

    def _live(self) -> None:
        if self._destroyed:
            raise ClosedError(f"group {self._name!r}", "was destroyed")

    def _limit(self, timeout: float | None) -> float | None:
        return limit(timeout, self._endpoint.timeout)

    def _ask_first(self, key: str, body: object, timeout: float | None = DEFAULT) -> Reply:
        first = self._endpoint.member.names[0]
        return self._endpoint.ask(first, key, body, timeout=self._limit(timeout))

    def _undo(self, key: str, body: object) -> Any:
        """Have the first member undo what has failed here; return its answer if it comes soon."""
        with suppress(PparallelError):
            return self._ask_first(key, body, _MOMENT).body
        return None

    def _meet(self, key: str, strict: bool, timeout: float | None) -> list[str]:
        self._live()
        ticket, place = self._endpoint.refs.new_id(), (self._name, key)
        first = self._endpoint.member.names[0]
        body = (place, self._members, strict, ticket)
        reply = self._endpoint.ask_async(first, directory.MEET, body, timeout=timeout)
        try:
            met: list[str] = self.wait_for(reply, f"{key!r} of {self._name!r}", place).body
        except BaseException as error:
            is_late = isinstance(error, CallTimeoutError)
            missing: list[str] | None = None
            if is_late or not reply.done():  # not: interrupted, as by Ctrl-C
                missing = self._undo(directory.WITHDRAW, (place, ticket))
            if is_late:
                who = ", ".join(missing) if missing else "all its members"
                what = f"the wait of group {self._name!r} for {who} ({key})"
                raise CallTimeoutError(what, timeout or 0.0) from None
            raise
        return met


def _name_of(target: object) -> str:
    if isinstance(target, str):
        return target
    name = getattr(target, "name", None)
    if not isinstance(name, str):
        message = f"{target!r} names no member: give a name, a rank, or an object with a name"
        raise TypeError(message)
    return name


class How(TypedDict, total=False):
    """What is given to each call by name; see :meth:`RpcGroup.rpc_sync`."""

    timeout: float | None
    idempotent: bool


class RpcGroup(ServiceGroup):
    """Some members of a job that call one another, under a name.

    Guarantees:
        - A call runs at most once (``TransportSuite.test_every_call_is_answered_once``), even if
          its request arrives twice (``test_nothing_runs_twice``); it returns its result, or
          raises what the function raised, with the remote traceback as the ``__cause__``
          (``test_remote_exceptions``).
        - With ``idempotent=True`` a call whose request or answer is lost is sent again, until its
          time-out; it runs once and is answered all the same
          (``TransportSuite.test_what_is_lost_is_sent_again``).
        - Calls from one thread to one member start in the order sent, where the transport has the
          feature ``ordered`` (``TransportSuite.test_order``).
        - The result of a call does not wait for calls that were made before or after it
          (``TransportSuite.test_results_do_not_wait_for_one_another``), whatever they return
          (``TransportSuite.test_calls_that_differ``).
        - Arguments and results arrive as copies of the receiver's own
          (``TransportSuite.test_tensors_are_the_receivers_own``).
        - A time-out is honoured (``TransportSuite.test_timeout``), also where calls wait to be sent
          or run (``test_a_timeout_is_kept_under_back_pressure``,
          ``test_a_timeout_is_kept_in_queues``).
        - Members that call one another in a circle do not deadlock, with one handler thread each
          (``TransportSuite.test_calls_in_a_circle``).
        - A member that ended raises ``PeerLostError`` in every call
          that waits for it, and the names it held are free again
          (``TransportSuite.test_a_member_that_leaves``).
        - A caller whose calls in flight exceed the transport's ``max_in_flight`` waits; its calls
          to other members do not (``TransportSuite.test_one_slow_member_holds_up_no_other``).
        - A value that others refer to lives as long as a member holds a reference
          (``TransportSuite.test_references``).
        - A name is held by one member at a time (``TransportSuite.test_pairs_and_services``), and
          is known in its group only (``test_groups``).
        - A barrier lets nobody pass before all have come
          (``TransportSuite.test_barriers``).

    Time-outs are in seconds; ``None`` is no limit. A group pickles as its name and members, and
    belongs to the receiving member where it is unpickled.
    """

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return _rebind, (self._name, self._members)

    # -- calls --------------------------------------------------------------------------------

    @overload
    def rpc_sync(
        self, to: object, func: Later[T], args: Args = (), kwargs: Kwargs = None, **how: Unpack[How]
    ) -> T: ...
    @overload
    def rpc_sync(
        self, to: object, func: Now[T], args: Args = (), kwargs: Kwargs = None, **how: Unpack[How]
    ) -> T: ...
    def rpc_sync(
        self,
        to: object,
        func: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = DEFAULT,
        idempotent: bool = False,
    ) -> Any:
        """Run ``func(*args, **kwargs)`` in member *to* and return its result.

        Args:
            to: a member's name, its rank in the job (any integer), or an object with a ``name``.
            func: any function that the serializer can send.
            args: positional arguments, a tuple.
            kwargs: keyword arguments, a dict.
            timeout: seconds; ``None`` for no limit; by default the transport's ``timeout``.
            idempotent: send it again where an answer does not come; the function runs once.

        Raises:
            CallTimeoutError: no answer came in time; the function may still run.
            PeerLostError: the member ended.
            SerializationError: the call or its result cannot be sent.
            ClosedError: this member's runtime is not open.
        """
        if timeout is not DEFAULT or type(args) is not tuple or kwargs is not None:
            _check("rpc_sync(to, func", args, kwargs)
            timeout = self._limit(timeout)
        else:
            timeout = self._endpoint.timeout
        return self._endpoint.call(self.member_name(to), func, timeout, args, kwargs, idempotent)

    @overload
    def rpc_async(
        self, to: object, func: Later[T], args: Args = (), kwargs: Kwargs = None, **how: Unpack[How]
    ) -> RpcFuture[T]: ...
    @overload
    def rpc_async(
        self, to: object, func: Now[T], args: Args = (), kwargs: Kwargs = None, **how: Unpack[How]
    ) -> RpcFuture[T]: ...
    def rpc_async(
        self,
        to: object,
        func: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = DEFAULT,
        idempotent: bool = False,
    ) -> RpcFuture[Any]:
        """As :meth:`rpc_sync`, but return a future with ``wait()``."""
        if timeout is not DEFAULT or type(args) is not tuple or kwargs is not None:
            _check("rpc_async(to, func", args, kwargs)
            timeout = self._limit(timeout)
        else:
            timeout = self._endpoint.timeout
        return self._endpoint.call_async(
            self.member_name(to), func, timeout, args, kwargs, idempotent
        )

    @overload
    def remote(
        self, to: object, func: Later[T], args: Args = (), kwargs: Kwargs = None, **how: Unpack[How]
    ) -> RemoteRef[T]: ...
    @overload
    def remote(
        self, to: object, func: Now[T], args: Args = (), kwargs: Kwargs = None, **how: Unpack[How]
    ) -> RemoteRef[T]: ...
    def remote(
        self,
        to: object,
        func: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = DEFAULT,
        idempotent: bool = False,
    ) -> RemoteRef[Any]:
        """As :meth:`rpc_sync`, but leave the result there and return a reference at once.

        With *idempotent* it returns when the other member has got the request.
        """
        _check("remote(to, func", args, kwargs)
        timeout = self._limit(timeout)
        return self._endpoint.remote(self.member_name(to), func, timeout, args, kwargs, idempotent)

    # -- services that all know by name -------------------------------------------------------

    def register(self, key: str, service: Callable[..., Any]) -> None:
        """Offer *service* to the group under *key*, until deregistered or this member ends.

        Raises:
            DirectoryError: somebody offers one under that key already.
            TypeError: *service* cannot be called.
        """
        self._live()
        given: object = service
        if not callable(given):
            kind = type(service).__name__
            kind = f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
            message = f"{kind} cannot be called: register() is for functions, pair() for values"
            raise TypeError(message)
        name = Registered(self._name, key)
        # Kept first: whoever finds the name in the directory must find the service.
        offer = service, self._endpoint.refs.new_id()
        kept = self._endpoint.registered.setdefault(name, offer)
        try:
            self._claim("service", key, offer[1])
        except BaseException:
            if kept is offer:
                self._endpoint.registered.pop(name, None)
            raise

    def deregister(self, key: str) -> None:
        """Offer the service under *key* no more.

        Raises:
            DirectoryError: this member offers none.
        """
        self._live()
        self._ask_first(directory.YIELD, (self._name, "service", key, None))
        self._endpoint.registered.pop(Registered(self._name, key), None)

    def is_registered(self, key: str) -> bool:
        """Return whether a member offers a service under *key*."""
        return self._find("service", key) is not None

    def registered_sync(
        self,
        key: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = DEFAULT,
        idempotent: bool = False,
    ) -> Any:
        """Run the service *key* where it is offered and return its result.

        Raises:
            DirectoryError: nobody offers it.
        """
        _check("registered_sync(key", args, kwargs)
        name, deadline = Registered(self._name, key), deadline_of(self._limit(timeout))
        owner = self._owner(name, deadline)
        try:
            return self._endpoint.call(owner, name, left(deadline), args, kwargs, idempotent)
        except NotRegisteredHereError:
            # It has moved since it was found: nothing was run, so asking again is safe.
            self._endpoint.owners.pop(name, None)
            owner = self._owner(name, deadline)
            return self._endpoint.call(owner, name, left(deadline), args, kwargs, idempotent)

    def registered_async(
        self,
        key: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = DEFAULT,
        idempotent: bool = False,
    ) -> RpcFuture[Any]:
        """As :meth:`registered_sync`, but return a future with ``wait()``."""
        _check("registered_async(key", args, kwargs)
        name, deadline = Registered(self._name, key), deadline_of(self._limit(timeout))
        owner = self._owner(name, deadline)
        return self._endpoint.call_async(owner, name, left(deadline), args, kwargs, idempotent)

    def registered_remote(
        self,
        key: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = DEFAULT,
        idempotent: bool = False,
    ) -> RemoteRef[Any]:
        """As :meth:`registered_sync`, but leave the result there and return a reference."""
        _check("registered_remote(key", args, kwargs)
        name, deadline = Registered(self._name, key), deadline_of(self._limit(timeout))
        owner = self._owner(name, deadline)
        return self._endpoint.remote(owner, name, left(deadline), args, kwargs, idempotent)

    # -- values that all know by name ---------------------------------------------------------

    def pair(self, key: str, value: object) -> None:
        """Name *value*, which stays in this member, *key* for the group.

        Raises:
            DirectoryError: the name is taken, by anyone.
        """
        self._live()
        ref_id = self._endpoint.refs.new_id()
        self._endpoint.refs.keep(ref_id, self._endpoint.name).set_result(value)
        try:
            self._claim("pair", key, ref_id)
        except BaseException:
            self._endpoint.refs.held(self._endpoint.name, ref_id)  # as unpair() does
            raise

    def unpair(self, key: str) -> None:
        """Take the name *key* back; references that others hold stay valid.

        Raises:
            DirectoryError: this member named nothing so.
        """
        self._live()
        ref_id = self._ask_first(directory.YIELD, (self._name, "pair", key, None)).body
        self._endpoint.refs.held(self._endpoint.name, ref_id)  # takes the hold over and drops it

    def is_paired(self, key: str) -> bool:
        """Return whether *key* names a value."""
        return self._find("pair", key) is not None

    def get_paired(self, key: str) -> RemoteRef[Any]:
        """Return a reference to the value that *key* names.

        Raises:
            DirectoryError: it names none.
        """
        found = self._find("pair", key)
        if found is None:
            raise DirectoryError(f"{key!r} is not found on Group [{self._name}]")
        owner, ref_id = found
        ref = self._endpoint.refs.arrive(owner, ref_id, None)
        try:
            ref._check(self._endpoint.timeout)
        except DirectoryError as error:
            raise DirectoryError(f"{key!r} is not found on Group [{self._name}]") from error
        return ref

    # -- together -----------------------------------------------------------------------------

    def barrier(self, timeout: float | None = None) -> None:
        """Wait until every member of the group has called this as often.

        May be used again and by several threads of a member at once: each set of calls, one from
        each member, returns together.

        Args:
            timeout: seconds; ``None`` for no limit.

        Raises:
            CallTimeoutError: not all came within *timeout* seconds; it names who is missing. This
                call no longer counts.
            PeerLostError: a member ended, so that not all can come.
        """
        self._meet("barrier", True, self._limit(timeout))

    def destroy(self) -> None:
        """Leave the group: what this member paired and registered in it is gone.

        The name is free again when all members have left. Safe to call again.
        """
        if self._destroyed:
            return
        self._destroyed = True
        names = [name for name in list(self._endpoint.registered) if name.group == self._name]
        for name in names:
            self._endpoint.registered.pop(name, None)
        try:
            ref_ids = self._ask_first(directory.LEAVE, self._name).body
        except BaseException:  # it may be tried again
            self._destroyed = False
            raise
        for ref_id in ref_ids:
            self._endpoint.refs.held(self._endpoint.name, ref_id)  # as unpair() does

    # -- inside -------------------------------------------------------------------------------

    def _claim(self, kind: str, key: str, ref_id: str) -> None:
        name = self._name, kind, key
        try:
            self._ask_first(directory.CLAIM, (name, ref_id))
        except DirectoryError:
            raise
        except BaseException:  # interrupted, or too late: it may have been claimed, or be so yet
            self._undo(directory.YIELD, (*name, ref_id))
            raise

    def _find(self, kind: str, key: str, timeout: float | None = DEFAULT) -> tuple[str, str] | None:
        self._live()
        name = self._name, kind, key
        found: tuple[str, str] | None = self._ask_first(directory.FIND, name, timeout).body
        return found

    def _owner(self, name: Registered, deadline: float | None) -> str:
        """Return the member that offers *name*: it is asked for once, and known until it ends."""
        self._live()
        owner = self._endpoint.owners.get(name)
        if owner is None or self._endpoint.has_lost(owner):
            found = self._find("service", name.key, left(deadline))
            if found is None:
                where = f"Group [{self._name}]"
                message = f"{name.key!r} is not found on {where}: it is not registered in it"
                raise DirectoryError(message)
            owner = self._endpoint.owners[name] = found[0]
        return owner


def _check(how: str, args: object, kwargs: object) -> None:
    """Refuse arguments in the place of others.

    Raises:
        TypeError: *args* is no tuple or list, or *kwargs* no mapping.
    """
    if not isinstance(args, tuple | list):
        one = "()" if args is None else f"({args!r},)"
        message = (
            f"args is {args!r}: give the positional arguments as a tuple, {how}, {one}), and"
            f" a time-out by its name, {how}, timeout=...)"
        )
        raise TypeError(message)
    if kwargs is not None and not isinstance(kwargs, Mapping):
        message = (
            f"kwargs is {kwargs!r}: give the keyword arguments as a dict, {how}, args, kwargs), and"
            f" a time-out by its name, {how}, args, timeout=...)"
        )
        raise TypeError(message)


def _rebind(name: str, members: Sequence[str]) -> RpcGroup:
    return RpcGroup(context.endpoint(), name, members)


def enter(
    endpoint: Endpoint, name: str, members: Sequence[str], timeout: float | None = DEFAULT
) -> RpcGroup:
    """Return the group *name* of *members* when all of them have entered it.

    Raises:
        ValueError: this member is not among them, or others gave other members.
        PeerLostError: a member ended before it entered.
        CallTimeoutError: a member did not enter in time.
    """
    group = RpcGroup(endpoint, name, members)
    if not group.is_member():
        message = (
            f"member {endpoint.name!r} is not in group {name!r} of {list(members)}: give a list of"
            " the names of its members"
        )
        raise ValueError(message)
    names = endpoint.member.names
    for each in members:
        if each not in names:
            hint = did_you_mean(each, names)
            message = (
                f"{each!r}, of group {name!r}, is no member of this job, whose members are"
                f" {', '.join(names)}.{hint}"
            )
            raise ValueError(message)
    if len(set(members)) < len(members):
        raise ValueError(f"group {name!r} has a member twice: {list(members)}")
    ticket = endpoint.refs.new_id()
    try:
        group._ask_first(directory.ENTER, (name, sorted(members), ticket), timeout)
    except BaseException as error:
        missing = None
        if isinstance(error, CallTimeoutError):
            missing = group._undo(directory.WITHDRAW, ((name, "enter"), ticket))
        if not isinstance(error, Exception) or isinstance(error, CallTimeoutError | PeerLostError):
            group._undo(directory.LEAVE, name)
        if isinstance(error, CallTimeoutError):
            who = ", ".join(missing) if missing else "all members"
            what = f"the entry of {who} into group {name!r}"
            raise CallTimeoutError(what, error.timeout) from None
        raise
    return group
