"""The ordered server in a file against a model of it, one operation at a time."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Hashable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from sqlite_programs import server_at
from typing_extensions import override

from pparallel.interfaces.ordered_server import OrderedServer
from pparallel_servers.sqlite import values

KEYS = st.sampled_from(["a", b"a", 1, ("a", (1,))])
VERSIONS = st.sampled_from([1, 2, "1", b"", (1, "x"), 1 << 70])
MAYBE = st.none() | VERSIONS
SIZES = st.sampled_from([0, 1, values.INLINE, values.PIECE - 100, values.PIECE + 1])
WHICH = st.integers(0, 1)
DEPTH = 3


class FileMachine(RuleBasedStateMachine):
    """Two servers of one file, now and then closed and opened, against lists."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = ExitStack()
        self.path = Path(self.folder.enter_context(tempfile.TemporaryDirectory()), "values.db")
        self.open = [ExitStack(), ExitStack()]
        self.servers: list[OrderedServer] = []
        self.model: dict[Hashable, list[tuple[Hashable, Any]]] = {}
        self.pushes = 0

    @initialize()
    def begin(self) -> None:
        self.servers = [self._opened(which) for which in (0, 1)]

    @rule(
        which=WHICH,
        key=KEYS,
        version=VERSIONS,
        follows=st.booleans(),
        prev_version=MAYBE,
        size=SIZES,
    )
    def push(
        self,
        which: int,
        key: Hashable,
        version: Hashable,
        follows: bool,
        prev_version: Hashable | None,
        size: int,
    ) -> None:
        held = self.model.get(key)
        if follows and held:
            prev_version = held[-1][0]
        self.pushes += 1
        value = [self.pushes, bytes([self.pushes % 256]) * size]
        accepted = held is None or held[-1][0] == prev_version
        assert self.servers[which].push(key, value, version, prev_version) == accepted
        if accepted:
            kept = [each for each in held or [] if each[0] != version]
            self.model[key] = [*kept, (version, value)][-DEPTH:]

    @rule(which=WHICH, key=KEYS, version=MAYBE)
    def pull(self, which: int, key: Hashable, version: Hashable | None) -> None:
        fits = [each for each in self.model.get(key, []) if version in (None, each[0])]
        found = self.servers[which].pull(key, version)
        assert found == ((fits[-1][1], fits[-1][0]) if fits else None)

    @rule(which=WHICH, key=KEYS, version=MAYBE)
    def pull_what_is_new(self, which: int, key: Hashable, version: Hashable | None) -> None:
        held = self.model.get(key)
        found = self.servers[which].wait(key, version, timeout=0)
        is_new = held is not None and held[-1][0] != version
        assert found == ((held[-1][1], held[-1][0]) if held and is_new else None)

    @rule(which=WHICH, key=KEYS)
    def delete(self, which: int, key: Hashable) -> None:
        assert self.servers[which].delete(key) == (self.model.pop(key, None) is not None)

    @rule(which=WHICH)
    def open_again(self, which: int) -> None:
        self.open[which].close()
        self.servers[which] = self._opened(which)

    @rule(first=WHICH)
    def open_both_again(self, first: int) -> None:
        for which in (first, 1 - first):
            self.open[which].close()
        assert os.listdir(self.path.parent) == [self.path.name]
        self.begin()

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        for server in self.servers:
            assert sorted(map(repr, server.keys())) == sorted(map(repr, self.model))
            for key, held in self.model.items():
                assert server.versions(key) == [version for version, _ in held]

    @override
    def teardown(self) -> None:
        for each in (*self.open, self.folder):
            each.close()

    def _opened(self, which: int) -> OrderedServer:
        # Of different options, so that they share no connections.
        options: dict[str, Any] = {"version_depth": DEPTH, "synchronous": "normal"}
        server = server_at(self.path, poll=1 + which, **options)
        return self.open[which].enter_context(server)


FileMachine.TestCase.settings = settings(max_examples=8, stateful_step_count=30, database=None)
TestFile = FileMachine.TestCase
