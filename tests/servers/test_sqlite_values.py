"""Keys, versions and values of the ordered server in a file, and the room that they take."""

from __future__ import annotations

import enum
import sqlite3
import threading
from collections import namedtuple
from collections.abc import Hashable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlite_programs import server_at

from pparallel.interfaces.ordered_server import OrderedServer
from pparallel.runtime.naming import DEPTH, decode, encode
from pparallel.testing.threads import in_threads
from pparallel_servers.sqlite import log, values


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "values.db"


@pytest.fixture
def server(path: Path) -> Iterator[OrderedServer]:
    with server_at(path, version_depth=3) as server:
        yield server


# -- keys and versions ------------------------------------------------------------------------

Point = namedtuple("Point", "x y")


class Color(enum.IntEnum):
    RED = 1


plain = st.recursive(
    st.integers() | st.booleans() | st.text() | st.binary() | st.characters(categories=["Cs"]),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
)


@settings(max_examples=40)
@given(plain, plain)
def test_equal_names_and_only_those_are_equal_bytes(one: Hashable, other: Hashable) -> None:
    assert (encode("a key", one) == encode("a key", other)) == (one == other)
    assert decode(encode("a key", one)) == one


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (1, Color.RED),
        ((1, 2), Point(1, 2)),
        ("a", type("Text", (str,), {})("a")),
        (10**40, 10**40 + 0),
    ],
)
def test_names_that_are_equal(server: OrderedServer, one: Hashable, other: Hashable) -> None:
    assert server.push(one, "x", other, None)
    assert server.pull(other, one) == ("x", one)
    found = server.keys()
    assert found == [one]
    assert type(found[0]) is type(one)


def test_names_that_differ(server: OrderedServer) -> None:
    names = ["", 0, b"", (), "0", b"0", (0,), ((),), "\ud800", -1, 255, -256, 256, -128, 128]
    for each in names:
        assert server.push(each, repr(each), 1, None)
    for each in names:
        assert server.pull(each) == (repr(each), 1)
    assert sorted(map(repr, server.keys())) == sorted(map(repr, names))


@pytest.mark.parametrize("name", [1.0, frozenset("a"), ("a", (2.5,)), ("a", None)])
def test_names_that_a_file_cannot_hold(server: OrderedServer, name: Hashable) -> None:
    message = "of this server must be a str, int, bytes or a tuple of these, and "
    for use in (
        lambda: server.push(name, 1, 1, None),
        lambda: server.push("k", 1, name, None),
        lambda: server.push("k", 1, 1, name),
        lambda: server.pull("k", name),
        lambda: server.wait(name),
        lambda: server.versions(name),
        lambda: server.delete(name),
    ):
        with pytest.raises(TypeError, match=message):
            use()
    assert server.keys() == []


def test_names_that_are_nested_too_deeply(server: OrderedServer) -> None:
    name: Any = ()
    for _ in range(DEPTH):
        name = (name,)
    assert server.push(name, 1, 1, None)
    assert server.keys() == [name]
    with pytest.raises(ValueError, match=f"nested {DEPTH} deep"):
        server.push((name,), 1, 1, None)


# -- values -----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [values.INLINE, values.PIECE, 3 * values.PIECE])
def test_values_of_any_size(server: OrderedServer, size: int) -> None:
    import numpy

    for each in (size - 1, size, size + 1):
        value = [bytes(each), numpy.arange(each, dtype=numpy.uint8), b"end"]
        assert server.push("k", value, each, each - 1)
        found = server.pull("k")
        assert found is not None
        assert found[0][::2] == value[::2]
        assert (found[0][1] == value[1]).all()


def test_a_large_state(path: Path) -> None:
    import torch

    size = 8 << 20
    state = {f"layer-{n}": torch.rand(size // 4 // 10) for n in range(10)}
    with server_at(path, version_depth=2) as server:
        for version in range(1, 4):
            assert server.push("model", state, version, version - 1)
        into = {name: torch.zeros_like(each) for name, each in state.items()}
        assert server.pull("model", into=into) == (into, 3)
        assert all(torch.equal(each, into[name]) for name, each in state.items())
        assert server.versions("model") == [2, 3]


def test_the_file_does_not_grow_for_ever(path: Path) -> None:
    value = bytes(1 << 20)
    with server_at(path, version_depth=2) as server:
        for version in range(1, 40):
            assert server.push("k", value, version, version - 1)
        assert server.delete("k")
        for version in range(1, 5):
            assert server.push(("another", version), value, 1, None)
        sizes = {each.name: each.stat().st_size for each in path.parent.iterdir()}
    assert sizes["values.db"] < 6 * len(value), sizes
    assert sum(sizes.values()) < 20 * len(value), sizes
    assert [each.name for each in path.parent.iterdir()] == ["values.db"]


def test_the_log_stays_short_though_there_is_always_a_reader(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "LONGEST", 1 << 20)
    done = threading.Event()

    def read() -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            while not done.is_set():
                connection.execute("BEGIN")
                connection.execute("SELECT count(*) FROM held").fetchone()
                done.wait(0.003)
                connection.execute("COMMIT")

    def push(server: OrderedServer) -> int:
        longest = 0
        for version in range(1, 60):
            assert server.push("k", bytes(300_000), version, version - 1)
            longest = max(longest, Path(f"{path}-wal").stat().st_size)
        done.set()
        return longest

    with server_at(path, synchronous="normal") as server:
        longest = in_threads(4, lambda n: read() if n else push(server))[0]
    assert longest is not None
    assert longest < 10 << 20, "18 MB were pushed, and the log begins anew after 1"
