"""What calls keep whatever happens around them: their order, their locks."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
from rpc_members import Gates, add, first_of_two, same, wait_at_gate
from typing_extensions import override

from pparallel.errors import CallTimeoutError, ClosedError, PeerLostError, PparallelError
from pparallel.runtime.rpc import RpcGroup, context
from pparallel.runtime.rpc.codec import CALL, EXCHANGE, FAILED
from pparallel.runtime.rpc.service import Request
from pparallel.runtime.state_lock import state_lock
from pparallel.testing.patience import PATIENCE, until
from pparallel.testing.threads import in_threads

BACKENDS = ["local", "ipc", "zmq"]
ran: list[str] = []


def note(what: str) -> None:
    ran.append(what)


def hold() -> None:
    ran.append("held")
    assert Gates.opened.wait(PATIENCE)


@pytest.mark.parametrize("is_direct", [True, False])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_call_that_was_given_up_does_not_overtake_the_next(backend: str, is_direct: bool) -> None:
    """Whether it went directly, or behind an earlier call of its thread."""

    with first_of_two(backend, handler_threads=1) as group:
        ran.clear()
        if is_direct:
            [held] = in_threads(1, lambda _: group.rpc_async(1, hold))
        else:
            held = group.rpc_async(1, hold)
        until(lambda: bool(ran), "it does not start")
        with pytest.raises(CallTimeoutError):
            group.rpc_sync(1, note, ("first",), timeout=0.1)
        later = group.rpc_async(1, note, args=("second",))
        Gates.opened.set()
        held.wait(PATIENCE)
        later.wait(PATIENCE)
        group.rpc_sync(1, same, args=(1,))
        assert ran[1:] in (["second"], ["first", "second"]), "the first has overtaken the second"


def test_a_direct_call_is_not_run_once_its_thread_has_called_again() -> None:
    """Its caller was interrupted while it waited for a slot, and nothing says so but the next."""

    ran.clear()
    answers: list[Any] = []
    with first_of_two(handler_threads=1) as group:
        endpoint = group._endpoint
        codec, peer = endpoint._codec, endpoint.peer("m1")
        held = group.rpc_async(0, hold)
        until(lambda: bool(ran), "it does not start")
        flags, data, _, _ = codec.call(note, ("given up",), None)
        item = (CALL, 10**6, 7, 0.0, flags, None, data, 0)
        head = codec.head(item, EXCHANGE)
        thread = threading.Thread(target=lambda: answers.append(endpoint.on_exchange("m1", [head])))
        thread.start()
        until(lambda: endpoint.executor._direct == 1, "it does not wait for a slot")
        peer.note_arrived((CALL, 10**6 + 1, 7, 0.0, flags, None, data, 0))
        Gates.opened.set()
        held.wait(PATIENCE)
        thread.join(PATIENCE)
        assert codec.items(answers[0][0])[2] == FAILED
        assert ran == ["held"]


# -- locks ------------------------------------------------------------------------------------


class Calling:
    """Garbage of which the finalizer calls."""

    def __init__(self, use: Callable[[], object]) -> None:
        self.use, self.itself = use, self

    def __del__(self) -> None:
        try:
            self.use()
        except (RuntimeError, PparallelError) as error:
            refused.append(error)
        used.append(self)


refused: list[BaseException] = []
used: list[object] = []


def answer_and_litter(group: RpcGroup, n: int) -> int:
    """Return *n*, and leave garbage that calls, in the member that is called."""
    Calling(lambda: group.rpc_async(0, same, args=(n,)))
    return n


@pytest.mark.parametrize("backend", BACKENDS)
def test_finalizers_that_call_at_any_time_succeed_or_are_refused(backend: str) -> None:
    """In callers, in those that receive and in those that are called; nothing hangs."""
    refused.clear()
    used.clear()

    with first_of_two(backend) as group:
        ref = group.remote(1, dict[str, int])
        uses: list[Callable[[], object]] = [
            lambda: group.rpc_async(1, add, args=(1, 2)),
            lambda: group.rpc_async(0, add, args=(1, 2)),
            lambda: group.remote(1, dict),
            lambda: ref.rpc_async().get(1),
        ]
        threshold = gc.get_threshold()
        gc.set_threshold(1)
        try:
            futures = []
            for n in range(40):
                Calling(uses[n % len(uses)])
                futures.append(group.rpc_async(1, answer_and_litter, args=(group, n)))
                assert group.rpc_sync(1, same, (n,), timeout=PATIENCE) == n
            assert [each.wait(PATIENCE) for each in futures] == [*range(40)]
        finally:
            gc.set_threshold(*threshold)
        assert group.rpc_sync(1, add, (1, 2), timeout=PATIENCE) == 3
        assert used
        allowed = "a finalizer", "receives for others"
        assert all(any(each in str(error) for each in allowed) for error in refused), refused


@pytest.mark.parametrize("use", ["rpc_sync", "rpc_async", "remote", "result", "barrier", "close"])
def test_what_enters_in_the_midst_of_a_change_is_refused(use: str) -> None:
    with first_of_two() as group:
        done = group.rpc_async(1, wait_at_gate)
        endpoint: Any = group._endpoint
        uses: dict[str, Callable[[], object]] = {
            "rpc_sync": lambda: group.rpc_sync(1, same, args=(1,)),
            "rpc_async": lambda: group.rpc_async(1, same, args=(1,)),
            "remote": lambda: group.remote(1, same, args=(1,)),
            "result": done.result,
            "barrier": lambda: group.barrier(1),
            "close": endpoint.close,
        }
        with state_lock, pytest.raises(RuntimeError, match=r"queue\.SimpleQueue"):
            uses[use]()
        assert group.rpc_sync(1, same, args=(2,)) == 2
        Gates.opened.set()
        assert done.wait()


def test_a_thread_that_receives_does_not_wait() -> None:
    with first_of_two() as group:
        with context.internal():
            waits: list[Callable[[], object]] = [
                lambda: group.rpc_sync(1, same, args=(1,)),
                lambda: group.rpc_async(1, wait_at_gate).wait(),
            ]
            for wait in waits:
                with pytest.raises(RuntimeError, match="cannot wait"):
                    wait()
            future = group.rpc_async(1, same, args=(1,))
        Gates.opened.set()
        assert future.wait(PATIENCE) == 1


class PickledByACall:
    """Calls where it is pickled."""

    group: Any = None
    value = 0

    @override
    def __getstate__(self) -> dict[str, int]:
        return {"value": type(self).group.rpc_sync(0, abs, args=(-3,))}


def test_a_user_object_that_calls_while_it_is_fetched_is_no_finalizer() -> None:
    with first_of_two("ipc") as group:
        PickledByACall.group = group
        assert group.remote(1, PickledByACall).to_here(PATIENCE).value == 3


def test_the_end_of_a_member_in_a_job_that_fails_is_explained_by_the_failure() -> None:
    with first_of_two() as group:
        endpoint = group._endpoint
        lost = PeerLostError("m1", "has left")
        assert endpoint.root_cause(lost) is lost
        endpoint._other_is_failing(Request("m1", ("m1", "ValueError: planned"), []))
        found = endpoint.root_cause(lost)
        endpoint._failing = None
    assert isinstance(found, ClosedError)
    assert "ValueError: planned" in str(found)
