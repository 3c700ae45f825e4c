"""Requests and replies that are lost, late, or come twice: what runs, and what is answered."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from pparallel.errors import CallTimeoutError, PeerLostError
from pparallel.interfaces.launcher import LauncherConfig
from pparallel.interfaces.transport import TransportConfig
from pparallel.testing.chaos import chaotic
from pparallel.testing.patience import PATIENCE, until
from pparallel.testing.threads import in_threads
from pparallel.testing.transport.base import TransportTests
from pparallel.testing.transport.called import (
    Holder,
    add,
    add_and_note,
    add_listed,
    count_kept_answers,
    fail,
    note,
    noted,
    read_ref,
)
from pparallel.testing.transport.groups import barriers, pairs_and_services, references

if TYPE_CHECKING:
    from pparallel.builder import Runtime

#: One fault alone, so that it shows which is not survived, and all together.
FAULTS: dict[str, dict[str, float]] = {
    "request lost": {"drop_request": 0.2},
    "reply lost": {"drop_reply": 0.2},
    "failed while running": {"fail_running": 0.2},
    "twice": {"duplicate": 0.5},
    "all": {
        "drop_request": 0.1,
        "drop_reply": 0.1,
        "fail_running": 0.1,
        "duplicate": 0.3,
        "delay": 0.3,
    },
}


def sent_again(rt: Runtime, count: int) -> None:
    group = rt.group()
    if rt.rank == 1:
        group.register("add", add_and_note)
    group.barrier(PATIENCE)
    if rt.rank == 0:

        def call(thread: int) -> list[int]:
            first = 2 * count * thread
            arguments = [(first + n, thread) for n in range(2 * count)]
            futures = [
                group.rpc_async(1, add_and_note, args=each, idempotent=True)
                for each in arguments[:count]
            ]
            at_once = [
                group.registered_sync("add", args=each, idempotent=True)
                for each in arguments[count:]
            ]
            return [future.wait() for future in futures] + at_once

        expected = [(n, n // (2 * count)) for n in range(3 * 2 * count)]
        answers = [answer for answers in in_threads(3, call) for answer in answers]
        assert answers == [n + thread for n, thread in expected]
        ref = group.remote(1, Holder, args=(5,), idempotent=True)
        assert group.rpc_sync(1, read_ref, args=(ref,), idempotent=True).value == 5
        with pytest.raises(LookupError, match="far away"):
            group.rpc_sync(1, fail, args=("far away",), idempotent=True)
        ran = group.rpc_sync(1, noted, idempotent=True)
        assert sorted(ran) == expected, "not every call was run exactly once"
    group.barrier(PATIENCE)


def answers_are_forgotten(rt: Runtime, count: int) -> None:
    group = rt.group()
    if rt.rank == 1:
        group.register("kept", count_kept_answers)
    group.barrier(PATIENCE)
    if rt.rank == 0:
        for n in range(count):
            large = group.rpc_sync(1, bytes, args=(1000 * n,), idempotent=True)
            is_whole = large == bytes(1000 * n)
            assert is_whole, f"call {n} has another result"  # which pytest must not list
        until(lambda: group.registered_sync("kept") == 0, "answers that had come were kept")
    group.barrier(PATIENCE)


def not_sent_again(rt: Runtime, count: int) -> None:
    group = rt.group()
    group.barrier(PATIENCE)
    if rt.rank == 0:
        errors: list[BaseException | None] = []
        for start in range(0, count, 4):
            numbers = range(start, start + 4)
            # Each list goes by itself, so that the seed's faults meet the same calls each time.
            futures = [group.rpc_async(1, add_listed, timeout=0.3, args=([n, 0],)) for n in numbers]
            errors += [future.exception(PATIENCE) for future in futures]
        assert {type(each) for each in errors} == {type(None), CallTimeoutError, PeerLostError}
        ran = Counter(n for n, _ in group.rpc_sync(1, noted, idempotent=True))
        assert max(ran.values()) == 1, "a call ran twice"
        answered = {n for n, error in enumerate(errors) if error is None}
        assert answered < set(ran) < set(range(count))
    group.barrier(PATIENCE)


def never_answered(rt: Runtime) -> None:
    group = rt.group()
    group.barrier(PATIENCE)
    if rt.rank == 0:
        with pytest.raises(CallTimeoutError, match=r"0\.3 s"):
            group.rpc_sync(1, note, timeout=0.3, args=(1,), idempotent=True)
    group.barrier(PATIENCE)
    assert rt.rank == 0 or noted() == [1]


def system_requests(rt: Runtime) -> None:
    pairs_and_services(rt)
    references(rt)
    assert rt.group().rpc_sync(0, add, args=(1, 2)) == 3
    barriers(rt, 5)


class FaultTests(TransportTests):
    """Tests of the RPC layer above the transport, with faults put between the two."""

    def _faulty(self, config: TransportConfig, **options: Any) -> TransportConfig:
        return chaotic(config, seed=5, retry_after=0.02, delay_at_most=0.01, **options)

    @pytest.mark.parametrize("fault", FAULTS)
    def test_what_is_lost_is_sent_again(
        self, config: TransportConfig, launcher: LauncherConfig, fault: str
    ) -> None:
        faulty = self._faulty(config, **FAULTS[fault])
        assert self.launch(launcher, faulty, 2, sent_again, 20) == [None] * 2

    def test_answers_are_forgotten(self, config: TransportConfig, launcher: LauncherConfig) -> None:
        assert self.launch(launcher, config, 2, answers_are_forgotten, 100) == [None] * 2

    def test_nothing_runs_twice(self, config: TransportConfig, launcher: LauncherConfig) -> None:
        faulty = self._faulty(config, **FAULTS["all"])
        assert self.launch(launcher, faulty, 2, not_sent_again, 60) == [None] * 2
        for fault in ("drop_reply", "fail_running"):
            faulty = self._faulty(config, **{fault: 1.0})
            assert self.launch(launcher, faulty, 2, never_answered) == [None] * 2

    def test_the_system_does_nothing_twice(
        self, config: TransportConfig, launcher: LauncherConfig
    ) -> None:
        faulty = self._faulty(config, duplicate=0.5, harm="everything")
        assert self.launch(launcher, faulty, 3, system_requests) == [None] * 3
