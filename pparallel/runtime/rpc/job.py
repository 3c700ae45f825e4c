"""One call of a user function, on the side where it runs."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from pparallel.errors import DirectoryError
from pparallel.interfaces.transport import Frames
from pparallel.runtime.pending import fail, settle
from pparallel.runtime.rpc import current, wire
from pparallel.runtime.rpc.refs import Registered
from pparallel.runtime.rpc.wire import Status

if TYPE_CHECKING:
    from pparallel.runtime.rpc.endpoint import Endpoint


class NotRegisteredHereError(DirectoryError):
    """Raised when a member no longer has the service that it was called for; nothing was run."""

    def __init__(self, group: str, key: str, member: str) -> None:
        super().__init__(f"{key!r} is not registered in Group [{group}] by member {member!r}")


class Job:
    """One call of a user function, on its way through the handler threads.

    The result goes into *kept* where the caller wants a reference to it, else into the reply.
    """

    __slots__ = ("_endpoint", "_kept", "_message", "_reply")

    def __init__(
        self,
        endpoint: Endpoint,
        message: wire.Message,
        reply: Future[Frames],
        kept: Future[Any] | None,
    ) -> None:
        self._endpoint, self._message = endpoint, message
        self._reply, self._kept = reply, kept

    def __call__(self) -> None:
        """Run the function and reply."""
        with current.acting_for(self._endpoint):
            try:
                what, args, kwargs = self._endpoint.serializer.loads(self._message.body)
                function = self._function(what)
                if function is None:
                    self._refuse(Registered(*what))
                elif self._kept is None:
                    self._answer(Status.OK, function(*args, **kwargs))
                else:
                    self._answer(Status.OK, None)
                    self._keep(self._kept, function, args, kwargs)
            except BaseException as error:  # noqa: BLE001 - goes back to the caller
                if self._kept is not None:
                    fail(self._kept, error)
                settle(self._reply, self._endpoint.failed(error))

    def _answer(self, status: Status, body: object) -> None:
        settle(self._reply, wire.join(status, self._endpoint.serializer.dumps(body)))

    def _keep(
        self, kept: Future[Any], function: Callable[..., Any], args: Any, kwargs: Any
    ) -> None:
        try:
            kept.set_result(function(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - raised where the value is asked for
            kept.set_exception(error)

    def _refuse(self, name: Registered) -> None:
        self._answer(Status.NOT_REGISTERED, tuple(name))
        if self._kept is not None:
            self._kept.set_exception(NotRegisteredHereError(*name, self._endpoint.name))

    def _function(self, what: Any) -> Callable[..., Any] | None:
        if type(what) is tuple:  # the name of a registered function, which travels as data
            return self._endpoint.registered.get(Registered(*what))
        if not callable(what):
            message = f"a {type(what).__name__} is neither a function nor the name of a service"
            raise TypeError(message)
        function: Callable[..., Any] = what
        return function
