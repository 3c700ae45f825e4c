"""Remote references: values that stay where they were made.

The owner counts, for each value, how often each member holds it; a member that ends no longer
counts. A reference on its way is covered by a ticket: the sender tells the owner of it, and lets
go of its own hold only when the owner knows; the receiver turns the ticket into a hold. So holds
and tickets may reach the owner in any order, and a value lives while anything of it is left. They
may even come before the request that makes the value: a reference that the owner has not confirmed
yet is passed on as fresh, and the owner keeps a place for what a fresh one refers to.

Source: the life of RRefs in torch.distributed.rpc, whose forks are acknowledged likewise.
"""

from __future__ import annotations

import itertools
import logging
import operator
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from queue import SimpleQueue
from traceback import format_exception
from typing import TYPE_CHECKING, Any, Generic, Never, NoReturn, Self, TypeVar

from typing_extensions import override

from pparallel.errors import (
    DirectoryError,
    PeerLostError,
    PparallelError,
    ResourceExhaustedError,
)
from pparallel.runtime import remote_errors
from pparallel.runtime.future import TorchFuture, fail, log_unasked
from pparallel.runtime.resources import start_thread
from pparallel.runtime.rpc import context
from pparallel.runtime.rpc.future import RpcFuture
from pparallel.runtime.rpc.service import Reply, Request
from pparallel.runtime.timeouts import DEFAULT, deadline_of, left, limit

if TYPE_CHECKING:
    from pparallel.runtime.rpc.endpoint import Endpoint

logger = logging.getLogger(__name__)

AGAIN = 0.1  #: seconds after which a release is sent again that could not be sent
MOST_CLAIMED = 1024  #: tickets of a value that are known to have been claimed

T = TypeVar("T")

COUNT, FETCH = "ref.count", "ref.fetch"  #: the services of an owner


class _Kept:
    """A value that others refer to."""

    __slots__ = ("claimed", "has_come", "holds", "tickets", "value", "was_asked")

    def __init__(self) -> None:
        self.has_come = False  # the request that makes the value
        self.was_asked = False  # for the value, or why there is none
        self.value: TorchFuture[Any] = TorchFuture()
        self.holds: defaultdict[str, int] = defaultdict(int)
        self.tickets: dict[str, int] = {}  # 1: given out, -1: claimed before that was known
        self.claimed: dict[str, None] = {}  # the last tickets that were given out and claimed

    def is_wanted(self) -> bool:
        return bool(self.tickets) or any(self.holds.values())

    def count(self, ticket: str, by: int) -> None:
        """Count a ticket as given out (1) or claimed (-1)."""
        if ticket in self.claimed:
            return  # it is claimed again, by a message that is read twice: a plain hold
        if left := self.tickets.pop(ticket, 0) + by:
            self.tickets[ticket] = left
            return
        self.claimed[ticket] = None
        if len(self.claimed) > MOST_CLAIMED:
            del self.claimed[next(iter(self.claimed))]


class RefTable:
    """The values that this member owns, and its holds on those of others."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._lock = threading.RLock()
        self._kept: dict[str, _Kept] = {}
        self._numbers = itertools.count()
        self._actions: dict[weakref.ref[Any], Callable[[], object]] = {}
        # Objects end anywhere, inside any lock, and a finalizer in Python would be interrupted:
        # the interpreter itself puts their keys in here. ``None`` ends the thread that reads it.
        self._queue: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._releaser: threading.Thread | None = None
        endpoint.serve(COUNT, self._count)
        endpoint.serve(FETCH, self._fetch)

    def __len__(self) -> int:
        return len(self._kept)

    def new_id(self) -> str:
        """Return a name for a value that no other member gives."""
        return f"{self._endpoint.name}:{next(self._numbers)}"

    def keep(self, ref_id: str, holder: str) -> Future[Any]:
        """Keep a value for *holder*; return the future to complete with it."""
        with self._lock:
            kept = self._kept.setdefault(ref_id, _Kept())
            kept.has_come = True
            kept.holds[holder] += 1
            return kept.value

    def value(self, ref_id: str) -> TorchFuture[Any]:
        """Return the future of a value owned here.

        Raises:
            DirectoryError: nobody held it any more.
        """
        with self._lock:
            kept = self._found(ref_id, False)
            kept.was_asked = True
            return kept.value

    @contextmanager
    def awaited(self, ref_id: str) -> Iterator[Future[Any]]:
        """Keep the future of a value owned here inside, whose request may not have come yet."""
        me = self._endpoint.name
        with self._lock:
            kept = self._found(ref_id, True)
            kept.holds[me] += 1
        try:
            yield kept.value
        finally:
            with self._lock:
                kept.holds[me] -= 1
                self._sweep(ref_id)

    def held(self, owner: str, ref_id: str) -> RemoteRef[Any]:
        """Return a reference for a hold that the owner has counted already."""
        return RemoteRef(self._endpoint, owner, ref_id)

    def lose(self, member: str) -> None:
        """Release what *member* held, for it has ended."""
        never: list[Future[Any]] = []
        with self._lock:
            for ref_id, kept in list(self._kept.items()):
                if not kept.has_come and _giver(ref_id) == member:
                    never.append(kept.value)
                kept.holds.pop(member, None)
                for ticket in [each for each in list(kept.tickets) if _giver(each) == member]:
                    kept.tickets.pop(ticket, None)
                self._sweep(ref_id)
        for value in never:
            fail(value, PeerLostError(member, "ended before it had the value made"))

    def close(self, *, logs: bool = True) -> None:
        """Release everything; with *logs*, log the errors that nobody has asked for so far."""
        with self._lock:
            for kept in self._kept.values():
                self._let_go(kept)
            self._kept.clear()
        self._queue.put(None)
        if self._releaser is not None:
            self._releaser.join()
        for action in list(self._actions.values()) if logs else ():
            action()

    def forked(self) -> None:
        """Forget what the parent keeps, in a forked child."""
        self._lock, self._kept = threading.RLock(), {}

    def share(self, ref: RemoteRef[Any], fresh: bool) -> str:
        """Cover one copy of *ref* that is about to be sent; return its ticket."""
        ticket = self.new_id()
        told = self._tell(ref.owner_name(), ref.ref_id, fresh, 0, ticket, 1)
        # The callback holds the reference, and with it this member's hold, until the owner knows.
        told.add_done_callback(lambda _, ref=ref: None)  # type: ignore[misc]
        return ticket

    def arrive(
        self, owner: str, ref_id: str, ticket: str | None, fresh: bool = False
    ) -> RemoteRef[Any]:
        """Return a reference that came with *ticket*."""
        claimed = self._tell(owner, ref_id, fresh, 1, ticket, -1)
        return RemoteRef(self._endpoint, owner, ref_id, claimed)

    def _tell(self, owner: str, *count: Any) -> Future[Reply]:
        return self._endpoint.ask_async(owner, COUNT, count)

    def _count(self, request: Request) -> Reply:
        """Count what a member says: a hold more or less, a ticket given out or claimed."""
        ref_id, fresh, holds, ticket, tickets = request.body
        with self._lock:
            kept = self._found(ref_id, fresh)
            kept.holds[request.sender] += holds
            if ticket is not None:
                kept.count(ticket, tickets)
            self._sweep(ref_id)  # its release may have come before
        return Reply()

    def _fetch(self, request: Request) -> Future[Reply]:
        return self.value(request.body).then(lambda value: Reply(value.result()))

    def _found(self, ref_id: str, fresh: bool) -> _Kept:
        if fresh:
            return self._kept.setdefault(ref_id, _Kept())
        kept = self._kept.get(ref_id)
        if kept is None:
            self._endpoint.check_open()
            raise DirectoryError(f"the value {ref_id} was released on {self._endpoint.name!r}")
        return kept

    def _sweep(self, ref_id: str) -> None:
        kept = self._kept.get(ref_id)
        if kept is not None and not kept.is_wanted():
            del self._kept[ref_id]
            self._let_go(kept)

    def _let_go(self, kept: _Kept) -> None:
        """Have it logged why there is no value, if nobody has asked for it and nobody can."""
        if kept.has_come and not kept.was_asked:
            kept.value.when_done(self._log_if_failed)

    def _log_if_failed(self, value: Future[Any]) -> None:
        error = value.exception()
        if error is not None and not isinstance(error, CancelledError):
            what = f"remote() on {self._endpoint.name!r}"
            self._ensure_releaser()
            self._queue.put(partial(log_unasked, what, "".join(format_exception(error))))

    # -- what follows the end of an object ----------------------------------------------------

    def watch(self, watched: object, action: Callable[[], object]) -> None:
        """Have *action* called by a thread when *watched*, which it must not hold, has ended."""
        self._ensure_releaser()
        self._actions[weakref.ref(watched, self._queue.put)] = action

    def unwatch(self, watched: object) -> None:
        """Have nothing called then."""
        self._actions.pop(weakref.ref(watched), None)

    def _ensure_releaser(self) -> None:
        if self._releaser is not None:
            return
        name = f"{self._endpoint.name}-releaser"
        try:
            thread = threading.Thread(target=self._act, name=name, daemon=True)
            self._releaser = start_thread(thread)
        except ResourceExhaustedError as error:  # with the next reference
            logger.warning("%s releases values later: %s", self._endpoint.name, error)

    def _act(self) -> None:
        while (due := self._queue.get()) is not None:
            try:
                self._actions.pop(due, due)()  # type: ignore[call-overload] # an action has no key
            except Exception:  # the others are to follow all the same
                logger.exception("What follows the end of an object failed")
            del due  # and what it holds
        self._queue.put(None)  # for another one, of which an interrupt has kept this from knowing

    def release(self, owner: str, ref_id: str) -> None:
        """Give one hold back."""
        try:
            self._tell(owner, ref_id, False, -1, None, 0)
        except (ResourceExhaustedError, MemoryError):  # which says nothing of the owner
            time.sleep(AGAIN)
            self._queue.put(partial(self.release, owner, ref_id))
        except PparallelError:  # the owner or this member has ended, and the holds with it
            logger.debug("%s is not released: nobody has it any more", ref_id)


class Owner(int):
    """The rank of the member that owns a value; it equals the member's name, too.

    As a key of a dict it is the rank.

    Attributes:
        name: the member's name.
    """

    name: str

    def __new__(cls, rank: int, name: str) -> Self:
        """Return the owner of that rank and name."""
        found = super().__new__(cls, rank)
        found.name = name
        return found

    @property
    def id(self) -> int:
        """The rank, as torch's ``WorkerInfo`` names it."""
        return int(self)

    @override
    def __eq__(self, other: object) -> bool:
        return self.name == other if isinstance(other, str) else super().__eq__(other)

    @override
    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = int.__hash__

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return Owner, (int(self), self.name)


class RemoteRef(Generic[T]):
    """A reference to a value that lives in one member, its owner.

    It may be passed on to other members; the value is released when nobody holds a reference any
    more. A reference that was serialised but never received holds the value until its sender ends.
    Two references to one value are not equal; their ``ref_id`` is.
    """

    __slots__ = ("__weakref__", "_confirmed", "_endpoint", "_owner", "ref_id")

    def __init__(
        self,
        endpoint: Endpoint,
        owner: str = "",
        ref_id: str = "",
        confirmed: Future[Any] | None = None,
    ) -> None:
        if not owner:
            message = (
                "a RemoteRef is what group.remote() returns; to have others refer to an object of"
                " this member, name it: group.pair(key, value), and group.get_paired(key) there"
            )
            raise TypeError(message)
        self._endpoint = endpoint
        self._owner = owner
        self._confirmed = confirmed
        self.ref_id = ref_id
        endpoint.refs.watch(self, partial(endpoint.refs.release, owner, ref_id))

    @override
    def __repr__(self) -> str:
        return f"RemoteRef({self.ref_id!r} on {self._owner!r})"

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        fresh = not self.confirmed_by_owner()
        ticket = self._endpoint.refs.share(self, fresh)
        return _arrive, (self._owner, self.ref_id, ticket, fresh)

    def __copy__(self) -> RemoteRef[T]:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> RemoteRef[T]:
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        how = (
            f"call a method of the value by ref.rpc_sync().{name}(...), read an attribute by"
            f" ref.getattr({name!r}), or copy the value by to_here()"
        )
        raise AttributeError(f"RemoteRef has no attribute {name!r}: {how}")

    def owner_name(self) -> str:
        """Return the name of the member that owns the value."""
        return self._owner

    def owner(self) -> Owner:
        """Return the member that owns the value: its rank, with a ``name``."""
        return Owner(self._endpoint.member.names.index(self._owner), self._owner)

    def is_owner(self) -> bool:
        """Return whether the value lives in this member."""
        return self._owner == self._endpoint.name

    def confirmed_by_owner(self) -> bool:
        """Return whether the owner has said that it holds the value for this member."""
        return self._confirmed is None or (
            self._confirmed.done() and self._confirmed.exception() is None
        )

    def to_here(self, timeout: float | None = DEFAULT) -> T:
        """Return a copy of the value, once it is there.

        Args:
            timeout: seconds; ``None`` for no limit; by default the transport's ``timeout``.

        Raises:
            CallTimeoutError: it did not come in time.
            PeerLostError: its owner ended.
            Exception: what the function that was to make it raised.
        """
        remaining = self._check(limit(timeout, self._endpoint.timeout))
        value: T = self._endpoint.ask(self._owner, FETCH, self.ref_id, timeout=remaining).body
        return value

    def local_value(self) -> T:
        """Return the value itself, in the member that owns it.

        Raises:
            RuntimeError: this member does not own it; use :meth:`to_here`.
        """
        if not self.is_owner():
            message = (
                f"{self!r} can be reached by local_value() in its owner only; "
                f"in {self._endpoint.name!r} use to_here()"
            )
            raise RuntimeError(message)
        result: T = _result(self._endpoint, self._endpoint.refs.value(self.ref_id))
        return result

    def getattr(self, name: str, /, *default: Never, timeout: float | None = DEFAULT) -> Any:
        """Return a copy of an attribute of the value, such as that of a property.

        Args:
            name: of the attribute.
            default: none is taken.
            timeout: seconds, as :meth:`to_here` takes it.

        Raises:
            AttributeError: the value has none of that name.
        """
        if default:
            message = (
                f"ref.getattr({name!r}) has no default: catch AttributeError; a time-out is given"
                f" by its name, ref.getattr({name!r}, timeout=...)"
            )
            raise TypeError(message)
        return _call_remotely(self, "call", limit(timeout, self._endpoint.timeout), READ, name)

    def rpc_sync(self, timeout: float | None = DEFAULT) -> MethodProxy:
        """Return a proxy whose methods run on the value and return their result."""
        return self._methods("call", timeout)

    def rpc_async(self, timeout: float | None = DEFAULT) -> MethodProxy:
        """Return a proxy whose methods run on the value and return a future."""
        return self._methods("call_async", timeout)

    def remote(self, timeout: float | None = DEFAULT) -> MethodProxy:
        """Return a proxy whose methods run on the value and return a reference."""
        return self._methods("remote", timeout)

    def _methods(self, how: str, timeout: float | None) -> MethodProxy:
        default = self._endpoint.timeout
        return MethodProxy(self, how, default if timeout is DEFAULT else limit(timeout, default))

    def _check(self, timeout: float | None) -> float | None:
        """Raise why the owner does not hold the value; return what is left of *timeout* seconds."""
        confirmed = self._confirmed
        if confirmed is None:
            return timeout
        deadline = deadline_of(timeout)
        confirmed.result(timeout)
        self._confirmed = None
        return left(deadline)


def _special(name: str) -> Callable[..., Any]:
    def method(self: MethodProxy, *args: Any, **kwargs: Any) -> Any:
        return _call_remotely(self._ref, self._how, self._timeout, name, *args, **kwargs)

    method.__name__ = name
    return method


class MethodProxy:
    """Calls methods of a remote value.

    A proxy and its methods may be passed on to other members. ``proxy(...)``, ``len(proxy)``,
    ``proxy[key]``, ``key in proxy``, ``for item in proxy``, ``next(proxy)`` and ``with proxy`` call
    the value's own. Truth, comparisons and arithmetic are refused.
    """

    __slots__ = ("_how", "_ref", "_timeout")
    _how: str
    _ref: RemoteRef[Any]
    _timeout: float | None

    def __init__(self, ref: RemoteRef[Any], how: str, timeout: float | None) -> None:
        for name, value in zip(self.__slots__, (how, ref, timeout), strict=True):
            object.__setattr__(self, name, value)

    @override
    def __repr__(self) -> str:
        return f"<methods of {self._ref!r}>"

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return MethodProxy, (self._ref, self._how, self._timeout)

    @override
    def __setattr__(self, name: str, value: object) -> None:
        how = "call a method of the value that sets it"
        message = f"attribute {name!r} of a remote value is not set by assignment: {how}"
        raise AttributeError(message)

    def __getattr__(self, name: str) -> RemoteMethod:
        if name.startswith("__"):
            how = "send a function that does it, group.rpc_sync(ref.owner(), function, (ref,))"
            raise AttributeError(f"{name!r} is not called through a proxy: {how}")
        return RemoteMethod(_call_remotely, self._ref, self._how, self._timeout, name)

    # Python looks these up in the class.
    __call__ = _special("__call__")
    __len__ = _special("__len__")
    __getitem__ = _special("__getitem__")
    __setitem__ = _special("__setitem__")
    __delitem__ = _special("__delitem__")

    def __bool__(self) -> NoReturn:
        raise TypeError(_NOT_COMPARED)

    @override
    def __eq__(self, other: object) -> NoReturn:
        raise TypeError(_NOT_COMPARED)

    __hash__ = object.__hash__

    def __contains__(self, item: object) -> bool:
        ref = _ref_at_once(self, "in")
        return bool(_call_remotely(ref, "call", self._timeout, "__contains__", item))

    def __iter__(self) -> MethodProxy:
        ref = _ref_at_once(self, "for")
        items = _call_remotely(ref, "remote", self._timeout, "__iter__")
        return MethodProxy(items, "call", self._timeout)

    def __next__(self) -> Any:
        if self._how != "call":
            return _call_remotely(self._ref, self._how, self._timeout, "__next__")
        found = _call_remotely(self._ref, self._how, self._timeout, _NEXT)
        if not found:
            raise StopIteration
        return found[0]

    def __enter__(self) -> Any:
        ref = _ref_at_once(self, "with")
        # Without limit there, so that an entry that comes too late is known, and undone.
        entering = _call_remotely(ref, "call_async", None, "__enter__")
        try:
            is_itself, entered = entering.result(self._timeout)
        except BaseException:
            entering.add_done_callback(partial(_leave, ref))
            raise
        return self if is_itself else entered

    def __exit__(self, kind: object, error: BaseException | None, where: object) -> bool:
        ref, sent = _ref_at_once(self, "with"), None
        if error is not None:
            sent = remote_errors.pack(error, ref._endpoint.serializer, exits=True)
        caller = ref._endpoint.name
        return bool(_call_remotely(ref, "call", self._timeout, "__exit__", caller, sent))


def _ref_at_once(proxy: MethodProxy, what: str) -> RemoteRef[Any]:
    if proxy._how != "call":
        message = f"{what!r} needs what a method returns at once: use it with ref.rpc_sync()"
        raise TypeError(message)
    return proxy._ref


def _leave(ref: RemoteRef[Any], entering: RpcFuture[Any]) -> None:
    """Leave a context that has been entered after all."""
    if entering.has_result():
        endpoint = ref._endpoint
        _call_remotely(ref, "call_async", endpoint.timeout, "__exit__", endpoint.name, None)


class RemoteMethod(partial[Any]):
    """A method of a remote value, which runs when it is called."""

    @override
    def __repr__(self) -> str:
        return f"<method {self.args[-1]!r} of {self.args[0]!r}; {self._hint()}>"

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"a remote method has no attribute {name!r}; {self._hint()}")

    def __bool__(self) -> NoReturn:
        raise TypeError(f"{self!r} has no truth: call it")

    @override
    def __eq__(self, other: object) -> NoReturn:
        raise TypeError(f"{self!r} is not compared: call it")

    __hash__ = partial.__hash__

    def _hint(self) -> str:
        return f"ref.getattr({self.args[-1]!r}) reads an attribute"


def _call_remotely(
    ref: RemoteRef[Any], how: str, timeout: float | None, name: str, /, *args: Any, **kwargs: Any
) -> Any:
    is_there = ref._confirmed is None or ref._confirmed.done()
    arguments = (ref.ref_id, is_there, name, *args)
    call = getattr(ref._endpoint, how)
    result = call(ref.owner_name(), _call_method, timeout, arguments, kwargs)
    reply = result._confirmed if isinstance(result, RemoteRef) else result
    if isinstance(reply, RpcFuture):
        reply.keeps = ref  # this member holds the value until the owner has answered
    return result


def _call_method(ref_id: str, is_there: bool, name: str, /, *args: Any, **kwargs: Any) -> Any:
    """Call a method of a value that the caller holds until this has returned.

    Unless it *is_there*, the request that makes it may not have come yet.
    """
    endpoint = context.endpoint()
    if not is_there:
        with endpoint.refs.awaited(ref_id):
            return _call_method(ref_id, True, name, *args, **kwargs)
    value = _result(endpoint, endpoint.refs.value(ref_id))
    if (function := _FUNCTIONS.get(name)) is not None:
        return function(value, *args, **kwargs)
    method = getattr(value, name)
    if not callable(method):
        kind = f"{name!r} of {type(value).__name__} is of type {type(method).__name__}"
        raise TypeError(f"{kind} and no method: read it by ref.getattr({name!r})")
    return method(*args, **kwargs)


def _enter(value: Any) -> tuple[bool, Any]:
    """Enter a context; return whether that returns the value itself, and else what it returns."""
    entered = value.__enter__()
    return (True, None) if entered is value else (False, entered)


def _exit(value: Any, caller: str, envelope: Any) -> bool:
    if envelope is None:
        return bool(value.__exit__(None, None, None))
    error = remote_errors.unpack(envelope, caller, context.endpoint().serializer, exits=True)
    return bool(value.__exit__(type(error), error, None))


def _next(value: Any) -> tuple[Any, ...]:
    """Return the next item as a tuple of one; an empty one at the end."""
    try:
        return (next(value),)
    except StopIteration:
        return ()


READ, _NEXT = "", "next"  #: in the place of a method's name

#: what is called with a value in the place of a method
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    READ: getattr,
    _NEXT: _next,
    "__len__": len,
    "__getitem__": operator.getitem,
    "__setitem__": operator.setitem,
    "__delitem__": operator.delitem,
    "__contains__": operator.contains,
    "__iter__": iter,
    "__enter__": _enter,
    "__exit__": _exit,
}

_NOT_COMPARED = (
    "a proxy of a remote value has no truth, and is not compared: use a copy, as in"
    " ref.to_here() == ..., or have its owner do it, as in len(ref.rpc_sync())"
)


def methods_value(
    refs: RefTable, function: Callable[..., Any], args: Sequence[Any]
) -> AbstractContextManager[object]:
    """Keep the value whose method *function* calls inside, if it does: no other member need."""
    return refs.awaited(args[0]) if function is _call_method else nullcontext()


def _result(endpoint: Endpoint, value: Future[Any]) -> Any:
    if value.done():
        return value.result()
    with endpoint.executor.blocked():
        return value.result()


def _giver(name: str) -> str:
    """Return the member that has given a name with :meth:`RefTable.new_id`."""
    return name.rpartition(":")[0]


def _arrive(owner: str, ref_id: str, ticket: str, fresh: bool) -> RemoteRef[Any]:
    return context.endpoint().refs.arrive(owner, ref_id, ticket, fresh)
