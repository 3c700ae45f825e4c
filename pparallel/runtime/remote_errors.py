"""Carry an exception from one member to another."""

from __future__ import annotations

import builtins
import traceback
from typing import Any, NamedTuple

from pparallel import errors
from pparallel.errors import RemoteError
from pparallel.interfaces.serializer import Serializer
from pparallel.runtime.future import ended_by


class Envelope(NamedTuple):
    """An exception on its way.

    Attributes:
        type_name: module and name of its type, without the module if that is ``builtins``.
        message: what it says.
        traceback: where it was raised.
        exception: the exception itself, serialised, if it can be rebuilt so.
        state: else its arguments and attributes, serialised, if they are data and its type is
            Python's or pparallel's own: a serializer of data alone has no other way.
    """

    type_name: str
    message: str
    traceback: str
    exception: list[bytes] | None
    state: list[bytes] | None


def pack(error: BaseException, serializer: Serializer, *, exits: bool = False) -> Envelope:
    """Return *error* as something that every serializer can send; never raises.

    Args:
        error: the exception.
        serializer: what turns it into bytes.
        exits: send ``SystemExit`` and the like as they are. They would end a thread that serves
            calls, and travel as text otherwise.
    """
    error = ended_by(error)
    message = _message(error)
    kind = type(error)
    type_name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    exception, why = _rebuildable(error, serializer, exits=exits)
    state = None if exception is not None else _state(error, type_name, serializer)
    text = "".join(traceback.format_exception(error))
    if exception is None and state is None and why:
        text += f"(it arrives as text, for it cannot be rebuilt: {why})\n"
    return Envelope(type_name, message, text, exception, state)


def unpack(
    envelope: Any,
    member: str,
    serializer: Serializer,
    *,
    exits: bool = False,
    kind: str = "member",
) -> BaseException:
    """Return the exception of *envelope*, raised in *member*, with its traceback as the cause.

    Args:
        envelope: what :func:`pack` made.
        member: where it was raised.
        serializer: what made bytes of it.
        exits: as for :func:`pack`.
        kind: what the member is called.
    """
    type_name, message, text, exception, state = envelope
    remote = RemoteError(member, type_name, message, text, kind=kind)
    try:
        if exception is not None:
            error = serializer.loads(exception)
        elif state is not None:
            error = _restored(type_name, state, serializer)
        else:
            return remote
    except (Exception, SystemExit) as refused:  # noqa: BLE001 - its type is not here, or refuses
        remote.add_note(f"(it cannot be rebuilt here: {_message(refused)})")
        return remote
    if not isinstance(error, BaseException if exits else Exception):
        return remote
    error.__cause__ = remote
    return error


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as unreadable:  # noqa: BLE001 - the user's __str__ may raise anything
        return f"<no message: __str__ raised {type(unreadable).__name__}>"


def _rebuildable(
    error: BaseException, serializer: Serializer, *, exits: bool
) -> tuple[list[bytes] | None, str]:
    """Return *error* as bytes, or None and the reason if there is something to say."""
    if not (exits or isinstance(error, Exception)):
        return None, ""
    try:
        frames = [bytes(each) for each in serializer.dumps(error)]
        copy = serializer.loads(frames)
    except (Exception, SystemExit) as refused:  # noqa: BLE001 - the user's exception may do that
        return None, _message(refused)
    if type(copy) is not type(error):
        return None, f"it comes back as {type(copy).__qualname__}"
    return frames, ""


def _state(error: BaseException, type_name: str, serializer: Serializer) -> list[bytes] | None:
    if type(error) is not _known_type(type_name):
        return None
    try:
        frames = [bytes(each) for each in serializer.dumps((error.args, vars(error)))]
        copy = _restored(type_name, frames, serializer)
        return frames if str(copy) == str(error) else None
    except Exception:  # noqa: BLE001 - what it holds may refuse in any way
        return None


def _restored(type_name: str, state: list[bytes], serializer: Serializer) -> Exception:
    args, attributes = serializer.loads(state)
    kind = _known_type(type_name)
    if kind is None:
        message = f"{type_name} is neither Python's nor pparallel's"
        raise TypeError(message)
    # Ours make their message of other arguments than those they keep, and so may not be called.
    error = kind(*args) if kind.__module__ == builtins.__name__ else kind.__new__(kind)
    error.args = tuple(args)
    vars(error).update(attributes)
    return error


def _known_type(type_name: str) -> type[Exception] | None:
    module, _, name = type_name.rpartition(".")
    home: Any = {"": builtins, errors.__name__: errors}.get(module)
    found = vars(home).get(name) if home is not None else None
    return found if isinstance(found, type) and issubclass(found, Exception) else None
