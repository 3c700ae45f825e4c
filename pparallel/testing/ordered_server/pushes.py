"""What a push needs, and what is held after it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import pytest

from pparallel.interfaces.ordered_server import OrderedServer, OrderedServerConfig
from pparallel.testing.ordered_server.base import DEPTH, OrderedServerTests
from pparallel.testing.patience import PATIENCE
from pparallel.testing.suite import changed

#: keys and versions that are all different, however much they look alike
NAMES: list[Hashable] = [
    *("", "1", "(1,)", "b'1'", "ключ \0 '\""),
    *(0, 1, -1, 2**70),
    *(b"", b"1", b"\xff\0"),
    *((), (1,), ("1",), (b"1",), ((1,),), ("a", 1, (b"b", -2))),
]


class PushTests(OrderedServerTests):
    """Compare and push."""

    def test_a_push_needs_the_newest_version(self, server: OrderedServer) -> None:
        assert server.push("k", "one", 1, None)
        assert not server.push("k", "x", 2, None)
        assert not server.push("k", "x", 2, 7)
        assert server.pull("k") == ("one", 1)
        assert server.push("k", "two", 2, 1)
        assert not server.push("k", "x", 3, 1)
        assert server.pull("k") == ("two", 2)

    def test_a_new_key_accepts_any_previous_version(self, server: OrderedServer) -> None:
        assert server.push("none", 1, 1, None)
        assert server.push("some", 2, 9, 8)
        assert server.pull("some") == (2, 9)
        assert server.delete("some")
        assert server.push("some", 3, 1, 70)

    def test_the_same_version_overwrites(self, server: OrderedServer) -> None:
        assert server.push("k", "old", 1, None)
        assert server.push("k", "new", 1, 1)
        assert server.pull("k") == ("new", 1)
        assert server.versions("k") == [1]

    def test_an_older_held_version_becomes_the_newest(self, server: OrderedServer) -> None:
        for version in (1, 2, 3):
            assert server.push("k", version, version, version - 1)
        assert server.push("k", "again", 2, 3)
        assert server.versions("k") == [1, 3, 2]
        assert server.pull("k") == ("again", 2)
        assert server.push("k", 4, 4, 2)
        assert server.versions("k") == [3, 2, 4]

    def test_holds_the_newest_versions(self, server: OrderedServer) -> None:
        for version in range(1, DEPTH + 3):
            assert server.push("k", f"v{version}", version, version - 1)
        held = list(range(3, DEPTH + 3))
        assert server.versions("k") == held
        assert [server.pull("k", version) for version in held] == [(f"v{n}", n) for n in held]
        assert server.pull("k", 2) is None

    def test_holds_one_version_by_default(
        self, config: OrderedServerConfig, build: Callable[..., OrderedServer]
    ) -> None:
        with build(changed(config, version_depth=1)) as server:
            assert server.push("k", "a", 1, None)
            assert server.push("k", "b", 2, 1)
            assert server.versions("k") == [2]
            assert server.pull("k", 1) is None

    def test_versions_are_compared_by_value(self, server: OrderedServer) -> None:
        def one() -> Hashable:
            return tuple([1, "x"])  # noqa: C409 - a new object each time

        assert server.push("k", "a", one(), None)
        assert server.push("k", "b", "".join("two"), one())
        assert server.pull("k", one()) == ("a", (1, "x"))
        assert server.wait("k", "".join("two"), timeout=0) is None
        assert not server.push("k", "c", 3, one())

    def test_what_cannot_be_a_version_or_key(self, server: OrderedServer) -> None:
        with pytest.raises(ValueError, match="cannot be None"):
            server.push("k", 1, None, None)
        with pytest.raises(TypeError, match="must be hashable"):
            server.push("k", 1, [1], None)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="must be hashable"):
            server.push(["k"], 1, 1, None)  # type: ignore[arg-type]
        assert server.keys() == []
        assert server.push("k", 1, 1, None)
        for unhashable in ([1], (1, [1])):
            _refuses(server, unhashable, TypeError, "must be hashable")
        nan = float("nan")
        for unequal in (nan, (nan,), (1, ("a", nan)), frozenset([nan])):
            _refuses(server, unequal, ValueError, "must be equal to itself")
        assert server.keys() == ["k"]
        assert server.versions("k") == [1]
        assert server.push("k", 2, 2, 1)

    def test_keys_are_listed_and_deleted(self, server: OrderedServer) -> None:
        assert server.pull("a") is None
        assert server.versions("a") == []
        assert server.push("a", 1, 1, None)
        assert server.push("a", 2, 2, 1)
        assert server.push(("b", 2), 1, 1, None)
        assert sorted(server.keys(), key=str) == [("b", 2), "a"]
        assert server.delete("a")
        assert not server.delete("a")
        assert server.keys() == [("b", 2)]
        assert server.versions("a") == []
        assert [server.pull("a", version) for version in (None, 1, 2)] == [None] * 3
        assert server.wait("a", timeout=0) is None

    def test_keys_and_versions_of_all_kinds(self, server: OrderedServer) -> None:
        for key in NAMES:
            assert server.push(key, [repr(key), "old"], key, None)
            assert server.push(key, [repr(key)], (key, "next"), key)
        assert sorted(server.keys(), key=repr) == sorted(NAMES, key=repr)
        for key in NAMES:
            assert server.pull(key) == ([repr(key)], (key, "next"))
            assert server.pull(key, key) == ([repr(key), "old"], key)
            assert server.versions(key) == [key, (key, "next")]
            assert server.delete(key)
        assert server.keys() == []

    def test_what_is_listed_is_the_callers_own(self, server: OrderedServer) -> None:
        assert server.push("k", "a", 1, None)
        server.keys().append("other")
        server.versions("k").append(2)
        assert server.keys() == ["k"]
        assert server.versions("k") == [1]


def _refuses(server: OrderedServer, wrong: Any, error: type[Exception], message: str) -> None:
    """Give *wrong* for each key and version that there is."""
    pushes: list[tuple[Any, ...]] = [(wrong, 2, 2, 1), ("k", 2, wrong, 1), ("k", 2, 2, wrong)]
    for push in pushes:
        with pytest.raises(error, match=message):
            server.push(*push)
    for key, version in ((wrong, None), ("k", wrong)):
        with pytest.raises(error, match=message):
            server.pull(key, version)
        for timeout in (0, PATIENCE):
            with pytest.raises(error, match=message):
                server.wait(key, version, timeout)
    with pytest.raises(error, match=message):
        server.versions(wrong)
    with pytest.raises(error, match=message):
        server.delete(wrong)
