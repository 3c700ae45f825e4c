"""Where a server is, and who one is there; a place is shown without its secrets."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field, replace
from typing import Self
from urllib.parse import SplitResult, unquote, urlsplit

from typing_extensions import override

from pparallel.errors import ConfigError

DEFAULT = "redis://localhost:6379/0"
_PORT = 6379
_KINDS = "redis://host:6379/0, rediss://host:6379/0 (with TLS) or unix:///path/of/socket"


@dataclass(frozen=True)
class Place:
    """An address, with what to say there.

    Attributes:
        host: a name or number; empty where ``path`` or ``name`` stands instead.
        port: of TCP.
        path: of a Unix socket.
        service: the name by which sentinels know the master, where they are asked for it.
        is_encrypted: whether TLS is spoken.
        database: which one.
        username: who one is there.
        password: and how that is proved.
    """

    host: str = ""
    port: int = _PORT
    path: str = ""
    service: str = ""
    is_encrypted: bool = False
    database: int = 0
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)

    @override
    def __str__(self) -> str:
        if self.service:
            return f"the sentinels' service {self.service!r}"
        return self.path or (f"[{self.host}]" if ":" in self.host else self.host) + f":{self.port}"

    def having(
        self, username: str | None, password: str | None, is_encrypted: bool, database: int | None
    ) -> Self:
        """Return this place with what was given besides.

        Raises:
            ConfigError: it contradicts what is there.
        """
        both = [
            name
            for name, mine, given in (
                ("username", self.username, username),
                ("password", self.password, password),
                ("database", self.database or None, database),
            )
            if mine is not None and given is not None and mine != given
        ]
        if both:
            raise _refused(
                f"the url and the option {both[0]!r} say different things: leave one out"
            )
        if is_encrypted and self.path:
            raise _refused("a Unix socket has no TLS: leave the option 'tls' out")
        return replace(
            self,
            username=self.username if username is None else username,
            password=self.password if password is None else password,
            is_encrypted=self.is_encrypted or is_encrypted,
            database=self.database if database is None else database,
        )

    def check_protection(self, *, has_certificate: bool) -> None:
        """Refuse to reach another machine in the open, or without proof of who one is.

        Raises:
            ConfigError: it would.
        """
        if self.path or self.service or _is_this_machine(self.host):
            return
        missing = [] if self.is_encrypted else ["TLS (url: rediss://..., or the option 'tls')"]
        if self.password is None and not has_certificate:
            missing.append("a password")
        if missing:
            raise _refused(
                f"{self} is another machine, and is not reached without {' and '.join(missing)};"
                " allow_insecure: true does without, where nobody else is on the network"
            )


def parsed(url: str, port: int = _PORT) -> Place:
    """Return where *url* leads; its password is in no message.

    Raises:
        ConfigError: it leads nowhere.
    """
    try:
        parts = urlsplit(url)
        found = parts.port or port
    except ValueError:
        raise _refused(f"the url is none; it has to look like {_KINDS}") from None
    if parts.scheme not in ("redis", "rediss", "unix"):
        raise _refused(f"the url has to begin like one of {_KINDS}")
    if parts.query or parts.fragment:
        raise _refused("a url has no '?' and '#' (in a password write %3F and %23): give options")
    user, password = _unquoted(parts.username), _unquoted(parts.password)
    if parts.scheme == "unix":
        if parts.hostname or not parts.path:
            raise _refused("the url of a Unix socket has three slashes: unix:///path/of/socket")
        return Place(path=unquote(parts.path), username=user, password=password)
    return Place(
        host=parts.hostname or "localhost",
        port=found,
        is_encrypted=parts.scheme == "rediss",
        database=_database(parts),
        username=user,
        password=password,
    )


def service(name: str) -> Place:
    """Return the place that sentinels know under *name*."""
    return Place(service=name)


def _database(parts: SplitResult) -> int:
    number = parts.path.strip("/") or "0"
    if not (number.isascii() and number.isdigit()):
        raise _refused("what stands behind the port in a url is the number of a database")
    return int(number)


def _unquoted(text: str | None) -> str | None:
    return unquote(text) if text else None


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _refused(why: str) -> ConfigError:
    return ConfigError(f"the ordered server 'redis': {why}")
