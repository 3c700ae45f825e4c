"""What is looked at before a server is used."""

from __future__ import annotations

import logging

from pparallel.errors import ConfigError
from pparallel_redis.config import RedisOrderedServerConfig
from pparallel_redis.keys import Keys
from pparallel_redis.lane import Lanes
from pparallel_redis.scripts import DELETE, PUSH
from pparallel_redis.wire import ReplyError, Wire

logger = logging.getLogger(__name__)

FORMAT = b"1"  #: of what the keys hold; raised when an older pparallel-redis could not read it


def check(lanes: Lanes, config: RedisOrderedServerConfig, serializer: str, path: str) -> None:
    """See that the server can be used as it is, and that its values can be read.

    Raises:
        ConfigError: it is a cluster, throws values away, or holds those of another serializer.
        AuthenticationError: it refuses.
        RedisLostError: it cannot be reached.
    """
    keys = Keys(config.namespace)
    with lanes.lent() as lane:
        about = lanes.run(lane, lambda wire, _: _about(wire))
        _check_kind(about, config, path)
        found = lanes.run(lane, lambda wire, _: _prepared(wire, keys, serializer.encode()))
    _check_values(found, config.namespace, serializer, path)


def _about(wire: Wire) -> dict[str, str]:
    """Return what the server tells of itself."""
    try:
        text = bytes(wire.ask(b"INFO")).decode("utf-8", "replace")
    except ReplyError as error:
        if error.code != "NOPERM":
            raise
        logger.warning(
            "The server's user may not ask INFO: whether it throws values away when its memory is"
            " full (maxmemory-policy) is not known"
        )
        return {}
    pairs = (line.partition(":") for line in text.splitlines())
    return {name: value for name, _, value in pairs}


def _check_kind(about: dict[str, str], config: RedisOrderedServerConfig, path: str) -> None:
    if about.get("cluster_enabled") == "1":
        message = (
            "this server is a node of a Redis Cluster, which is not supported: give a single one"
        )
        raise ConfigError(message, path=path)
    policy = about.get("maxmemory_policy", "")
    takes_ours = policy.startswith("allkeys") or (
        policy.startswith("volatile") and config.ttl is not None
    )
    if takes_ours and about.get("maxmemory", "0") != "0" and not config.allow_eviction:
        message = (
            f"when its memory is full this server throws values away (maxmemory-policy {policy}),"
            " pushes that it has acknowledged too; set 'maxmemory-policy noeviction' there, or"
            " write allow_eviction: true"
        )
        raise ConfigError(message, path=path)
    if about.get("aof_enabled") == "0":
        logger.info(
            "The server keeps no append-only file: what is pushed is lost if it ends"
            " (appendonly yes, appendfsync always)"
        )


def _prepared(wire: Wire, keys: Keys, serializer: bytes) -> dict[bytes, bytes]:
    """Do each once of what a push does, and return what is known of the namespace."""
    for script in (PUSH, DELETE):
        wire.ask(b"SCRIPT", b"LOAD", script.text)
    wire.ask(b"PUBLISH", keys.probe, b"")
    wire.ask(b"HSETNX", keys.about, b"format", FORMAT)
    wire.ask(b"HSETNX", keys.about, b"serializer", serializer)
    format_, written_by = wire.ask(b"HMGET", keys.about, b"format", b"serializer")
    return {b"format": format_, b"serializer": written_by}


def _check_values(found: dict[bytes, bytes], namespace: str, serializer: str, path: str) -> None:
    if found[b"format"] != FORMAT:
        message = (
            f"the namespace {namespace!r} was written by another version of pparallel-redis"
            f" (format {found[b'format']!r}, this one has {FORMAT!r}): use that, or give another"
            " namespace"
        )
        raise ConfigError(message, path=f"{path}.namespace")
    written_by = found[b"serializer"].decode("utf-8", "replace")
    if written_by != serializer:
        message = (
            f"the namespace {namespace!r} holds values written by the serializer {written_by!r},"
            f" and this one reads with {serializer!r}: write serializer: {{backend: {written_by}}}"
            " (and trusted: true if that one may run code, and you trust all who can write to the"
            " server), or give another namespace"
        )
        raise ConfigError(message, path=f"{path}.serializer")
