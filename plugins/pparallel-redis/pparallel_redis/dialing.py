"""How a server is reached: by TCP, TLS or a Unix socket, directly or by asking sentinels."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from pydantic import SecretStr

from pparallel.errors import ConfigError, PparallelError
from pparallel_redis.config import RedisOrderedServerConfig, RedisTls
from pparallel_redis.faults import NOT_NOW, certificate, described, refusal
from pparallel_redis.places import Place
from pparallel_redis.wire import ReplyError, Wire

Connected = Callable[[Wire], object]


class NotYetError(ConnectionError):
    """The server is there and cannot do its work now; or the sentinels know none."""


def _nobody_cares(_: Wire) -> None:
    """Be told of a connection that nobody has to wake."""


@dataclass(frozen=True)
class Dialer:
    """Makes connections to one server, wherever it is by now.

    Attributes:
        place: the server's, or the service whose master it is.
        sentinels: who knows that.
        context: for TLS.
        config: the options.
    """

    place: Place
    sentinels: tuple[Place, ...]
    context: ssl.SSLContext | None
    config: RedisOrderedServerConfig

    def dial(self, connected: Connected = _nobody_cares) -> Wire:
        """Return a connection over which commands can be sent.

        Args:
            connected: told of each connection before anything is said over it, so that it can be
                woken; what it raises ends this.

        Raises:
            OSError: it cannot be reached now.
            PparallelError: it cannot be used, and will not be.
        """
        place = self._master(connected) if self.sentinels else self.place
        wire = self._connected(place)
        with ExitStack() as undo:
            undo.callback(wire.close)
            connected(wire)
            self._greet(wire, place)
            if self.sentinels:
                _check_master(wire, place)
            wire.limit(self.config.timeout)
            undo.pop_all()
        return wire

    def _master(self, connected: Connected) -> Place:
        """Return where the master is, as the first of the sentinels says that answers."""
        said = []
        for each in self.sentinels:
            try:
                found = self._asked(each, connected)
            except (OSError, ReplyError) as error:
                if isinstance(error, PparallelError):
                    raise
                said.append(f"{each}: {described(error)}")
                continue
            if found is not None:
                place = replace(self.place, service="", host=found[0], port=found[1])
                if not self.config.allow_insecure:
                    has_certificate = bool(self.config.tls and self.config.tls.cert_file)
                    place.check_protection(has_certificate=has_certificate)
                return place
            said.append(f"{each}: it knows no master of that name")
        message = f"no sentinel tells where the master is ({'; '.join(said)})"
        raise NotYetError(message)

    def _asked(self, sentinel: Place, connected: Connected) -> tuple[str, int] | None:
        wire = self._connected(sentinel)
        try:
            connected(wire)
            self._greet(wire, sentinel)
            name = self.place.service.encode()
            found = wire.ask(b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", name)
        finally:
            wire.close()
        return None if found is None else (found[0].decode(), int(found[1]))

    def _connected(self, place: Place) -> Wire:
        timeout = min(self.config.connect_timeout, self.config.timeout)
        if place.path:
            plain = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                plain.settimeout(timeout)
                plain.connect(place.path)
            except BaseException:
                plain.close()
                raise
            return Wire(plain, timeout)
        plain = socket.create_connection((place.host, place.port), timeout)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            connected = plain if self.context is None else self._encrypted(plain, place)
        except BaseException:
            plain.close()
            raise
        return Wire(connected, timeout)

    def _greet(self, wire: Wire, place: Place) -> None:
        try:
            _greet(wire, place)
        except TimeoutError:
            raise
        except (ssl.SSLError, ConnectionError) as error:
            # What a server thinks of our certificate comes after what seemed to be a success.
            if self.context is None or isinstance(error, NotYetError):
                raise
            if isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or ""):
                raise certificate(place, error) from error
            message = (
                "it ended TLS at once, as one does that asks for a certificate and is given none"
                " or the wrong one (tls.cert_file)"
            )
            raise ConnectionResetError(message) from error

    def _encrypted(self, plain: socket.socket, place: Place) -> socket.socket:
        assert self.context is not None
        tls = self.config.tls
        name = (tls.server_name if tls else None) or place.host
        try:
            return self.context.wrap_socket(plain, server_hostname=name)
        except ssl.SSLCertVerificationError as error:
            raise certificate(place, error) from error
        except ssl.SSLEOFError:
            raise
        except ssl.SSLError as error:
            raise certificate(place, error) from error


def dialer(config: RedisOrderedServerConfig) -> Dialer:
    """Return what reaches the server of *config*.

    Raises:
        ConfigError: a certificate or a key cannot be read.
    """
    place, sentinels = config.places()
    context = _context(config.tls or RedisTls()) if place.is_encrypted else None
    return Dialer(place, sentinels, context, config)


def _context(tls: RedisTls) -> ssl.SSLContext:
    def loaded(option: str, load: Callable[[], Any]) -> Any:
        try:
            return load()
        except OSError as error:  # ssl's own are some, too
            message = f"the ordered server 'redis': tls.{option} cannot be used: {error}"
            raise ConfigError(message) from error

    context = loaded("ca_file", lambda: ssl.create_default_context(cafile=tls.ca_file))
    assert isinstance(context, ssl.SSLContext)
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.cert_file is not None:
        loaded(
            "cert_file",
            lambda: context.load_cert_chain(
                str(tls.cert_file), tls.key_file, _password(tls.key_password)
            ),
        )
    return context


def _password(secret: SecretStr | None) -> Callable[[], str]:
    # A function always: without one OpenSSL would ask at the terminal.
    return lambda: secret.get_secret_value() if secret is not None else ""


def _greet(wire: Wire, place: Place) -> None:
    """Say who one is, and which database is meant."""
    try:
        if place.password is not None or place.username is not None:
            user = [] if place.username is None else [place.username.encode()]
            wire.ask(b"AUTH", *user, (place.password or "").encode())
        if place.database:
            wire.ask(b"SELECT", b"%d" % place.database)
    except ReplyError as error:
        if error.code in NOT_NOW:
            raise NotYetError(str(error)) from error
        raise refusal(place, error) from error


def _check_master(wire: Wire, place: Place) -> None:
    """Refuse a server that was the master until now, or is yet to be it."""
    try:
        role = wire.ask(b"ROLE")
    except ReplyError as error:
        raise NotYetError(str(error)) from error
    if role[0] != b"master":
        message = f"{place} is a {role[0].decode('utf-8', 'replace')}, and not the master"
        raise NotYetError(message)
