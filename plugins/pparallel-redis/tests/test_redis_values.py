"""Keys, versions and values as Redis holds them, and what is refused."""

from __future__ import annotations

import enum
import itertools
import logging
import os
import threading
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from redis_servers import RedisServer, running

import pparallel
from pparallel.errors import ConfigError, SerializationError
from pparallel.interfaces.ordered_server import OrderedServer
from pparallel.interfaces.serializer import SerializerConfig
from pparallel.testing.patience import PATIENCE, until
from pparallel_redis import RedisOrderedServerConfig, records
from pparallel_redis.naming import decode, encode
from pparallel_redis.scripts import LONGER

names = st.recursive(
    st.text(st.characters(codec=None)) | st.integers() | st.binary(),
    lambda inner: st.lists(inner, max_size=4).map(tuple),
)


class Colour(enum.IntEnum):
    RED = 3


class Point(NamedTuple):
    x: int
    y: str


# -- names ---------------------------------------------------------------------------------------


@settings(max_examples=50)
@given(names)
def test_a_name_comes_back(name: Hashable) -> None:
    assert decode(encode("a key", name)) == name


@settings(max_examples=50)
@given(names, names)
@example("1", 1)
@example(("a", "b"), ("ab",))
@example((), ((),))
@example(b"a", "a")
def test_equal_names_and_only_they_are_equal_bytes(one: Hashable, other: Hashable) -> None:
    assert (encode("a key", one) == encode("a key", other)) == (one == other)


def test_subclasses_are_what_they_derive_from() -> None:
    for name, plain in ((Colour.RED, 3), (True, 1), (Point(1, "y"), (1, "y"))):
        assert encode("a key", name) == encode("a key", plain)
        assert type(decode(encode("a key", name))) is type(plain)


@settings(max_examples=50)
@given(st.binary(max_size=40))
@example(b"t999999999:")
@example(b"s-1:abc")
@example(b"s5:abc")
@example(b"i;")
@example(b"t1:" * 2000 + b"i1;")
def test_foreign_bytes_are_refused(data: bytes) -> None:
    try:
        name = decode(data)
    except ValueError:
        return
    assert decode(encode("a key", name)) == name


def test_what_cannot_be_a_name(redis_config: RedisOrderedServerConfig) -> None:
    uses: list[Callable[[OrderedServer, Hashable], object]] = [
        lambda server, name: server.push(name, 1, 1, None),
        lambda server, name: server.push("k", 1, name, None),
        lambda server, name: server.push("k", 1, 1, name),
        lambda server, name: server.pull(name),
        lambda server, name: server.wait("k", name, 0),
        lambda server, name: server.versions(name),
        lambda server, name: server.delete(name),
    ]
    names: list[Hashable] = [1.5, ("a", None), frozenset(), (1, (2, 3.0))]
    with pparallel.build(redis_config) as server:
        for use, name in itertools.product(uses, names):
            with pytest.raises(TypeError, match="must be a str, int, bytes or a tuple of these"):
                use(server, name)
        assert server.keys() == []


def test_a_name_nested_too_deeply() -> None:
    name: tuple[Any, ...] = ()
    for _ in range(51):
        name = (name,)
    with pytest.raises(ValueError, match="nested 50 deep, and no deeper"):
        encode("a key", name)


def test_names_are_legible_to_others(redis_server: RedisServer, namespace: str) -> None:
    with pparallel.build(redis_server.config(namespace)) as server, redis_server.peek() as peek:
        assert server.push(("model", 1), b"v", 1, None)
        assert peek.exists(f"{{{namespace}}}:k:t2:s5:modeli1;")


def test_namespaces_see_nothing_of_one_another(redis_server: RedisServer) -> None:
    spaces = ["n*", "n", "n:k", "na", "n[a]", "n?", "n\\", "ключ"]
    servers = [pparallel.build(redis_server.config(each)) for each in spaces]
    for number, server in enumerate(servers):
        server.open()
        assert server.push(("k", number), number, 1, None)
    for number, server in enumerate(servers):
        assert server.keys() == [("k", number)]
        server.close()


def test_many_keys_are_all_listed(redis_config: RedisOrderedServerConfig) -> None:
    with pparallel.build(redis_config) as server:
        for number in range(1500):
            assert server.push(number, b"", 1, None)
        assert server.keys() == sorted(range(1500), key=lambda each: encode("a key", each))


# -- values --------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(st.lists(st.binary(max_size=40), max_size=6), st.integers(1, 20))
def test_what_is_cut_is_whole(buffers: list[bytes], piece: int) -> None:
    before = records.PIECE
    records.PIECE = piece
    try:
        pieces = records.cut(memoryview(each) for each in buffers)
    finally:
        records.PIECE = before
    sizes = [sum(map(len, each)) for each in pieces]
    assert b"".join(each for piece in pieces for each in piece) == b"".join(buffers)
    assert all(size == piece for size in sizes[:-1])
    assert all(0 < size <= piece for size in sizes)


def test_values_of_every_size(redis_config: RedisOrderedServerConfig) -> None:
    with pparallel.build(redis_config) as server:
        for size in (0, 1, 16_000, 16_384, 16_385, 65_536, 1_000_000):
            value = [bytes(range(256)) * (size // 256) + b"!" * (size % 256), "x" * size]
            assert server.push(size, value, 1, None)
            assert server.pull(size) == (value, 1)


def test_values_in_many_pieces(
    redis_server: RedisServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr(records, "PIECE", 10_000)
    value = {"a": torch.arange(10_000), "b": torch.arange(7), "c": torch.ones(33_333)}
    config = redis_server.config(namespace, version_depth=2)
    with pparallel.build(config) as server, redis_server.peek() as peek:
        for version in range(1, 4):
            assert server.push("k", {**value, "version": version}, version, version - 1)
        found = server.pull("k", 2)
        assert found is not None
        assert found[0].pop("version") == 2
        assert all(torch.equal(found[0][name], each) for name, each in value.items())
        one = len(peek.keys(f"{{{namespace}}}:x:*")) // 2
        assert one > 20
        assert not server.push("k", value, 9, 8)
        assert len(peek.keys(f"{{{namespace}}}:x:*")) == 2 * one, "what is refused stays nowhere"
        assert server.push("k", b"small", 3, 3)
        assert len(peek.keys(f"{{{namespace}}}:x:*")) == one
        assert server.delete("k")
        left = [each.decode().split(":")[1] for each in peek.keys(f"{{{namespace}}}:*")]
        assert sorted(set(left)) == ["about", "l"]


def test_pieces_that_are_gone_are_no_empty_value(redis_server: RedisServer, namespace: str) -> None:
    with pparallel.build(redis_server.config(namespace)) as server, redis_server.peek() as peek:
        assert server.push("k", bytes(100_000), 1, None)
        peek.delete(*peek.keys(f"{{{namespace}}}:x:*"))
        with pytest.raises(OSError, match="has lost its pieces"):
            server.pull("k")
        assert server.push("k", b"new", 2, 1)


def test_what_others_wrote_is_refused(redis_server: RedisServer, namespace: str) -> None:
    with pparallel.build(redis_server.config(namespace)) as server, redis_server.peek() as peek:
        for record in (b"", b"?", b"i\xff\xff\xff\xff", b"x" + b"a" * 33, b"i\1\0\0\0" + b"\1" * 8):
            peek.hset(f"{{{namespace}}}:k:s1:k", mapping={"n": b"i1;", "r": record})
            with pytest.raises(OSError, match="a value is damaged, or was written by something"):
                server.pull("k")
        peek.hset(
            f"{{{namespace}}}:k:s1:k",
            mapping={"n": b"i1;", "r": b"i\1\0\0\0\3" + b"\0" * 7 + b"abc"},
        )
        with pytest.raises(SerializationError):
            server.pull("k")


# -- options -------------------------------------------------------------------------------------


def test_what_is_not_pushed_for_long_is_forgotten(
    redis_server: RedisServer, namespace: str
) -> None:
    ours = f"{{{namespace}}}:[kx]:*"
    lasting = redis_server.config(namespace, ttl=1000, version_depth=2)
    with pparallel.build(lasting) as server, redis_server.peek() as peek:
        assert server.push("k", bytes(50_000), 1, None)
        assert server.push("k", bytes(50_000), 2, 1)
        left = [peek.pttl(each) for each in peek.keys(ours)]
        assert len(left) == 3
        assert all(900_000 < each <= 1_000_000 + LONGER for each in left)
    with pparallel.build(redis_server.config(namespace)) as server, redis_server.peek() as peek:
        assert server.push("k", bytes(50_000), 3, 2)
        assert [peek.pttl(each) for each in peek.keys(ours)] == [-1, -1]
        assert server.delete("k")
    brief = redis_server.config(namespace, ttl=0.1)
    with pparallel.build(brief) as server, redis_server.peek() as peek:
        assert server.push("k", bytes(50_000), 1, None)
        until(lambda: server.pull("k") is None, "it is not forgotten")
        assert server.keys() == []
        until(lambda: not peek.keys(ours), "the pieces stay")


def test_a_key_that_expires_is_waited_for_again(redis_server: RedisServer, namespace: str) -> None:
    with (
        pparallel.build(redis_server.config(namespace, ttl=0.05)) as brief,
        pparallel.build(redis_server.config(namespace)) as server,
    ):
        assert brief.push("k", 1, 1, None)
        until(lambda: brief.keys() == [], "it is not forgotten")
        pusher = threading.Timer(0.05, server.push, args=("k", 2, 1, 70))
        pusher.start()
        assert brief.wait("k", timeout=PATIENCE) == (2, 1)
        pusher.join()


def test_what_may_run_code_needs_trust(redis_server: RedisServer, namespace: str) -> None:
    pickles = pparallel.load(SerializerConfig, {"backend": "pickle"})
    with pytest.raises(ConfigError, match=r"^ordered_server.serializer: .*trusted: true"):
        pparallel.build(redis_server.config(namespace, serializer=pickles))
    with pparallel.build(redis_server.config(namespace, serializer=pickles, trusted=True)) as one:
        assert one.push("k", 1, 1, None)
    with pytest.raises(ConfigError, match="values written by the serializer 'pickle'"):
        pparallel.build(redis_server.config(namespace)).open()


def test_an_extra_component_is_named_where_it_stands(redis_server: RedisServer) -> None:
    extra = {
        "interface": "ordered_server",
        "backend": "redis",
        "url": redis_server.unix,
        "serializer": {"backend": "pickle"},
    }
    with (
        pparallel.build({"extra": {"store": extra}}) as rt,
        pytest.raises(ConfigError, match=r"^extra.store.serializer: "),
    ):
        rt["store"]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"url": "localhost"}, "begin like one of redis://"),
    ({"url": "redis://localhost:99999"}, "it has to look like redis://"),
    ({"url": "redis://localhost/one"}, "is the number of a database"),
    ({"url": "redis://localhost/1", "database": 2}, "the option 'database' say"),
    ({"url": "redis://localhost?db=1"}, "no '\\?' and '#'"),
    ({"url": "unix://path"}, "three slashes"),
    ({"url": "unix:///p", "tls": {}}, "a Unix socket has no TLS"),
    ({"url": "redis://h", "sentinel": {"addresses": ["h"], "service": "s"}}, "either a url or"),
    ({"sentinel": {"addresses": [], "service": "s"}}, "sentinel.addresses"),
    ({"sentinel": {"addresses": ["h"]}}, "sentinel.service"),
    ({"sentinel": {"addresses": ["h:x"], "service": "s"}}, "has to look like"),
    ({"namespace": "a}b"}, "a namespace has no braces"),
    ({"namespace": ""}, "namespace"),
    ({"ttl": 0}, "ttl"),
    ({"timeout": 0}, "timeout"),
    ({"min_replicas": -1}, "min_replicas"),
    ({"host": "h"}, "unknown key 'host'"),
    ({"tls": {"cafile": "x"}}, "unknown key 'cafile'"),
]


def test_options_that_are_refused() -> None:
    for options, message in REFUSED:
        with pytest.raises(ConfigError, match=message):
            RedisOrderedServerConfig(**options)


def test_databases_are_apart(redis_server: RedisServer, namespace: str) -> None:
    with pparallel.build(redis_server.config(namespace)) as zero:
        url = f"{redis_server.tcp}/3"
        with pparallel.build(redis_server.config(namespace, url=url)) as three:
            assert three.push("k", 3, 1, None)
            assert zero.keys() == []
        with pparallel.build(redis_server.config(namespace, database=3)) as again:
            assert again.pull("k") == (3, 1)


def test_a_database_that_is_not_there(redis_server: RedisServer) -> None:
    with pytest.raises(ConfigError, match=r"DB index .* The option 'database'"):
        pparallel.build(redis_server.config(database=99)).open()


def test_a_server_that_throws_values_away_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with running("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru") as redis_server:
        with pytest.raises(ConfigError, match=r"maxmemory-policy allkeys-lru.*noeviction"):
            pparallel.build(redis_server.config()).open()
        with pparallel.build(redis_server.config(allow_eviction=True)) as server:
            assert server.keys() == []


@pytest.mark.parametrize("size", [10_000, 1_000_000])
def test_a_server_whose_memory_is_full(size: int) -> None:
    with (
        running("--maxmemory", "8mb") as redis_server,
        pparallel.build(redis_server.config(version_depth=1000)) as server,
    ):
        versions: list[int] = []
        with pytest.raises(MemoryError, match=r"[^.]\. Its memory.* nothing was changed"):
            fill(server, size, versions)
        lanes = redis_server.peek_at("{tests}:l:*")
        for _ in range(5):
            with pytest.raises(MemoryError):
                server.push("other", bytes(size), 1, None)
        assert redis_server.peek_at("{tests}:l:*") == lanes, "a refusal spoils no connection"
        assert server.versions("k") == versions
        assert server.pull("k", versions[0]) == (bytes(size), versions[0])
        assert server.pull("k") == (bytes(size), versions[-1])
        assert server.delete("k"), "there is a way out"
        until(lambda: is_pushed(server), "the memory is not given back")


def is_pushed(server: OrderedServer) -> bool:
    """Push; what was deleted is given back a little later."""
    with suppress(MemoryError):
        return server.push("k", "new", 1, None)
    return False


def fill(server: OrderedServer, size: int, versions: list[int]) -> None:
    """Push until it is refused; *versions* are those that were stored."""
    for version in range(2000):
        assert server.push("k", bytes(size), version, version - 1)
        versions.append(version)


def test_a_server_without_a_file_is_told_of(
    redis_config: RedisOrderedServerConfig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with pparallel.build(redis_config):
        pass
    assert "appendonly yes" in caplog.text


# -- forks ---------------------------------------------------------------------------------------


def test_a_fork_uses_connections_of_its_own(redis_config: RedisOrderedServerConfig) -> None:
    with pparallel.build(redis_config) as server:
        assert server.push("k", 0, 0, None)
        assert server.wait("k", 0, 0.01) is None, "the listener runs"
        children = []
        for number in range(3):
            if not (pid := os.fork()):
                found = server.wait("k", number, PATIENCE)
                done = found is not None and server.push(("child", number), found[0], 1, None)
                os._exit(0 if done else 1)
            children.append(pid)
            assert server.push("k", number + 1, number + 1, number)
        assert [os.waitpid(each, 0)[1] for each in children] == [0] * 3
        assert len(server.keys()) == 4
        assert server.pull("k") == (3, 3)
