from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pparallel.errors import ClosedError
from pparallel.runtime.versioned_store import VersionedStore, Waiter

KEYS = st.sampled_from(["a", "b"])
VERSIONS = st.integers(1, 4)
MAYBE = st.none() | VERSIONS


class StoreMachine(RuleBasedStateMachine):
    """The store against lists of (version, value), one operation at a time."""

    depth = 2

    def __init__(self) -> None:
        super().__init__()
        self.store = VersionedStore(self.depth)
        self.model: dict[str, list[tuple[int, bytes]]] = {}
        self.waiters: list[tuple[Waiter, str, int | None]] = []
        self.due: list[tuple[Waiter, int]] = []
        self.pushes = 0

    @rule(key=KEYS, version=VERSIONS, follows=st.booleans(), prev_version=MAYBE)
    def push(self, key: str, version: int, follows: bool, prev_version: int | None) -> None:
        held = self.model.get(key)
        if follows and held:
            prev_version = held[-1][0]
        self.pushes += 1
        value = f"{self.pushes}".encode()
        accepted = held is None or held[-1][0] == prev_version
        assert self.store.push(key, [value], version, prev_version) == accepted
        if accepted:
            kept = [each for each in held or [] if each[0] != version]
            self.model[key] = [*kept, (version, value)][-self.depth :]
            self._wake(key, version)

    @rule(key=KEYS, version=MAYBE)
    def pull(self, key: str, version: int | None) -> None:
        held = self.model.get(key, [])
        fits = [each for each in held if version in (None, each[0])]
        found = self.store.pull(key, version)
        assert (found and (found.version, found.buffers[0])) == (fits[-1] if fits else None)

    @rule(key=KEYS, version=MAYBE)
    def wait(self, key: str, version: int | None) -> None:
        waiter = self.store.wait(key, version, owner="somebody")
        held = self.model.get(key)
        if held and held[-1][0] != version:
            self.due.append((waiter, held[-1][0]))
        else:
            self.waiters.append((waiter, key, version))

    @rule()
    def withdraw(self) -> None:
        if self.waiters:
            self.store.withdraw(self.waiters.pop()[0])

    @rule(key=KEYS)
    def delete(self, key: str) -> None:
        assert self.store.delete(key) == (self.model.pop(key, None) is not None)

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        assert sorted(self.store.keys()) == sorted(self.model)
        for key, held in self.model.items():
            assert self.store.versions(key) == [version for version, _ in held]

    @invariant()
    def wakes_whom_it_should(self) -> None:
        assert self.store.waiting() == len(self.waiters)
        assert not any(waiter.future.done() for waiter, _, _ in self.waiters)
        assert all(waiter.future.result(0).version == version for waiter, version in self.due)

    def _wake(self, key: str, version: int) -> None:
        woken = [each for each in self.waiters if each[1] == key and each[2] != version]
        self.waiters = [each for each in self.waiters if each not in woken]
        self.due += [(waiter, version) for waiter, _, _ in woken]


StoreMachine.TestCase.settings = settings(max_examples=30, stateful_step_count=30, database=None)
TestStore = StoreMachine.TestCase


def test_dismissing_ends_the_waiters_of_one_owner() -> None:
    store = VersionedStore(1)
    mine, other = store.wait("a", None, "me"), store.wait("a", None, "you")
    store.dismiss("me", ClosedError("it"))
    with pytest.raises(ClosedError):
        mine.future.result(0)
    assert not other.future.done()
    assert store.push("a", [b"x"], 1, None)
    assert other.future.result(0).version == 1


def test_a_waiter_that_asks_for_more_in_its_callback() -> None:
    store = VersionedStore(1)
    seen: list[Any] = []

    def again(future: Any) -> None:
        seen.append(future.result().version)
        if len(seen) < 3:
            store.wait("a", seen[-1], "me").future.add_done_callback(again)
            store.push("a", [b""], seen[-1] + 1, seen[-1])

    store.wait("a", None, "me").future.add_done_callback(again)
    assert store.push("a", [b""], 1, None)
    assert seen == [1, 2, 3]
