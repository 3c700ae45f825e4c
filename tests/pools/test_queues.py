"""Queues in one process."""

from __future__ import annotations

import multiprocessing
import pickle
from typing import Any

import pytest
from queue_children import MB, blocks, running
from queue_children import q as q
from typing_extensions import override

import pparallel
from pparallel.errors import SerializationError, TaskTimeoutError
from pparallel.patterns.queues import SimpleP2PQueue, SimpleQueue
from pparallel.testing.patience import PATIENCE, until
from pparallel_serializers import DillSerializerConfig, PickleSerializerConfig, SafeSerializerConfig
from pparallel_serializers.dill import DillSerializer

THINGS: list[Any] = [
    None,
    (1, "two", 3.0),
    b"x" * 100,
    b"x" * 126,
    b"x" * 127,
    b"x" * 5000,
    b"x" * 40_000,
    b"x" * MB,
    list(range(100_000)),
    {"nested": [b"y" * 20_000, "z" * 99_999]},
]


def test_what_is_put_comes_out_in_order(q: SimpleQueue) -> None:
    assert q.empty()
    for thing in THINGS:
        q.put(thing)
    assert not q.empty()
    for thing in THINGS:
        assert q.get() == thing
    assert q.empty()
    assert blocks(q) == 0


def test_the_quick_forms_are_the_same(q: SimpleQueue) -> None:
    q.quick_put("a")
    q.put("b")
    assert q.get() == "a"
    assert q.quick_get() == "b"
    with pytest.raises(TaskTimeoutError):
        q.quick_get(timeout=0)


def test_tensors_arrive_as_the_receivers_own(q: SimpleQueue) -> None:
    import torch

    source = torch.arange(300_000.0)
    q.put({"t": source, "small": torch.ones(3)})
    source.zero_()
    found = q.get()
    assert torch.equal(found["t"], torch.arange(300_000.0))
    found["t"] += 1
    found["small"] += 1
    part = found["t"][5:]
    assert blocks(q) == 1
    del found
    assert part[0] == 6
    del part
    assert blocks(q) == 0


def test_copies_do_not_hold_the_queues_memory() -> None:
    import torch

    with SimpleQueue(copy_tensor=True, memory=4 * MB) as q:
        kept = []
        for turn in range(10):
            q.put(torch.full((300_000,), float(turn)))
            kept.append(q.get())
        assert [float(each[0]) for each in kept] == list(range(10))
        assert blocks(q) == 0


def test_functions_and_local_classes_travel(q: SimpleQueue) -> None:
    offset = 5
    q.put(lambda x: x + offset)
    assert q.get()(1) == 6


@pytest.mark.parametrize(
    "serializer",
    [PickleSerializerConfig(), {"backend": "safe"}, pparallel.build(SafeSerializerConfig())],
)
def test_another_serializer(serializer: Any) -> None:
    with SimpleQueue(serializer=serializer) as q:
        q.put([1, b"x" * 100_000])
        assert q.get() == [1, b"x" * 100_000]
        with pytest.raises(SerializationError):
            q.put(lambda: None)
        assert q.empty()
        other = pickle.loads(pickle.dumps(q))
        q.put("again")
        assert other.get() == "again"
        with pytest.raises(SerializationError):
            other.put(lambda: None)
        other.close()


def test_a_serializer_that_shares_is_sent_as_one() -> None:
    import torch

    shares = DillSerializer(DillSerializerConfig()).sharing("cpu")
    with SimpleQueue(serializer=shares) as q:
        other = pickle.loads(pickle.dumps(q))
        tensor = torch.zeros(1000)
        other.put(tensor)
        q.get()[3] = 7
        assert tensor[3] == 7
        other.close()


def test_what_cannot_be_rebuilt_is_lost_and_the_next_comes(q: SimpleQueue) -> None:
    q.put(Unlucky())
    q.put("next")
    with pytest.raises(SerializationError, match="no luck"):
        q.get()
    assert q.get() == "next"


class Unlucky:
    @override
    def __reduce__(self) -> Any:
        return fail, ()


def fail() -> None:
    raise ValueError("no luck")


@pytest.mark.parametrize("timeout", [0, 0.05, -1])
def test_get_gives_up_in_time(q: SimpleQueue, timeout: float) -> None:
    for kind in (TimeoutError, multiprocessing.TimeoutError):
        with pytest.raises(kind, match="getting an object from the queue was not done within"):
            q.get(timeout)


def test_get_waits_for_what_comes_later(q: SimpleQueue) -> None:
    found: list[object] = []
    with running(lambda: found.append(q.get(PATIENCE)), lambda: found.append(q.get())):
        q.put("a")
        q.put("b")
    assert sorted(map(str, found)) == ["a", "b"]


def test_a_full_queue_takes_nothing_until_there_is_room() -> None:
    with SimpleQueue(capacity=32, memory=16 * MB) as q:
        count = 0
        with pytest.raises(TaskTimeoutError, match="putting an object into the queue"):  # noqa: PT012
            while True:
                q.put((count, b"x" * 50_000), timeout=0.01)
                count += 1
        assert count >= 32
        assert blocks(q) == count
        with pytest.raises(TaskTimeoutError):
            q.put("small", timeout=0)
        with running(lambda: q.put("late", PATIENCE), lambda: q.put("late")):
            found = [q.get(PATIENCE) for _ in range(count + 2)]
        assert [each[0] for each in found[:count]] == list(range(count))
        assert found[count:] == ["late", "late"]
        del found
        assert blocks(q) == 0


def test_put_waits_for_memory_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    with SimpleQueue(memory=2 * MB) as q:
        q.put(b"a" * 900_000, PATIENCE)
        q.put(b"b" * 400_000, PATIENCE)
        with pytest.raises(TaskTimeoutError):
            q.put(b"c" * 900_000, timeout=0.05)
        assert blocks(q) == 2
        with running(lambda: q.put(b"c" * 900_000, PATIENCE)):
            until(lambda: len(caplog.records) == 2, "put waits")
            assert q.get() == b"a" * 900_000
            assert q.get() == b"b" * 400_000
            assert q.get(PATIENCE) == b"c" * 900_000
    assert len(caplog.records) == 2
    assert "put waits until receivers let go" in caplog.text


def test_what_can_never_fit_is_refused() -> None:
    with SimpleQueue(memory=2 * MB) as q:
        with pytest.raises(OSError, match=r"no room for 52428.. bytes: its budget is 2097152"):
            q.put(b"x" * (5 * MB))
        q.put("small")
        assert q.get() == "small"
        assert blocks(q) == 0


def test_capacity_is_refused_where_it_makes_no_sense() -> None:
    with pytest.raises(ValueError, match="capacity must be 1 or more, not 0"):
        SimpleQueue(capacity=0)


def test_a_capacity_that_this_user_may_not_have_is_what_he_may() -> None:
    with SimpleP2PQueue(capacity=1 << 24) as q:
        for turn in range(4096):
            q.put(turn, timeout=0)
        assert q.get() == 0
