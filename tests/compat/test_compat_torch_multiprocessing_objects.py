"""What passes into processes as they start: objects of ``multiprocessing``, and shared tensors."""

from __future__ import annotations

import multiprocessing
import os
import re
import resource
import sys
from collections.abc import Callable, Iterator
from multiprocessing import shared_memory
from typing import Any

import compat_spawn_programs as programs
import pytest
import torch

import pparallel.compat.torch_multiprocessing as mp
from pparallel import LauncherConfig, build, load
from pparallel.compat.torch_multiprocessing.pool import Pool
from pparallel.runtime import lending
from pparallel.testing.patience import PATIENCE

_WARNS = "ignore:This process .* is multi-threaded:DeprecationWarning"  # since Python 3.12
_FORK = pytest.param("fork", marks=pytest.mark.filterwarnings(_WARNS))
#: the standard library keeps the memory that it allots to shared values: it is there from the start
_HEAP = multiprocessing.get_context("spawn").RawValue("i", 0)


@pytest.mark.parametrize("method", ["spawn", _FORK])
def test_objects_of_multiprocessing_are_arguments(method: Any) -> None:
    context = multiprocessing.get_context(method)
    lock, queue, event = context.Lock(), context.Queue(), context.Event()
    value, array = context.Value("i", 0), context.Array("i", 2)
    pipes = [context.Pipe() for _ in range(2)]
    rest = (value, array, context.SimpleQueue(), [there for _, there in pipes])
    shared = (lock, queue, context.Barrier(2), event, rest)
    started = mp.start_processes(programs.use_all, shared, 2, join=False, start_method=method)
    assert started is not None
    found = dict(queue.get(timeout=PATIENCE) for _ in range(2))
    assert [found[index] for index in range(2)] == started.pids()
    assert sorted(rest[2].get() for _ in range(2)) == [0, 1]
    assert [here.recv() for here, _ in pipes] == [0, 1]
    assert (value.value, list(array)) == (2, [2, 2])
    event.set()
    assert started.join(PATIENCE)
    queue.close()
    queue.join_thread()
    for each in (queue, rest[2]):
        each.close()
    for ends in pipes:
        for end in ends:
            end.close()


@pytest.mark.parametrize("serializer", ["cloudpickle", "dill"])
def test_they_go_with_code_that_is_sent(serializer: str) -> None:
    lock = multiprocessing.get_context("spawn").Lock()

    class Held:
        def take(self) -> bool:
            return lock.acquire(timeout=PATIENCE)

    config = load(LauncherConfig, {"backend": "process", "serializer": {"backend": serializer}})
    with build(config) as launcher:
        taken = launcher.spawn(lambda _, held: held.take(), (Held(),), start_method="forkserver")
    assert taken == [True]
    assert not lock.acquire(block=False)
    lock.release()


@pytest.mark.parametrize("method", ["forkserver", _FORK])
def test_they_are_initial_arguments_of_a_pool(method: Any) -> None:
    context = multiprocessing.get_context(method)
    shared = context.Lock(), context.Value("i", 0)
    with mp.Pool(2, programs.keep, shared, context=context) as pool:
        pids = pool.map(programs.add_to_kept, range(10))
        assert shared[1].value == sum(range(10))
        assert os.getpid() not in pids


@pytest.mark.filterwarnings(_WARNS)
def test_what_only_a_fork_can_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with the original: locks of the default context, where that forks."""
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none=False: "fork")
    context = multiprocessing.get_context("fork")
    shared = context.Lock(), context.Value("i", 0)
    with mp.Pool(1, programs.keep, shared) as pool:
        pool.apply(programs.add_to_kept, (3,))
    assert shared[1].value == 3


@pytest.mark.filterwarnings(_WARNS)
def test_a_fork_puts_into_a_queue_that_its_parent_has_used() -> None:
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    queue.put("here")  # by a thread, which no fork has
    assert queue.get(timeout=PATIENCE) == "here"
    mp.start_processes(programs.put, (queue, "there"), start_method="fork")
    assert queue.get(timeout=PATIENCE) == (0, "there")
    queue.close()
    queue.join_thread()


def test_a_process_that_ends_takes_no_segment_along() -> None:
    """cpython 82300: the tracker of the process that had attached it unlinked it."""
    segment = shared_memory.SharedMemory(create=True, size=64)
    try:
        for method in ("spawn", "forkserver"):
            mp.start_processes(programs.write_to_segment, (segment,), start_method=method)
        assert segment.buf[0] == 7  # type: ignore[index]
        again = shared_memory.SharedMemory(segment.name)
        again.close()
    finally:
        segment.close()
        segment.unlink()


def test_an_end_of_a_pipe_never_arrives_as_a_mere_number() -> None:
    here, there = multiprocessing.get_context("spawn").Pipe()
    with mp.Pool(1, programs.keep, (there,)) as pool:
        pool.apply(programs.send_kept, ("from a worker",))
        assert here.recv() == "from a worker"
    here.close()
    there.close()


# -- tensors -----------------------------------------------------------------------------------


def check_hogwild(method: Any, processes: int) -> None:
    """Train a shared model; what is not shared is each process's own."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    for each in model.parameters():
        torch.nn.init.zeros_(each)
    model.share_memory()
    plain = torch.zeros(1000)
    mp.start_processes(programs.train, (model, plain, 5), processes, start_method=method)
    for each in model.parameters():
        assert each[:processes].eq(5).all()
        assert each[processes:].eq(0).all()
    assert plain.eq(0).all()
    assert not plain.is_shared()


@pytest.mark.filterwarnings(_WARNS)
def test_a_shared_model_is_trained_by_all() -> None:
    check_hogwild("fork", 2)


def test_tensors_in_a_queue_take_no_descriptors() -> None:
    """pytorch 973, PR 34768: received 0 items of ancdata."""
    queue = mp.Queue()
    queue.put(torch.ones(300))
    held = [queue.get()]
    before = len(os.listdir("/proc/self/fd"))
    for number in range(200):
        queue.put(torch.full((300,), number))
    held += [queue.get() for _ in range(200)]
    assert len(os.listdir("/proc/self/fd")) == before
    assert [int(each[0]) for each in held[1:]] == list(range(200))
    del held
    queue.close()


def test_a_queue_keeps_shared_tensors_shared() -> None:
    queue = mp.SimpleQueue()
    shared, plain = torch.zeros(3).share_memory_(), torch.zeros(3)
    queue.put({"shared": shared, "plain": plain})
    plain += 1  # what is in the queue is as it was
    found = queue.get()
    found["shared"] += 1
    found["plain"] += 5
    assert (shared.tolist(), plain.tolist()) == ([1] * 3, [1] * 3)
    assert found["plain"].tolist() == [5] * 3
    queue.close()


def test_a_sender_may_drop_what_it_has_put() -> None:
    queue = mp.Queue()
    for number in range(5):
        queue.put(torch.full((3,), number).share_memory_())
    found = [queue.get(timeout=PATIENCE) for _ in range(5)]
    assert [each[0].item() for each in found] == list(range(5))
    assert all(each.is_shared() for each in found)
    del found
    queue.close()


def torchs_refusal(tensor: torch.Tensor) -> Any:
    """Expect the error by which torch refuses to send *tensor*."""
    with pytest.raises(RuntimeError) as caught:
        multiprocessing.get_context("spawn").SimpleQueue().put(tensor)
    return pytest.raises(RuntimeError, match=f"^{re.escape(str(caught.value))}$")


def test_a_tensor_of_a_graph_is_refused_as_by_torch() -> None:
    leaf = torch.ones(3, requires_grad=True)
    bad = leaf * 2
    for make in (mp.Queue, mp.SimpleQueue):
        queue = make()
        with torchs_refusal(bad):
            queue.put([bad])
        queue.put(leaf)
        assert queue.get().requires_grad
        queue.close()
    for start in (mp.spawn, mp.start_processes):
        with torchs_refusal(bad):
            start(programs.keep, ([bad],))
    with torchs_refusal(bad):
        mp.Pool(1, programs.keep, (bad,), context=multiprocessing.get_context("spawn"))


def test_what_has_arrived_is_let_go_of() -> None:
    thing = [object()]
    receipt = lending.receipt_for(thing)
    assert lending.is_receipt(receipt)
    references = sys.getrefcount(thing)
    lending.give_back(receipt)
    lending.give_back(receipt)  # by another receiver of the same
    lending.tidy()
    assert sys.getrefcount(thing) == references - 1
    lending.give_back(receipt)  # nobody hears it any more


def test_a_receipt_from_another_process() -> None:
    receipt = lending.receipt_for([1])
    with mp.Pool(1) as pool:
        pool.apply(lending.give_back, (receipt,))
    lending.tidy()
    assert lending._books._pipe is None


@pytest.fixture
def pool() -> Iterator[Pool]:
    """A fork has torch already."""
    with mp.Pool(1, context=multiprocessing.get_context("fork")) as pool:
        yield pool


@pytest.mark.filterwarnings(_WARNS)
class TestTasks:
    """Tensors that are arguments and results."""

    def test_a_pool_keeps_shared_tensors_shared(self, pool: Pool) -> None:
        shared, plain = torch.zeros(300).share_memory_(), torch.zeros(300)
        for _ in range(3):
            assert pool.apply(programs.add_one, (shared,)).is_shared()
        assert shared.eq(3).all()
        assert pool.apply(programs.add_one, (plain,)).eq(1).all()
        assert plain.eq(0).all()
        before, after = pool.map(programs.open_descriptors_of, [torch.ones(9), torch.ones(9)])
        assert before == after

    def test_a_tensor_of_a_graph_is_refused_as_by_torch(self, pool: Pool) -> None:
        bad = torch.ones(3, requires_grad=True) * 2
        calls: list[Callable[[], object]] = [
            lambda: pool.apply(programs.add_one, (bad,)),
            lambda: pool.map(programs.add_one, [bad]),
            lambda: next(pool.imap(programs.add_one, [bad])),
            lambda: pool.apply_async(programs.add_one, (bad,)).get(PATIENCE),
        ]
        for call in calls:
            with torchs_refusal(bad) as caught:
                call()
            assert type(caught.value) is RuntimeError
        with pytest.raises(mp.MaybeEncodingError, match="non-leaf tensor"):
            pool.apply(bad_result)

    def test_many_tensors_need_no_descriptors(self, pool: Pool) -> None:
        """pytorch 973, PR 34768: received 0 items of ancdata."""
        queue = mp.Queue()
        pool.apply(programs.own_pid)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        few = max(map(int, os.listdir("/proc/self/fd"))) + 40
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
        try:
            for number in range(400):
                queue.put(torch.full((300,), number))
            held = [queue.get(timeout=PATIENCE) for _ in range(400)]
            assert [int(each[0]) for each in held] == list(range(400))
            held = pool.map(programs.add_one, held)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert [int(each[0]) for each in held] == list(range(1, 401))
        queue.close()


def bad_result() -> torch.Tensor:
    return torch.ones(3, requires_grad=True) * 2


class TestInOtherInterpreters:
    """What takes long, since processes have to import torch or a manager has to start."""

    def test_a_shared_model(self) -> None:
        check_hogwild("forkserver", 1)

    def test_proxies_of_a_manager_are_arguments(self) -> None:
        """They are accepted, for a child has its parent's key."""
        with multiprocessing.get_context("spawn").Manager() as manager:
            queue, names = manager.Queue(), manager.dict()
            mp.start_processes(programs.put_in_proxy, (queue, names), start_method="forkserver")
            assert queue.get(timeout=PATIENCE) == 0
            assert dict(names) == {"done": True}
            with mp.Pool(1) as pool:  # the usual way to a queue for tasks
                pool.apply(programs.put, (1, queue, "task"))
            assert queue.get(timeout=PATIENCE) == (1, "task")
