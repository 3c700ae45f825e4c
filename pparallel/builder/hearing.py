"""Events of a member, on their way to where the job was launched."""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Mapping
from typing import Any

from pparallel.errors import RemoteError, SerializationError
from pparallel.runtime import upstream
from pparallel.runtime.events import Event, Listener

_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def upstream_listener() -> Listener | None:
    """Return what hands events on, None if nobody listens where this rank was launched."""
    tell = upstream.current()
    if tell is None:
        return None
    found = tell

    def hand_on(event: Event) -> None:
        try:
            found(event)
        except SerializationError:  # it holds an exception, or a value, that cannot be sent
            found(in_words(event))

    return hand_on


def in_words(event: Event) -> Event:
    """Return a copy of *event* with text in the place of all that is not plain."""
    fields = {each.name: getattr(event, each.name) for each in dataclasses.fields(event)}
    return type(event)(**{name: _plain(value, event.member) for name, value in fields.items()})


def _plain(value: Any, member: str) -> Any:
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, Mapping):
        return {_plain(key, member): _plain(each, member) for key, each in value.items()}
    if isinstance(value, BaseException):
        kind = type(value)
        name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
        text = "".join(traceback.format_exception(value))
        return RemoteError(member, name, _text(value, str), text)
    return _text(value, repr)


def _text(value: object, words: Any) -> str:
    try:
        return str(words(value))
    except Exception as error:  # noqa: BLE001 - the user's __str__ and __repr__ may raise anything
        return f"<{type(value).__qualname__}: {type(error).__name__}>"
