"""Requests and replies that are lost, late, or come twice: what runs, and what is answered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import pytest

from pparallel.errors import CallTimeoutError, PeerLostError
from pparallel.interfaces.transport import TransportConfig
from pparallel.runtime.rpc import RpcGroup
from pparallel.testing.chaos import chaotic
from pparallel.testing.patience import PATIENCE
from pparallel.testing.threads import in_threads
from pparallel.testing.transport.base import Run, TransportTests, first_member
from pparallel.testing.transport.called import (
    Holder,
    add_and_note,
    add_listed,
    fail,
    note,
    noted,
    read_ref,
)

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


@first_member
def sent_again(group: RpcGroup, count: int) -> None:
    group.rpc_sync(1, registered, args=(group,), idempotent=True)

    def call(thread: int) -> list[int]:
        arguments = [(2 * count * thread + n, thread) for n in range(2 * count)]
        futures = [
            group.rpc_async(1, add_and_note, args=each, idempotent=True)
            for each in arguments[:count]
        ]
        at_once = [
            group.registered_sync("add", args=each, idempotent=True) for each in arguments[count:]
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


def registered(group: RpcGroup) -> None:
    group.register("add", add_and_note)


@first_member
def not_sent_again(group: RpcGroup, count: int) -> None:
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


def never_answered(rt: Runtime) -> None:
    group = rt.group()
    group.barrier(PATIENCE)
    if rt.rank == 0:
        with pytest.raises(CallTimeoutError, match=r"0\.3 s"):
            group.rpc_sync(1, note, timeout=0.3, args=(1,), idempotent=True)
    group.barrier(PATIENCE)
    assert rt.rank == 0 or noted() == [1]


class FaultTests(TransportTests):
    """Tests of the RPC layer above the transport, with faults put between the two."""

    @pytest.fixture
    def faulty(self, config: TransportConfig) -> Callable[..., TransportConfig]:
        return partial(chaotic, config, seed=5, retry_after=0.02, delay_at_most=0.01)

    @pytest.mark.parametrize("fault", FAULTS)
    def test_what_is_lost_is_sent_again(
        self, run: Run, faulty: Callable[..., TransportConfig], fault: str
    ) -> None:
        run(sent_again, 20, transport=faulty(**FAULTS[fault]))

    def test_nothing_runs_twice(self, run: Run, faulty: Callable[..., TransportConfig]) -> None:
        run(not_sent_again, 60, transport=faulty(**FAULTS["all"]))
        for fault in ("drop_reply", "fail_running"):
            run(never_answered, transport=faulty(**{fault: 1.0}))
