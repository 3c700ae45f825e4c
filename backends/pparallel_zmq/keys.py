"""Who is who: the keys of a job's members."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import zmq
from pydantic import SecretStr
from zmq.utils import z85

from pparallel.errors import ConfigError
from pparallel.runtime import key_files
from pparallel.runtime.member import Member
from pparallel_zmq.config import ZmqTransportConfig

SECRET, PUBLIC, SHARED = "secret", "public:", "shared:"


def fresh(names: Sequence[str]) -> dict[str, dict[str, SecretStr]]:
    """Return new keys for members *names*: each one's own, by name.

    Each has the secret half of a pair for CURVE and the public halves of all; and with each other
    member a key that these two share, to know one another by where nothing need be encrypted.
    """
    pairs = {name: zmq.curve_keypair() for name in names}
    keys = {name: {SECRET: SecretStr(pairs[name][1].decode())} for name in names}
    for number, one in enumerate(names):
        for other in names:
            keys[one][PUBLIC + other] = SecretStr(pairs[other][0].decode())
        for other in names[number + 1 :]:
            shared = SecretStr(secrets.token_hex(32))
            keys[one][SHARED + other] = keys[other][SHARED + one] = shared
    return keys


class Keyring:
    """The keys that one member has; nothing of it is ever shown.

    Attributes:
        me: the member's name.
        secret: the secret half of its pair.
        publics: the public half of each member's pair, by name.
        owners: whose public key it is, by its 32 bytes.
    """

    def __init__(self, me: str, names: Sequence[str], keys: Mapping[str, SecretStr]) -> None:
        """Take out the keys.

        Raises:
            ConfigError: one is missing, or is none.
        """
        self.me = me
        self.secret = _curve(_found(keys, SECRET), SECRET)
        self.publics = {name: _curve(_found(keys, PUBLIC + name), PUBLIC + name) for name in names}
        self._shared = {name: _found(keys, SHARED + name).encode() for name in names if name != me}
        self.owners = {z85.decode(key): name for name, key in self.publics.items()}
        if len(self.owners) != len(names):
            raise ConfigError("two members have the same public key: write new keys")

    def password(self, client: str, server: str) -> str:
        """Return what member *client* says to *server* to be let in."""
        return self._digest(client, server, b"client")

    def proof(self, client: str, server: str, challenge: bytes) -> bytes:
        """Return what member *server* answers to the challenge of *client*."""
        return self._digest(client, server, b"server" + challenge).encode()

    def admits(self, client: str, password: bytes) -> bool:
        """Return whether *password* is what member *client* would say to this one."""
        if client not in self._shared:
            return False
        return hmac.compare_digest(self.password(client, self.me).encode(), password)

    def _digest(self, client: str, server: str, what: bytes) -> str:
        shared = self._shared[server if client == self.me else client]
        text = b"\0".join((b"pparallel zmq 1", client.encode(), server.encode(), what))
        return hmac.new(shared, text, hashlib.sha256).hexdigest()


def keyring(config: ZmqTransportConfig, member: Member) -> Keyring | None:
    """Return the keys of *member*, None if it is to open without.

    Raises:
        ConfigError: it has none, and is not allowed to do without.
    """
    if isinstance(config.keys, str):
        keys: Mapping[str, SecretStr] = key_files.read(Path(config.keys), member.name)
    else:
        keys = config.keys or member.keys
    if keys:
        return Keyring(member.name, member.names, keys)
    if config.allow_insecure:
        return None
    message = (
        "zmq opens only with keys: launch the members with pparallel.launch(), which gives them "
        "fresh ones; or write some with 'pparallel keys new' and set transport.keys; or, where "
        "whoever reaches the address may run code, set transport.allow_insecure: true"
    )
    raise ConfigError(message)


def _found(keys: Mapping[str, SecretStr], name: str) -> str:
    try:
        return keys[name].get_secret_value()
    except KeyError:
        message = f"the keys lack {name!r}: write them for all members with 'pparallel keys new'"
        raise ConfigError(message) from None


def _curve(key: str, name: str) -> bytes:
    try:
        is_key = len(key) == 40 and len(z85.decode(key.encode())) == 32
    except (ValueError, KeyError, struct.error):
        is_key = False
    if not is_key:
        raise ConfigError(f"{name!r} is no key of CURVE: write new ones with 'pparallel keys new'")
    return key.encode()
