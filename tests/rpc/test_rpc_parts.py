"""Pieces below the RPC layer, each on its own."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future

import pytest
from exhausted import no_threads
from typing_extensions import override

from pparallel.errors import (
    CallTimeoutError,
    ClosedError,
    PeerLostError,
    PparallelError,
    ResourceExhaustedError,
    WorkerLostError,
)
from pparallel.runtime.future import LeanFuture, fail, settle
from pparallel.runtime.pending import Pending, awaited


@pytest.fixture
def pending() -> Iterator[Pending[str]]:
    pending: Pending[str] = Pending("the test")
    yield pending
    pending.close()
    assert len(pending) == 0


def test_requests_expire_each_in_its_time(pending: Pending[str]) -> None:
    later = pending.add("a", 60)
    slow = pending.add("a", 0.15)
    quick = pending.add("a", 0.02)
    never = pending.add("a", None)
    with pytest.raises(CallTimeoutError, match=r"'a' was not answered within 0\.02 s"):
        quick.result(10)
    with pytest.raises(TimeoutError):
        slow.result(10)
    again = pending.add("a", 0.01)
    with pytest.raises(CallTimeoutError):
        again.result(10)
    assert not later.done()
    assert not never.done()
    later.set_result("in time")
    never.set_result("late")
    assert len(pending) == 0


def test_a_lost_peer_fails_its_requests_only(pending: Pending[str]) -> None:
    a, b = pending.add("a", None), pending.add("b", None)
    pending.lose("a", "died")
    with pytest.raises(PeerLostError, match="member 'a' died"):
        a.result(10)
    assert not b.done()
    with pytest.raises(PeerLostError):
        pending.add("a", None)


def test_each_future_of_a_lost_member_fails_with_an_error_of_its_own(pending: Pending[str]) -> None:
    futures = [pending.add("other", None) for _ in range(3)]
    pending.lose("other", "died")
    errors = [each.exception(10) for each in futures]
    assert {type(each) for each in errors} == {PeerLostError}
    assert len({id(each) for each in errors}) == 3


def test_time_outs_that_had_no_thread_are_kept_as_soon_as_there_is_one(
    pending: Pending[str],
) -> None:
    with no_threads("pparallel-timers"), pytest.raises(ResourceExhaustedError):
        pending.add("a", 0.01)
    assert len(pending) == 0
    with pytest.raises(CallTimeoutError):
        pending.add("a", 0.01).result(10)


def test_a_reply_at_the_last_moment_is_returned() -> None:
    class Late(LeanFuture[int]):
        @override
        def result(self, timeout: float | None = None) -> int:
            try:
                return super().result(0)
            finally:
                if not self.done():
                    self.set_result(3)

    assert awaited(Late(), "a", 0.01) == 3


def test_closing_fails_everything(pending: Pending[str]) -> None:
    futures = [pending.add("a", 10), pending.add("b", None)]
    pending.close()
    for future in futures:
        with pytest.raises(ClosedError, match="the test"):
            future.result(10)
    with pytest.raises(ClosedError):
        pending.add("a", None)


ERRORS = [
    CallTimeoutError("x", 1.0),
    ClosedError("x", consequence=True),
    PeerLostError("x", "died"),
    WorkerLostError(3, -9),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_errors_survive_pickling(error: PparallelError) -> None:
    import pickle

    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert copy.__dict__ == error.__dict__


def test_a_future_is_settled_once() -> None:
    future: Future[int] = Future()
    settle(future, 1)
    settle(future, 2)
    fail(future, ValueError())
    assert future.result() == 1
