"""What the launching process and a rank say to one another over a socket: frames of bytes.

The socket is in a directory that only this user can enter, and both sides ask the kernel who the
other is.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence

from typing_extensions import Buffer

_HEAD = struct.Struct("!II")  #: kind, number of frames
_SIZE = struct.Struct("!Q")


def send(
    connection: socket.socket, kind: int, frames: Sequence[Buffer], descriptors: Sequence[int] = ()
) -> None:
    """Send a message, with descriptors if there are any."""
    views = [memoryview(each).cast("B") for each in frames]
    sizes = b"".join(_SIZE.pack(each.nbytes) for each in views)
    head = _HEAD.pack(kind, len(views))
    if descriptors:
        sent = socket.send_fds(connection, [head], list(descriptors))
        connection.sendall(head[sent:])
    else:
        connection.sendall(head)
    connection.sendall(sizes)
    for view in views:
        connection.sendall(view)


def receive(
    connection: socket.socket, descriptors: int = 0
) -> tuple[int, list[bytearray], list[int]]:
    """Return the next message: its kind, its frames, and at most so many descriptors.

    Raises:
        EOFError: the other side has gone.
    """
    head, taken, _, _ = socket.recv_fds(connection, _HEAD.size, descriptors)
    if not head:
        raise EOFError
    head += _exactly(connection, _HEAD.size - len(head))
    kind, count = _HEAD.unpack(head)
    sizes = _SIZE.iter_unpack(_exactly(connection, _SIZE.size * count))
    return kind, [_exactly(connection, size) for (size,) in sizes], taken


def _exactly(connection: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    while view.nbytes:
        count = connection.recv_into(view)
        if not count:
            raise EOFError
        view = view[count:]
    return data
