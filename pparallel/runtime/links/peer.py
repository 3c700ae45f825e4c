"""Who is at the other end of a Unix socket, as the kernel says it."""

from __future__ import annotations

import os
import socket
import struct

from pparallel.errors import AuthenticationError

_CREDENTIALS = struct.Struct("3i")  #: pid, uid, gid


def peer(sock: socket.socket) -> int:
    """Return the process at the other end.

    Raises:
        AuthenticationError: it is another user's.
    """
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, _ = _CREDENTIALS.unpack(raw)
    if user not in (os.geteuid(), 0):
        message = f"process {pid} of user {user} is not let in: members are of user {os.geteuid()}"
        raise AuthenticationError(message)
    return int(pid)
