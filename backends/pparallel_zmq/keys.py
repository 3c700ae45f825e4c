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

from pparallel.errors import AuthenticationError, CallTimeoutError, ConfigError
from pparallel.runtime import key_files
from pparallel.runtime.exchange import Exchange
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

    Args:
        me: the member's name.
        names: those of all members.
        keys: as :func:`fresh` makes them.
        shared: whether keys that two members share are among them, which Unix sockets ask for.

    Attributes:
        me: the member's name.
        secret: the secret half of its pair.
        publics: the public half of each member's pair, by name.
        owners: whose public key it is, by its 32 bytes.
    """

    def __init__(
        self, me: str, names: Sequence[str], keys: Mapping[str, SecretStr], *, shared: bool = True
    ) -> None:
        """Take out the keys.

        Raises:
            ConfigError: one is missing, or is none.
        """
        self.me = me
        self.secret = _curve(_found(keys, SECRET), SECRET)
        self.publics = {name: _curve(_found(keys, PUBLIC + name), PUBLIC + name) for name in names}
        others = [name for name in names if name != me and shared]
        self._shared = {name: _found(keys, SHARED + name).encode() for name in others}
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


def keyring(
    config: ZmqTransportConfig, member: Member, exchange: Exchange | None
) -> Keyring | None:
    """Return the keys of *member*, None if it is to open without.

    Args:
        config: of the transport.
        member: which it is.
        exchange: where the members that torchrun starts meet.

    Raises:
        ConfigError: it has none, and is not allowed to do without.
        CallTimeoutError: a member that torchrun starts did not leave its public key in time.
        AuthenticationError: another process has left one in this member's name.
    """
    if isinstance(config.keys, str):
        keys: Mapping[str, SecretStr] = key_files.read(Path(config.keys), member.name)
    else:
        keys = config.keys or member.keys
    if keys:
        return Keyring(member.name, member.names, keys)
    if config.allow_insecure:
        return None
    if exchange is not None:
        return _exchanged(config, member, exchange)
    message = (
        "zmq opens only with keys: launch the members with pparallel.launch(), which gives them "
        "fresh ones; or write some with 'pparallel keys new' and set transport.keys; or, where "
        "whoever reaches the address may run code, set transport.allow_insecure: true"
    )
    raise ConfigError(message)


def _exchanged(config: ZmqTransportConfig, member: Member, exchange: Exchange) -> Keyring:
    """Make a pair, and leave its public half for the others; the secret one leaves no process.

    Whoever can write to the store can pass for a member: a key from a file is no such key.
    """
    public, secret = zmq.curve_keypair()
    exchange.put(f"zmq-{PUBLIC}{member.rank}", public)
    missing = {f"zmq-{PUBLIC}{rank}": name for rank, name in enumerate(member.names)}
    found = {SECRET: SecretStr(secret.decode())}
    timeout = config.rendezvous_timeout
    for place, key in exchange.arrivals(list(missing), timeout, lambda: False):
        found[PUBLIC + missing.pop(place)] = SecretStr(key.decode(errors="replace"))
    if missing:
        raise CallTimeoutError(f"the arrival of {', '.join(missing.values())}", timeout)
    if found[PUBLIC + member.name].get_secret_value() != public.decode():
        message = f"another process is {member.name!r} in torchrun's store, or has written there"
        raise AuthenticationError(message)
    return Keyring(member.name, member.names, found, shared=False)


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
