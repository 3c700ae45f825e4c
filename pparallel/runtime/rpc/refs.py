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
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from typing_extensions import override

from pparallel.errors import (
    DirectoryError,
    PeerLostError,
    PparallelError,
    ResourceExhaustedError,
)
from pparallel.runtime.future import LeanFuture, fail
from pparallel.runtime.resources import start_thread
from pparallel.runtime.rpc import context
from pparallel.runtime.rpc.future import RpcFuture
from pparallel.runtime.rpc.service import Reply, Request
from pparallel.runtime.rpc.timeouts import DEFAULT, seconds

if TYPE_CHECKING:
    from pparallel.runtime.rpc.endpoint import Endpoint

logger = logging.getLogger(__name__)

AGAIN = 0.1  #: seconds after which a release is sent again that could not be sent

T = TypeVar("T")

_Hold = weakref.ref["RemoteRef[Any]"]  #: one hold of this member, which ends with its reference

READ = ""  #: in the place of a method's name: an attribute is read

SHARE, CLAIM, RELEASE, FETCH = "ref.share", "ref.claim", "ref.release", "ref.fetch"


class _Kept:
    """A value that others refer to."""

    __slots__ = ("has_come", "holds", "tickets", "value")

    def __init__(self) -> None:
        self.has_come = False  # the request that makes the value
        self.value: Future[Any] = LeanFuture()
        # Signal handlers may come between any two steps, but not into a sum in one of these.
        self.holds: defaultdict[str, int] = defaultdict(int)
        # +1: given out, -1: claimed before that was known
        self.tickets: defaultdict[str, int] = defaultdict(int)

    def is_wanted(self) -> bool:
        return any(self.holds.values()) or any(self.tickets.values())


class RefTable:
    """The values that this member owns, and its holds on those of others."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._lock = threading.RLock()
        self._kept: dict[str, _Kept] = {}
        self._numbers = itertools.count()
        self._holds: dict[_Hold, tuple[str, str]] = {}  # with the owner and the value
        # References end anywhere, inside any lock, and a finalizer in Python would be interrupted:
        # the interpreter itself puts their holds in here. ``None`` ends the thread that reads it.
        self._dropped: SimpleQueue[_Hold | None] = SimpleQueue()
        self._releaser: threading.Thread | None = None
        endpoint.serve(SHARE, self._share)
        endpoint.serve(CLAIM, self._claim)
        endpoint.serve(RELEASE, self._release)
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

    def value(self, ref_id: str) -> Future[Any]:
        """Return the future of a value owned here.

        Raises:
            DirectoryError: nobody held it any more.
        """
        with self._lock:
            return self._found(ref_id, False).value

    @contextmanager
    def awaited(self, ref_id: str) -> Iterator[Future[Any]]:
        """Keep the future of a value owned here inside, whose request may not have come yet."""
        me = self._endpoint.name
        with self._lock:
            kept = self._kept.setdefault(ref_id, _Kept())
            kept.holds[me] += 1
        try:
            yield kept.value
        finally:
            with self._lock:
                kept.holds[me] -= 1
                self._sweep([ref_id])

    def hold(self, ref: RemoteRef[Any]) -> None:
        """Give one hold back when *ref* ends."""
        if self._releaser is None:
            self._start_releaser()
        self._holds[weakref.ref(ref, self._dropped.put)] = ref.owner_name(), ref.ref_id

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
            self._sweep(list(self._kept))
        for value in never:
            fail(value, PeerLostError(member, "ended before it had the value made"))

    def close(self) -> None:
        """Release everything."""
        self._dropped.put(None)
        if self._releaser is not None:
            self._releaser.join()
        with self._lock:
            self._kept.clear()

    def share(self, ref: RemoteRef[Any], fresh: bool) -> str:
        """Cover one copy of *ref* that is about to be sent; return its ticket."""
        ticket = self.new_id()
        told = self._endpoint.ask_async(ref.owner_name(), SHARE, (ref.ref_id, ticket, fresh))
        # The callback holds the reference, and with it this member's hold, until the owner knows.
        told.add_done_callback(lambda _, ref=ref: None)  # type: ignore[misc]
        return ticket

    def arrive(
        self, owner: str, ref_id: str, ticket: str | None, fresh: bool = False
    ) -> RemoteRef[Any]:
        """Return a reference that came with *ticket*."""
        claimed = self._endpoint.ask_async(owner, CLAIM, (ref_id, ticket, fresh))
        return RemoteRef(self._endpoint, owner, ref_id, claimed)

    def _share(self, request: Request) -> Reply:
        ref_id, ticket, fresh = request.body
        with self._lock:
            kept = self._found(ref_id, fresh)
            kept.tickets[ticket] += 1
            self._sweep([ref_id])
        return Reply()

    def _claim(self, request: Request) -> Reply:
        ref_id, ticket, fresh = request.body
        with self._lock:
            kept = self._found(ref_id, fresh)
            kept.holds[request.sender] += 1
            # A second claim of one ticket (a message read twice) is a plain hold.
            if ticket is not None and kept.tickets.get(ticket) != 0:
                kept.tickets[ticket] -= 1
            self._sweep([ref_id])  # its release may have come before
        return Reply()

    def _release(self, request: Request) -> Reply:
        with self._lock:
            for ref_id, count in request.body:
                if kept := self._kept.get(ref_id):
                    kept.holds[request.sender] -= count
            self._sweep([ref_id for ref_id, _ in request.body])
        return Reply()

    def _fetch(self, request: Request) -> Future[Reply]:
        reply: Future[Reply] = LeanFuture()

        def send(value: Future[Any]) -> None:
            if error := value.exception():
                reply.set_exception(error)
            else:
                reply.set_result(Reply(value.result()))

        self.value(request.body).add_done_callback(send)
        return reply

    def _found(self, ref_id: str, fresh: bool) -> _Kept:
        if fresh:
            return self._kept.setdefault(ref_id, _Kept())
        kept = self._kept.get(ref_id)
        if kept is None:
            raise DirectoryError(f"the value {ref_id} was released on {self._endpoint.name!r}")
        return kept

    def _sweep(self, ref_ids: list[str]) -> None:
        for ref_id in ref_ids:
            kept = self._kept.get(ref_id)
            if kept is not None and not kept.is_wanted():
                self._kept.pop(ref_id, None)
                if kept.is_wanted():  # a signal's handler has found it just before
                    self._kept.setdefault(ref_id, kept)

    def _start_releaser(self) -> None:
        name = f"{self._endpoint.name}-releaser"
        try:
            thread = threading.Thread(target=self._release_all, name=name, daemon=True)
            self._releaser = start_thread(thread)
        except ResourceExhaustedError as error:  # with the next reference
            logger.warning("%s releases values later: %s", self._endpoint.name, error)

    def _release_all(self) -> None:
        """Tell the owners of what is dropped."""
        while (hold := self._dropped.get()) is not None:
            owner, ref_id = self._holds[hold]
            try:
                self._endpoint.ask_async(owner, RELEASE, [(ref_id, 1)])
            except (ResourceExhaustedError, MemoryError):  # which says nothing of the owner
                self._dropped.put(hold)
                time.sleep(AGAIN)
                continue
            except PparallelError:  # the owner or this member has ended, and the holds with it
                logger.debug("%s is not released: nobody has it any more", ref_id)
            except Exception:  # the others are to be released all the same
                logger.exception("Values of %s could not be released", owner)
            del self._holds[hold]
        self._dropped.put(None)  # for another one, of which an interrupt has kept this from knowing


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
    """

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
        endpoint.refs.hold(self)

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
        left = self._check(self._endpoint.limit(seconds(timeout)))
        value: T = self._endpoint.ask(self._owner, FETCH, self.ref_id, timeout=left).body
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

    def getattr(self, name: str, timeout: float | None = DEFAULT) -> Any:
        """Return a copy of an attribute of the value, such as that of a property.

        Args:
            name: of the attribute.
            timeout: seconds, as :meth:`to_here` takes it.

        Raises:
            AttributeError: the value has none of that name.
        """
        return _call_remotely(self, "call", self.rpc_sync(timeout)._timeout, READ, name)

    def rpc_sync(self, timeout: float | None = DEFAULT) -> MethodProxy:
        """Return a proxy whose methods run on the value and return their result."""
        return MethodProxy(self, "call", -1 if timeout is DEFAULT else seconds(timeout))

    def rpc_async(self, timeout: float | None = DEFAULT) -> MethodProxy:
        """Return a proxy whose methods run on the value and return a future."""
        return MethodProxy(self, "call_async", -1 if timeout is DEFAULT else seconds(timeout))

    def remote(self, timeout: float | None = DEFAULT) -> MethodProxy:
        """Return a proxy whose methods run on the value and return a reference."""
        return MethodProxy(self, "remote", -1 if timeout is DEFAULT else seconds(timeout))

    def _check(self, limit: float | None) -> float | None:
        """Raise why the owner does not hold the value; return what is left of *limit* seconds."""
        confirmed = self._confirmed
        if confirmed is None:
            return limit
        began = time.monotonic()
        confirmed.result(limit)
        self._confirmed = None
        return None if limit is None else max(began + limit - time.monotonic(), 0.001)


class MethodProxy:
    """Calls methods of a remote value.

    A proxy and its methods may be passed on to other members. ``proxy(...)``, ``len(proxy)``,
    ``proxy[key]``, ``key in proxy``, ``next(proxy)`` and ``with proxy`` call the value's own.
    """

    __slots__ = ("_how", "_ref", "_timeout")
    _how: str
    _ref: RemoteRef[Any]
    _timeout: float

    def __init__(self, ref: RemoteRef[Any], how: str, timeout: float) -> None:
        for name, value in zip(self.__slots__, (how, ref, timeout), strict=True):
            object.__setattr__(self, name, value)

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return MethodProxy, (self._ref, self._how, self._timeout)

    def __bool__(self) -> bool:
        return True  # and not whether the value has a length

    @override
    def __setattr__(self, name: str, value: object) -> None:
        how = "call a method of the value that sets it"
        message = f"attribute {name!r} of a remote value is not set by assignment: {how}"
        raise AttributeError(message)

    def __getattr__(self, name: str) -> RemoteMethod:
        if name.startswith("__") and name not in _SPECIAL:
            raise AttributeError(name)
        return RemoteMethod(_call_remotely, self._ref, self._how, self._timeout, name)


class RemoteMethod(partial[Any]):
    """A method of a remote value, which runs when it is called."""

    @override
    def __repr__(self) -> str:
        return f"<method {self.args[-1]!r} of {self.args[0]!r}; {self._hint()}>"

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"a remote method has no attribute {name!r}; {self._hint()}")

    def _hint(self) -> str:
        return f"ref.getattr({self.args[-1]!r}) reads an attribute"


def _special(name: str) -> Callable[..., Any]:
    def method(self: MethodProxy, *args: Any, **kwargs: Any) -> Any:
        return _call_remotely(self._ref, self._how, self._timeout, name, *args, **kwargs)

    return method


#: methods that Python looks up in the class of an object
_SPECIAL = frozenset(
    [
        "__call__",
        "__len__",
        "__getitem__",
        "__setitem__",
        "__delitem__",
        "__contains__",
        "__next__",
        "__enter__",
        "__exit__",
    ]
)
for _name in _SPECIAL:
    setattr(MethodProxy, _name, _special(_name))


def _call_remotely(
    ref: RemoteRef[Any], how: str, timeout: float, name: str, /, *args: Any, **kwargs: Any
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
    if is_there:
        value = endpoint.refs.value(ref_id)
        return _method(_result(endpoint, value), name)(*args, **kwargs)
    with endpoint.refs.awaited(ref_id) as value:
        return _method(_result(endpoint, value), name)(*args, **kwargs)


def _method(value: object, name: str) -> Callable[..., Any]:
    if name == READ:
        return partial(getattr, value)
    method = getattr(value, name)
    if not callable(method):
        kind = f"{name!r} of {type(value).__name__} is of type {type(method).__name__}"
        raise TypeError(f"{kind} and no method: read it by ref.getattr({name!r})")
    return method  # type: ignore[no-any-return] # it can be called


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
