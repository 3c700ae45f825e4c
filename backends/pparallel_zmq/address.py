"""Where members meet: TCP ports, and Unix sockets in private directories."""

from __future__ import annotations

import ipaddress
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import zmq
from typing_extensions import override

from pparallel.errors import CallTimeoutError, ConfigError
from pparallel.runtime.exchange import Exchange
from pparallel.runtime.job_folder import JobFolder
from pparallel.runtime.member import Member
from pparallel_zmq.config import ZmqTransportConfig

TORCHRUN = "torchrun://"  #: scheme of the store of those that torchrun starts

_FORMS = "tcp://HOST:PORT, ipc:///a/private/directory/name, or ipc"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a member is met.

    Attributes:
        host: its machine; empty for a Unix socket.
        port: the port there; 0: one that is free.
        path: the path of a Unix socket; empty: none has been chosen, or it is a port.
    """

    host: str = ""
    port: int = 0
    path: str = ""

    @classmethod
    def parse(cls, text: str) -> Address:
        """Return what *text* means.

        Raises:
            ConfigError: nothing that members could meet at.
        """
        scheme, there, rest = text.partition("://")
        if not there:
            scheme, rest = ("ipc", "") if text == "ipc" else ("tcp", text)
        if scheme == "ipc":
            if rest and not rest.startswith("/"):
                raise ConfigError(f"{text!r}: write the whole path of a Unix socket, from / on")
            return cls(path=rest)
        host, _, port = rest.rpartition(":")
        if scheme != "tcp" or not host or not port.isdecimal() or int(port) > 65535:
            raise ConfigError(f"zmq cannot meet at {text!r}: write {_FORMS}")
        host = host.removeprefix("[").removesuffix("]")
        if host in ("*", "0.0.0.0", "::"):
            message = f"{text!r}: write the address by which the others reach the first member"
            raise ConfigError(message)
        return cls(host=host, port=int(port))

    @property
    def is_tcp(self) -> bool:
        """Whether it is a port, not a Unix socket."""
        return bool(self.host)

    @property
    def is_chosen(self) -> bool:
        """Whether others could be told of it."""
        return bool(self.port or self.path)

    @override
    def __str__(self) -> str:
        if not self.is_tcp:
            return f"ipc://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp://{host}:{self.port or '*'}"

    def of_another(self, member: Member, host: str | None) -> Address:
        """Return where *member* is to be met, if the first member is met here."""
        if not self.is_tcp:
            return Address(path=f"{self.path}.{member.rank}")
        return Address(host=host or facing(self.host, self.port))

    def prepare(self) -> None:
        """Make sure that a Unix socket is where nobody else gets at it.

        Raises:
            ConfigError: its directory is open to others, or its path is too long.
        """
        if self.is_tcp:
            return
        longest = zmq.IPC_PATH_MAX_LEN - 1
        if len(os.fsencode(self.path)) > longest:
            raise ConfigError(f"{self}: the path of a Unix socket has at most {longest} bytes")
        directory = Path(self.path).parent
        try:
            directory.mkdir(mode=0o700, exist_ok=True)
            found = directory.stat()
        except OSError as error:
            raise ConfigError(f"{self}: {error.strerror}: {str(directory)!r}") from None
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            message = (
                f"{self}: the directory is not this user's alone: "
                f"take another, or type 'chmod 700 {directory}'"
            )
            raise ConfigError(message)


def meeting_place(config: ZmqTransportConfig, member: Member) -> Address:
    """Return where *member* meets the others.

    Raises:
        ConfigError: it is said nowhere.
    """
    for text in (config.address, member.rendezvous or None):
        if text is not None and (found := Address.parse(text)).is_chosen:
            return found
    message = (
        f"{config.address!r} is for members that pparallel.launch() starts: where others start "
        f"them, give all the same one, as {_FORMS.rpartition(',')[0]}"
    )
    raise ConfigError(message, path="transport.address")


@contextmanager
def held(config: ZmqTransportConfig) -> Iterator[Address]:
    """Choose what the config leaves open, and keep it from others as long as this is open."""
    asked = Address.parse(config.address or "ipc")
    if asked.is_chosen:
        yield asked
    elif asked.is_tcp:
        with _port(asked.host) as port:
            yield Address(asked.host, port)
    else:
        with JobFolder() as folder:
            yield Address(path=str(folder.path / "zmq"))


@contextmanager
def _port(host: str) -> Iterator[int]:
    # Bound and not listening, it keeps the port from all that do not ask to share it; ZeroMQ does.
    family, *_, place = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, socket.SOCK_STREAM) as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(place)
        yield holder.getsockname()[1]


def facing(host: str, port: int) -> str:
    """Return the address of this machine from which it reaches *host*."""
    try:
        family, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as asking:
            asking.connect(place)  # sends nothing
            found = asking.getsockname()[0]
    except OSError as error:
        message = f"{host!r}, where the first member is, cannot be reached: {error.strerror}"
        raise ConfigError(message, path="transport.address") from None
    return str(ipaddress.ip_address(found.partition("%")[0]))


def torchrun_place(config: ZmqTransportConfig, member: Member, exchange: Exchange) -> Address:
    """Return where members that torchrun starts meet: the first leaves its address for the others.

    Whoever reaches the store can change what it says. Who has no keys gains nothing by it: members
    prove to one another who they are, wherever they meet.

    Raises:
        CallTimeoutError: it was not there in time.
        ConfigError: it is no address of a port, which the first member leaves.
    """
    if member.rank == 0:
        parts = urlsplit(member.rendezvous or "")
        return Address(config.host or facing(parts.hostname or "", parts.port or 0))
    for _, found in exchange.arrivals(["zmq"], config.rendezvous_timeout, lambda: False):
        place = Address.parse(found.decode(errors="replace"))
        if not place.is_tcp:
            raise ConfigError(
                f"zmq cannot meet at {str(place)!r}: torchrun's members meet at a port"
            )
        return place
    raise CallTimeoutError(f"the arrival of {member.names[0]}", config.rendezvous_timeout)
