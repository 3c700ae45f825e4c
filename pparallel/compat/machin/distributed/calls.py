"""What runs in the member that is called, and what the caller gets if that fails."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any

from typing_extensions import override

from pparallel.runtime import remote_errors
from pparallel.runtime.rpc import context


class RpcException(Exception):  # noqa: N818 - the seed's name
    """Raised for what a function raised that was called in another member.

    It is of the original's class too, where that can be rebuilt: both ``except RpcException`` and
    ``except ValueError`` catch a ``ValueError`` of another member. Otherwise its message is the
    traceback as text.
    """

    _original: type[BaseException] | None = None

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        if self._original is None:
            return RpcException, self.args
        return _made, (self._original, self.args, self.__dict__)


def guarded(
    function: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
) -> Any:
    """Run a function for another member.

    Raises:
        RpcException: for whatever it raised.
    """
    try:
        return function(*args, **kwargs) if kwargs else function(*args)
    except BaseException as error:  # noqa: BLE001 - it goes back to the caller
        raise _for_caller(error) from error.__cause__


def service(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return *function* as one that :func:`guarded` runs."""

    def guard(*args: Any, **kwargs: Any) -> Any:
        return guarded(function, args, kwargs)

    return guard


def _for_caller(error: BaseException) -> RpcException:
    """Return what the caller is to get for *error*: of its class, if that arrives there."""
    if isinstance(error, RpcException):  # of a third member
        return error
    if not isinstance(error, Exception):  # it would end the caller
        return RpcException("".join(traceback.format_exception(error)))
    try:
        found = _made(type(error), error.args, error.__dict__)
    except Exception:  # noqa: BLE001 - the user's exception may refuse in any way
        return RpcException("".join(traceback.format_exception(error)))
    found = found.with_traceback(error.__traceback__)
    packed = remote_errors.pack(found, context.endpoint().serializer)
    if packed.exception is None:
        return RpcException(packed.traceback)
    return found


def _made(
    cls: type[BaseException], args: tuple[Any, ...], state: Mapping[str, Any]
) -> RpcException:
    kind: type[RpcException] = _kind(cls)  # type: ignore[arg-type]  # classes have a hash
    # What its own __init__ takes need not be what it keeps.
    made = kind.__new__(kind, *args) if type(cls.__init__) is FunctionType else kind(*args)
    made.args = args
    made.__dict__.update(state)
    return made


@functools.lru_cache(maxsize=256)
def _kind(cls: type[BaseException]) -> type[RpcException]:
    """Return the class of exceptions that are RPC's and *cls*'s."""
    name = f"RpcException[{cls.__qualname__}]"
    facts = {"__module__": cls.__module__, "__doc__": cls.__doc__, "_original": cls}
    return type(name, (RpcException, cls), facts)
