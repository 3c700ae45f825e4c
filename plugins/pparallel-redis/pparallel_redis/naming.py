"""Keys and versions as bytes: equal ones, and only those, give equal bytes.

``"model"`` is ``s5:model``, ``b"x"`` is ``b1:x``, 26 is ``i1a;`` and ``("a", 1)`` is
``t2:s1:ai1;``: text that ``redis-cli`` shows as it is.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

ALLOWED = "a str, int, bytes or a tuple of these"
DEPTH = 50  #: tuples in one another


def encode(what: str, name: Hashable) -> bytes:
    """Return a key or version as bytes.

    A bool is the int that it equals, and an instance of a subclass (an ``IntEnum``, a named tuple)
    what it derives from.

    Args:
        what: is encoded, for the message.
        name: to encode.

    Raises:
        TypeError: it is not, or not made of, what Redis can hold.
        ValueError: it is a tuple nested too deeply.
    """
    return _encoded(what, name, name, 0)


def decode(data: bytes) -> Any:
    """Return what :func:`encode` was given, in its plain type.

    Raises:
        ValueError: it did not make these bytes.
    """
    try:
        name, end = _decoded(data, 0)
    except (ValueError, IndexError, RecursionError) as error:
        raise _not_ours(data) from error
    if end != len(data):
        raise _not_ours(data)
    return name


def _encoded(what: str, whole: object, part: object, depth: int) -> bytes:
    if depth > DEPTH:
        message = f"{what} may be a tuple nested {DEPTH} deep, and no deeper"
        raise ValueError(message)
    # The methods of the base types: a subclass may have others of its own.
    if isinstance(part, int):
        return b"i%x;" % int.__index__(part)
    if isinstance(part, str):
        text = str.encode(part, "utf-8", "surrogatepass")
        return b"s%d:%b" % (len(text), text)
    if isinstance(part, bytes):
        return b"b%d:%b" % (bytes.__len__(part), bytes.__getitem__(part, slice(None)))
    if isinstance(part, tuple):
        items = [_encoded(what, whole, each, depth + 1) for each in tuple.__iter__(part)]
        return b"t%d:%b" % (len(items), b"".join(items))
    kind = type(part).__qualname__
    found = f"is of type {kind}" if depth == 0 else f"holds one of type {kind}"
    message = f"{what} in Redis must be {ALLOWED}, and {whole!r} {found}"
    raise TypeError(message)


def _decoded(data: bytes, start: int) -> tuple[Any, int]:
    """Return the name that begins at *start*, and where it ends."""
    tag = data[start : start + 1]
    if tag == b"i":
        end = data.index(b";", start)
        return int(data[start + 1 : end], 16), end + 1
    end = data.index(b":", start) + 1
    count = int(data[start + 1 : end - 1])
    if tag == b"t":
        items = []
        for _ in range(count):
            item, end = _decoded(data, end)
            items.append(item)
        return tuple(items), end
    content = data[end : end + count]
    if len(content) != count or tag not in (b"s", b"b"):
        raise _not_ours(data)
    return str(content, "utf-8", "surrogatepass") if tag == b"s" else content, end + count


def _not_ours(data: bytes) -> ValueError:
    return ValueError(f"{data[:100]!r} is no name that an ordered server has written")
