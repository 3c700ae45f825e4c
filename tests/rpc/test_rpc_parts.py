"""Pieces below the RPC layer, each on its own."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from pparallel.errors import (
    CallTimeoutError,
    ClosedError,
    PeerLostError,
    PparallelError,
    WorkerLostError,
)
from pparallel.runtime.future import fail, settle

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
