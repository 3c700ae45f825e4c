"""One call of a user function, on the side where it runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from time import monotonic
from typing import TYPE_CHECKING, Any

from pparallel.errors import CallTimeoutError, DirectoryError, SerializationError
from pparallel.interfaces.transport import Frames
from pparallel.runtime.pending import fail, settle
from pparallel.runtime.rpc import current, wire
from pparallel.runtime.rpc.quick import Name
from pparallel.runtime.rpc.refs import Registered, methods_value
from pparallel.runtime.rpc.wire import QUICK, Kind, Status
from pparallel.runtime.user_code import run

if TYPE_CHECKING:
    from pparallel.runtime.rpc.endpoint import Endpoint


class NotRegisteredHereError(DirectoryError):
    """Raised when a member no longer has the service that it was called for; nothing was run."""

    def __init__(self, group: str, key: str, member: str) -> None:
        super().__init__(f"{key!r} is not registered in Group [{group}] by member {member!r}")


class _NotHere(Exception):  # noqa: N818 - becomes a reply of its own kind
    def __init__(self, name: Name) -> None:
        self.name = name


class Job:
    """One call of a user function, on the side where it runs.

    The result goes into *kept* where the caller wants a reference to it, else into the reply.
    """

    __slots__ = ("_endpoint", "_function", "_kept", "_message", "_sender", "expires")

    def __init__(
        self,
        endpoint: Endpoint,
        sender: str,
        message: wire.Message,
        kept: Future[Any] | None = None,
    ) -> None:
        self._endpoint, self._sender, self._message = endpoint, sender, message
        self._kept = kept
        self._function = 0  # number of one that the sender need not send again
        limit = message.limit
        self.expires = monotonic() + limit if limit else math.inf

    def run(self, reply: Future[Frames]) -> None:
        """Run the function, and complete *reply*: called by a handler thread."""
        if monotonic() >= self.expires:
            what = f"a call to {self._endpoint.name!r} that waited there for a thread"
            self.drop(CallTimeoutError(what, self._message.limit), reply)
            return
        with current.acting_for(self._endpoint):
            settle(reply, self.answer() if self._kept is None else self._keep(self._kept, reply))

    def drop(self, error: Exception, reply: Future[Frames]) -> None:
        """Complete *reply* with *error* instead of running the function."""
        if self._kept is not None:
            fail(self._kept, error)
        settle(reply, self._endpoint.failed(error))

    def answer(self) -> Frames:
        """Run the function in the thread of the caller, and return the reply; never raises."""
        endpoint = self._endpoint
        try:
            function, args, kwargs = self._call()
            value = run(function, args, kwargs)
            data = endpoint.quick.value(value)
            if data is not None and not self._function:
                return [wire.QUICK_OK, data]
            return self._numbered(wire.join(Status.OK, endpoint.serializer.dumps(value)))
        except BaseException as error:  # noqa: BLE001 - goes back to the caller
            return self._failed(error)

    def _keep(self, kept: Future[Any], reply: Future[Frames]) -> Frames:
        """Keep the result, and tell the caller before that the function runs."""
        me = self._endpoint
        try:
            function, args, kwargs = self._call()
            done = self._numbered(wire.join(Status.OK, me.serializer.dumps(None)))
        except BaseException as error:  # noqa: BLE001 - goes back to the caller
            missing = error.name if isinstance(error, _NotHere) else None
            fail(kept, NotRegisteredHereError(*missing, me.name) if missing else error)
            return self._failed(error)
        try:
            with methods_value(me.refs, function, args):
                settle(reply, done)
                kept.set_result(run(function, args, kwargs))
        except BaseException as error:  # noqa: BLE001 - raised where the value is asked for
            fail(kept, error)
        return done

    def _call(self) -> tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]:
        """Return the function and its arguments; raises ``_NotHere`` for a service that is not."""
        endpoint, message = self._endpoint, self._message
        if message.flags & QUICK:
            name, args, kwargs = endpoint.quick.read_call(message.body)
            if message.kind == Kind.CALL:
                if type(name[0]) is int:
                    return self._sent(name), args, kwargs
                return endpoint.quick.function(name), args, kwargs
            what: Any = name
        else:
            what, args, kwargs = endpoint.serializer.loads(message.body)
        if type(what) is tuple and type(what[0]) is int:
            return self._sent(what), args, kwargs
        if type(what) is tuple:  # the name of a registered function, which travels as data
            service = endpoint.registered.get(Registered(*what))
            if service is None:
                raise _NotHere(what)
            return service, args, kwargs
        if not callable(what):
            problem = f"a {type(what).__name__} is neither a function nor the name of a service"
            raise TypeError(problem)
        return what, args, kwargs

    def _sent(self, told: Any) -> Callable[..., Any]:
        """Return the function that the sender has sent, now or before."""
        endpoint = self._endpoint
        if not endpoint.quick.trusts:
            raise SerializationError("a function", "none is taken from anybody", loading=True)
        session = self._message.session
        function, self._function = endpoint.functions.function(self._sender, session, told)
        return function

    def _numbered(self, reply: Frames) -> Frames:
        return wire.renumbered(reply, self._function) if self._function else reply

    def _failed(self, error: BaseException) -> Frames:
        endpoint = self._endpoint
        try:
            if isinstance(error, _NotHere):
                body = endpoint.serializer.dumps(tuple(error.name))
                return wire.join(Status.NOT_REGISTERED, body)
        except Exception as unsendable:  # noqa: BLE001 - as for want of memory
            error = unsendable
        return self._numbered(endpoint.failed(error))
