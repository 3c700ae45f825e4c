"""Public and secret keys of a job's members."""

from __future__ import annotations

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

SECRET, PUBLIC = "secret", "public:"


def fresh(names: Sequence[str]) -> dict[str, dict[str, SecretStr]]:
    """Return new keys for members *names*: each one's own, by name.

    Each has the secret half of a pair for CURVE and the public halves of all.
    """
    pairs = {name: zmq.curve_keypair() for name in names}
    publics = {PUBLIC + name: SecretStr(pair[0].decode()) for name, pair in pairs.items()}
    return {name: {SECRET: SecretStr(pair[1].decode()), **publics} for name, pair in pairs.items()}


class Keyring:
    """The keys that one member has; nothing of it is ever shown.

    Attributes:
        secret: the secret half of its pair.
        publics: the public half of each member's pair, by name.
        owners: whose public key it is, by its 32 bytes.
    """

    def __init__(self, names: Sequence[str], keys: Mapping[str, SecretStr]) -> None:
        """Take out the keys.

        Args:
            names: those of all members.
            keys: as :func:`fresh` makes them.

        Raises:
            ConfigError: one is missing, or is none.
        """
        self.secret = _curve(keys, SECRET)
        self.publics = {name: _curve(keys, PUBLIC + name) for name in names}
        self.owners = {z85.decode(key): name for name, key in self.publics.items()}
        if len(self.owners) != len(names):
            raise ConfigError("two members have the same public key: write new keys")


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
        return Keyring(member.names, keys)
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
    return Keyring(member.names, found)


def _curve(keys: Mapping[str, SecretStr], name: str) -> bytes:
    try:
        key = keys[name].get_secret_value()
    except KeyError:
        message = f"the keys lack {name!r}: write them for all members with 'pparallel keys new'"
        raise ConfigError(message) from None
    try:
        is_key = len(key) == 40 and len(z85.decode(key.encode())) == 32
    except (ValueError, KeyError, struct.error):
        is_key = False
    if not is_key:
        raise ConfigError(f"{name!r} is no key of CURVE: write new ones with 'pparallel keys new'")
    return key.encode()
