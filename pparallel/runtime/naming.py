"""Keys and versions as bytes: equal ones, and only those, give equal bytes.

Servers that keep values outside their process name them so. Each is a tag, the length of what
follows, and that: the digits of an int, UTF-8, bytes, or the items of a tuple one after another.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable
from typing import Any

from pparallel.interfaces.ordered_server import check_hashable

ALLOWED = "a str, int, bytes or a tuple of these"
DEPTH = 50  #: tuples in one another

_HEAD = struct.Struct("<cQ")


def encode(what: str, name: Hashable) -> bytes:
    """Return a key or version as bytes.

    A bool is the int that it equals, and an instance of a subclass (an ``IntEnum``, a named tuple)
    what it derives from.

    Args:
        what: is encoded, for the message.
        name: to encode.

    Raises:
        TypeError: it is not, or not made of, what has such bytes.
        ValueError: it is a tuple nested too deeply.
    """
    check_hashable(what, name)
    return _encoded(what, name, name, 0)


def decode(data: bytes) -> Any:
    """Return what :func:`encode` was given, in its plain type.

    Raises:
        ValueError: it did not make these bytes.
    """
    try:
        name, rest = _decoded(memoryview(data), 0)
    except (struct.error, TypeError, ValueError) as error:
        raise _foreign(data) from error
    if rest:
        raise _foreign(data)
    return name


def _encoded(what: str, whole: object, part: object, depth: int) -> bytes:
    if depth > DEPTH:
        message = f"{what} may be a tuple nested {DEPTH} deep, and no deeper"
        raise ValueError(message)
    # The methods of the base types: a subclass may have others of its own.
    if isinstance(part, int):
        number = int.__index__(part)
        return _tagged(b"i", number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True))
    if isinstance(part, str):
        return _tagged(b"s", str.encode(part, "utf-8", "surrogatepass"))
    if isinstance(part, bytes):
        return _tagged(b"b", bytes.__getitem__(part, slice(None)))
    if isinstance(part, tuple):
        items = tuple.__iter__(part)
        return _tagged(b"t", b"".join(_encoded(what, whole, each, depth + 1) for each in items))
    kind = type(part).__qualname__
    found = f"is of type {kind}" if depth == 0 else f"holds one of type {kind}"
    message = f"{what} of this server must be {ALLOWED}, and {whole!r} {found}"
    raise TypeError(message)


def _tagged(tag: bytes, content: bytes) -> bytes:
    return _HEAD.pack(tag, len(content)) + content


def _decoded(data: memoryview, depth: int) -> tuple[Any, memoryview]:
    """Return the first value in *data*, and what follows it."""
    tag, length = _HEAD.unpack_from(data)
    content, rest = data[_HEAD.size :][:length], data[_HEAD.size :][length:]
    if len(content) != length or depth > DEPTH or tag not in (b"i", b"s", b"b", b"t"):
        raise _foreign(data)
    match tag:
        case b"i":
            return int.from_bytes(content, "little", signed=True), rest
        case b"s":
            return str(content, "utf-8", "surrogatepass"), rest
        case b"b":
            return bytes(content), rest
    items = []
    while content:
        item, content = _decoded(content, depth + 1)
        items.append(item)
    return tuple(items), rest


def _foreign(data: object) -> ValueError:
    return ValueError(f"{data!r:.100} is no name that an ordered server has written")
