"""Queues by the seed's names."""

from __future__ import annotations

import builtins
import multiprocessing
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
from queue_children import child

import pparallel
from pparallel.compat.machin import queue
from pparallel.compat.machin.queue import MultiP2PQueue, SimpleP2PQueue, SimpleQueue
from pparallel.errors import ClosedError
from pparallel.testing.patience import PATIENCE


@pytest.mark.parametrize("make", [SimpleQueue, SimpleP2PQueue, lambda **kw: MultiP2PQueue(2, **kw)])
@pytest.mark.parametrize("copy_tensor", [False, True])
def test_what_is_put_is_got(make: Any, copy_tensor: bool) -> None:
    import torch

    made = make(copy_tensor=copy_tensor)
    assert made.empty()
    made.put(torch.ones(1000))
    made.quick_put(lambda: 3)
    assert not made.empty()
    assert torch.equal(made.get(PATIENCE), torch.ones(1000))
    assert made.quick_get()() == 3
    for late in (made.get, made.quick_get):
        with pytest.raises(queue.TimeoutError):
            late(timeout=0.01)
        with pytest.raises(multiprocessing.TimeoutError):
            late(0)
    made.close()
    made.close()
    for use in (made.get, lambda: made.put(1), made.empty):
        with pytest.raises(ClosedError):
            use()


def test_the_names() -> None:
    assert queue.TimeoutError is builtins.TimeoutError
    assert queue.SimpleQueue is pparallel.SimpleQueue
    with SimpleQueue(ctx=multiprocessing.get_context("spawn")) as made:
        made.put(1)
        assert made.get() == 1


def test_several_queues_are_put_to_in_turn() -> None:
    with MultiP2PQueue(3) as queues:
        for number in range(6):
            queues.quick_put(number)
        assert [queues.get_sub_queue(each).get() for each in range(3)] == [0, 1, 2]
        assert sorted(queues.quick_get(PATIENCE) for _ in range(3)) == [3, 4, 5]
        assert queues.empty()
    with pytest.raises(ValueError, match="queue_num must be 1 or more"):
        MultiP2PQueue(0)


def wake_ups(thread: threading.Thread) -> int:
    """Return how often *thread* has gone to sleep so far."""
    status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
    return int(status.partition("voluntary_ctxt_switches:")[2].split()[0])


def test_who_waits_for_several_queues_sleeps() -> None:
    """The original asks each queue for a millisecond, round and round."""
    with MultiP2PQueue(2) as queues:
        receiver = threading.Thread(target=queues.quick_get, args=(PATIENCE,))
        receiver.start()
        before = wake_ups(receiver)
        receiver.join(0.3)
        assert wake_ups(receiver) - before < 30
        queues.quick_put("awaited")
        receiver.join()


def test_no_queue_keeps_another_waiting() -> None:
    with MultiP2PQueue(2) as queues:
        got: list[int] = []
        receiver = threading.Thread(target=lambda: got.append(queues.get(PATIENCE)))
        receiver.start()
        queues.get_sub_queue(1).put(7)
        receiver.join()
        assert got == [7]
        for number in range(50):  # one that always has something
            queues.get_sub_queue(0).put(number)
        queues.get_sub_queue(1).put("other")
        assert "other" in [queues.get(PATIENCE) for _ in range(3)]


def test_shutting_down_and_closing_wake_those_who_wait() -> None:
    for end in ("shutdown", "close"):
        with MultiP2PQueue(2) as queues:
            raised: list[BaseException] = []

            def receive(queues: MultiP2PQueue = queues, raised: Any = raised) -> None:
                try:
                    queues.get(PATIENCE)
                except ClosedError as error:
                    raised.append(error)

            receiver = threading.Thread(target=receive)
            receiver.start()
            getattr(queues, end)()
            receiver.join()
            assert len(raised) == 1, end


def test_what_was_put_before_the_shutdown_is_got() -> None:
    with MultiP2PQueue(2) as queues:
        queues.put("last")
        queues.shutdown()
        with pytest.raises(ClosedError, match="shut down"):
            queues.put("more")
        assert queues.get() == "last"
        with pytest.raises(ClosedError, match="shut down"):
            queues.get()


def test_one_that_is_shut_down_does_not_end_the_others() -> None:
    with MultiP2PQueue(2) as queues:
        queues.get_sub_queue(0).shutdown()
        with pytest.raises(queue.TimeoutError):
            queues.get(0.01)
        queues.get_sub_queue(1).put(3)
        assert queues.get(PATIENCE) == 3


def test_another_process() -> None:
    code = "queues = q; sub = queues.get_sub_queue(1); sub.put(sub.get() + 1); queues.put('turn')"
    with MultiP2PQueue(2) as queues, child(code, queues) as process:  # type: ignore[arg-type]
        queues.get_sub_queue(1).put(41)
        assert process.wait() == 0
        assert {queues.get(PATIENCE), queues.get(PATIENCE)} == {42, "turn"}
        copy = pickle.loads(pickle.dumps(queues))
        assert type(copy) is MultiP2PQueue
        copy.close()
