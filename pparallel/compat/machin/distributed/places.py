"""Where the members of a world meet: what its init methods say."""

from __future__ import annotations

import ipaddress
import socket
from typing import NamedTuple
from urllib.parse import urlsplit

from typing_extensions import override

from pparallel.errors import ConfigError
from pparallel.runtime import environment


class Place(NamedTuple):
    """A port of the machine of rank 0.

    Attributes:
        option: the parameter that says it.
        host: that machine, by its address.
        port: the port.
        taken: whether another listens there: torchrun, where it keeps a store.
    """

    option: str
    host: str
    port: int
    taken: bool = False

    @classmethod
    def parse(cls, method: str, option: str) -> Place:
        """Return what an init method says.

        Raises:
            ConfigError: it is of a kind that torch knows and this does not, or names no host.
        """
        if method == "env://":
            return cls._of_environment(option)
        parts = urlsplit(method)
        try:
            port = parts.port
        except ValueError:
            port = None
        if parts.scheme != "tcp" or not parts.hostname or not port:
            message = (
                f"members cannot meet at {method!r}: write tcp://HOST:PORT, the same in all of "
                "them; env:// takes both from MASTER_ADDR and MASTER_PORT"
            )
            raise ConfigError(message, path=option)
        return cls(option, _numeric(parts.hostname, option), port)

    @property
    def is_near(self) -> bool:
        """Whether only this machine can be meant."""
        return ipaddress.ip_address(self.host).is_loopback

    @override
    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp://{host}:{self.port}"

    @classmethod
    def _of_environment(cls, option: str) -> Place:
        host, port = environment.master()
        if host is None or port is None:
            message = "env:// needs MASTER_ADDR and MASTER_PORT: set them, or write tcp://HOST:PORT"
            raise ConfigError(message, path=option)
        found = environment.torchrun()
        taken = found is not None and found.keeps_store
        return cls(option, _numeric(host, option), port, taken)


def _numeric(host: str, option: str) -> str:
    """Return the address of *host*: ZeroMQ binds to no name."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        message = f"there is no host {host!r}: {error.strerror}"
        raise ConfigError(message, path=option) from None
    found.sort(key=lambda each: each[0] != socket.AF_INET)
    address = str(found[0][4][0]).partition("%")[0]
    if ipaddress.ip_address(address).is_unspecified:
        message = f"{host!r}: write the address by which the others reach rank 0"
        raise ConfigError(message, path=option)
    return address
