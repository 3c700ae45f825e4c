"""What the ordered server ``redis`` is told."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, SecretStr, field_validator, model_validator

from pparallel.config import Config
from pparallel.errors import ConfigError
from pparallel.interfaces.ordered_server import OrderedServerConfig
from pparallel.interfaces.serializer import SerializerConfig
from pparallel_redis.places import DEFAULT, Place, parsed, service


def _text(value: Any) -> Any:
    """Refuse what is no text without showing it: it may be a secret."""
    if value is None or isinstance(value, str | SecretStr):
        return value
    message = (
        "the ordered server 'redis': a url, user name or password must be text, and one of them"
        f" is of type {type(value).__name__}: put it in quotes"
    )
    raise ConfigError(message)


Secret = Annotated[SecretStr, BeforeValidator(_text)]


class RedisTls(Config, frozen=True):
    """How the connection is encrypted, and who has to prove what.

    Attributes:
        ca_file: certificates of the authorities that are believed, as PEM; by default the system's.
        cert_file: this side's certificate, as PEM, where the server asks for one.
        key_file: its key; by default in the same file.
        key_password: what the key is encrypted with.
        verify: check that the server's certificate is good and that its name is the address's.
            Without it anybody between here and the server can read and change everything.
        server_name: the name that the certificate has to bear; by default the address's host.
    """

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    key_password: Secret | None = None
    verify: bool = True
    server_name: str | None = None


class RedisSentinel(Config, frozen=True):
    """The sentinels that know which server is the master now.

    Attributes:
        addresses: of the sentinels, ``host:port``; the port is 26379 where none is given.
        service: the name under which they watch the master.
        username: of the sentinels' own users.
        password: of the sentinels themselves, which is not that of the server.
    """

    addresses: tuple[str, ...] = Field(min_length=1)
    service: str = Field(min_length=1)
    username: Secret | None = None
    password: Secret | None = None


class RedisOrderedServerConfig(OrderedServerConfig, frozen=True):
    """Values in a Redis server, for processes of any machines, now and later.

    Attributes:
        backend: selects this backend.
        url: of the server: ``redis://host:6379/0``, ``rediss://...`` with TLS, or
            ``unix:///path/of/socket``; a user name and a password may stand in it, as may the
            number of a database. By default ``redis://localhost:6379/0``.
        username: of the server's user; by default that of the url.
        password: by default that of the url.
        tls: how the connection is encrypted; given, it is.
        sentinel: asks sentinels where the master is, instead of a url's host.
        database: the number of a database; by default that of the url, or 0.
        namespace: what all keys in Redis begin with, in braces. Servers with other namespaces see
            nothing of one another.
        serializer: what turns values into bytes; one that may run code needs ``trusted``.
        trusted: allow a serializer that may run code when it reads: everybody who can write to the
            server can then run code in whoever opens it.
        ttl: seconds after the last push to a key after which it is forgotten; ``None``: never.
        timeout: seconds for which the server may be silent, or away, before ``PeerLostError``.
        connect_timeout: seconds that one attempt to connect may take.
        min_replicas: how many replicas must have a push before it is acknowledged.
        allow_insecure: reach other machines without TLS or without a password.
        allow_eviction: use a server that may throw away values when its memory is full.
    """

    backend: Literal["redis"] = "redis"
    url: Secret | None = None
    username: Secret | None = None
    password: Secret | None = None
    tls: RedisTls | None = None
    sentinel: RedisSentinel | None = None
    database: int | None = Field(default=None, ge=0)
    namespace: str = Field(default="pparallel", min_length=1)
    serializer: SerializerConfig = Field(default={"backend": "safe"}, validate_default=True)
    trusted: bool = False
    ttl: float | None = Field(default=None, ge=0.001, le=1e9)
    timeout: float = Field(default=10.0, gt=0, le=1e6)
    connect_timeout: float = Field(default=5.0, gt=0, le=1e6)
    min_replicas: int = Field(default=0, ge=0)
    allow_insecure: bool = False
    allow_eviction: bool = False

    @field_validator("namespace")
    @classmethod
    def _refuse_braces(cls, value: str) -> str:
        if set(value) & set("{}"):
            message = (
                f"the ordered server 'redis': a namespace has no braces, and {value!r} has some"
            )
            raise ConfigError(message)
        return value

    @model_validator(mode="after")
    def _check_places(self) -> Self:
        self.places()
        return self

    def places(self) -> tuple[Place, tuple[Place, ...]]:
        """Return where the server is, and the sentinels.

        With sentinels the server's host and port are theirs to say, and empty here.

        Raises:
            ConfigError: the url is none, contradicts other options, or leads to another machine
                without protection.
        """
        if self.sentinel is None:
            place = parsed(_shown(self.url) or DEFAULT)
            sentinels: tuple[Place, ...] = ()
        elif self.url is not None:
            message = (
                "the ordered server 'redis': give either a url or sentinels; with sentinels write"
                " username, password, tls and database as options of their own"
            )
            raise ConfigError(message)
        else:
            place = service(self.sentinel.service)
            sentinels = tuple(self._sentinel(each) for each in self.sentinel.addresses)
        place = place.having(
            _shown(self.username), _shown(self.password), self.tls is not None, self.database
        )
        if not self.allow_insecure:
            for each in (place, *sentinels):
                each.check_protection(has_certificate=self._has_certificate)
        return place, sentinels

    @property
    def _has_certificate(self) -> bool:
        return self.tls is not None and self.tls.cert_file is not None

    def _sentinel(self, address: str) -> Place:
        assert self.sentinel is not None
        place = parsed(f"redis://{address}", port=26379)
        user, password = _shown(self.sentinel.username), _shown(self.sentinel.password)
        return place.having(user, password, self.tls is not None, None)


def _shown(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()
