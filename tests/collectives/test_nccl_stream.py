"""The collective ``nccl`` beside the GPU's stream, with handles that the test completes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from time import monotonic as time
from typing import Any

import pytest
import torch
from torch._C import _distributed_c10d as c10d
from typing_extensions import override

import pparallel
from pparallel.errors import CallTimeoutError, ClosedError, PeerLostError
from pparallel.testing.patience import PATIENCE
from pparallel_torch import NcclCollectiveConfig
from pparallel_torch.collective import gpus, nccl
from pparallel_torch.collective.ends import Ends
from pparallel_torch.collective.nccl import NcclCollective, NcclGroup

LOST = PeerLostError("b", "was killed")


class Work:
    """An operation on a GPU, which is done after some looks at it."""

    def __init__(self, looks: float = float("inf"), error: Exception | None = None) -> None:
        self.looks, self.error, self.waits = looks, error, 0

    def is_completed(self) -> bool:
        self.looks -= 1
        return self.looks < 0

    def wait(self, *_: object) -> None:
        """Have the stream come after it."""
        self.waits += 1
        if self.error is not None and self.looks < 0:
            raise self.error


class Gate(Work):
    """An operation that is done once the test says so; it knows which threads look at it."""

    def __init__(self, expected: int = 1) -> None:
        super().__init__()
        self.opened, self.seen = threading.Event(), threading.Event()
        self._expected, self._threads = expected, set[int]()

    @override
    def is_completed(self) -> bool:
        self._threads.add(threading.get_ident())
        if len(self._threads) >= self._expected:
            self.seen.set()
        return self.opened.is_set()


class Made:
    """A process group whose operations are those that it is given."""

    class Options:
        """What NCCL is told."""

    def __init__(self, *_: object) -> None:
        self.aborted = threading.Event()
        self.works: list[Work] = []

    def abort(self) -> None:
        self.aborted.set()

    def shutdown(self) -> None:
        """Nothing is there to be shut down."""

    def allreduce(self, *_: object) -> Work:
        self.works.append(Work(looks=3))
        return self.works[-1]


def _group(timeout: float = PATIENCE, ends: Ends | None = None) -> tuple[NcclGroup, Ends]:
    ends = ends or Ends()
    return NcclGroup(Made(), None, ends, ["b"], timeout, lambda what, timeout: None), ends


def _gives(work: Work) -> Callable[[Any], Work]:
    return lambda _: work


def test_an_operation_is_in_order_on_the_stream_and_the_host_goes_on() -> None:
    group, _ = _group(timeout=0.05)
    endless = Work()
    group.do("all_reduce", _gives(endless))
    assert endless.waits == 1
    group.abort()


def test_an_error_is_raised_by_the_next_operation() -> None:
    group, _ = _group()
    group.do("all_reduce", _gives(Work(looks=0, error=ValueError("of the GPU"))))
    never_begun = Work()
    with pytest.raises(ValueError, match="of the GPU"):
        group.do("broadcast", _gives(never_begun))
    assert never_begun.waits == 0
    group.do("broadcast", _gives(never_begun))
    assert never_begun.waits == 1


def test_a_time_out_is_raised_by_the_next_operation() -> None:
    group, ends = _group(timeout=0.0)
    group.do("all_reduce", _gives(Work()))
    for _ in range(2):  # the group has ended
        with pytest.raises(CallTimeoutError, match="all_reduce"):
            group.do("broadcast", _gives(Work()))
    assert ends.over is not None
    assert group.made.aborted.is_set()


def test_a_lost_member_ends_a_wait_for_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "GRACE", 0.0)
    group, ends = _group()
    group.do("all_reduce", _gives(Work()))
    ends.lose(1, LOST, seen=False)
    group.member_left()
    assert group.made.aborted.wait(PATIENCE), "a copy to the CPU would wait for ever"
    with pytest.raises(PeerLostError, match="'b'"):
        group.do("broadcast", _gives(Work()))


def test_what_was_aborted_is_not_taken_for_done() -> None:
    """The GPU is done by an abort, too."""
    group, ends = _group()
    done = Work()
    group.do("all_reduce", _gives(done))
    ends.lose(1, LOST, seen=False)
    group.abort()
    done.looks = 0
    with pytest.raises(PeerLostError, match="'b'"):
        group.settle()


def test_an_operation_that_is_begun_after_a_loss_is_waited_for() -> None:
    group, ends = _group()
    ends.lose(1, LOST, seen=True)
    done = Work(looks=3)
    group.do("all_reduce", _gives(done))
    assert done.waits == 2


def test_the_host_runs_ahead_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "_AHEAD", 2)
    group, _ = _group()
    works = [Work(looks=9) for _ in range(3)]
    for each in works:
        group.do("all_reduce", _gives(each))
    assert [each.waits for each in works] == [2, 1, 1]


def test_two_threads_wait_for_the_gpu() -> None:
    group, _ = _group()
    gate = Gate(expected=2)
    group.do("all_reduce", _gives(gate))
    group._enqueued.append((Work(looks=0, error=ValueError("of the GPU")), "broadcast", time()))
    errors: list[BaseException] = []

    def settle() -> None:
        try:
            group.settle()
        except Exception as error:  # noqa: BLE001 - looked at below
            errors.append(error)

    threads = [threading.Thread(target=settle) for _ in range(2)]
    for each in threads:
        each.start()
    assert gate.seen.wait(PATIENCE)
    gate.opened.set()
    for each in threads:
        each.join(PATIENCE)
    assert {type(each) for each in errors} == {ValueError}
    assert not group._enqueued


class OnTheCpu(NcclCollective):
    """Takes tensors of the CPU."""

    device_type = "cpu"


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(c10d, "ProcessGroupNCCL", Made, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpus, "has_gpus", lambda: True)
    monkeypatch.setattr(nccl, "NcclCollective", OnTheCpu)
    return pparallel.build(NcclCollectiveConfig())


def test_a_barrier_and_the_close_wait_for_the_gpu(alone: Any) -> None:
    with alone:
        made = alone._native.made
        alone.all_reduce(torch.ones(3))
        assert [each.looks for each in made.works] == [3]
        alone.barrier()
        assert made.works[0].looks < 0
        alone.all_reduce(torch.ones(3))
        assert made.works[1].looks == 3
    assert made.works[1].looks < 0
    assert not made.aborted.is_set()


def test_an_error_of_the_last_operation_is_raised_at_the_close(alone: Any) -> None:
    alone.open()
    alone.all_reduce(torch.ones(3))
    alone._native.made.works[0].error = ValueError("of the GPU")
    with pytest.raises(ValueError, match="of the GPU"):
        alone.close()
    alone.close()


def test_a_handle_waits_for_the_gpu(alone: Any) -> None:
    with alone:
        made = alone._native.made
        work = alone.all_reduce(torch.ones(3), async_op=True)
        assert not work.is_completed()
        work.wait()
        assert made.works[0].looks < 0


def test_a_close_wakes_a_thread_that_waits_for_the_gpu(
    alone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, errors = Gate(), []

    def barrier() -> None:
        try:
            alone.barrier()
        except Exception as error:  # noqa: BLE001 - looked at below
            errors.append(error)

    alone.open()
    monkeypatch.setattr(alone._native, "_timeout", PATIENCE)
    monkeypatch.setattr(alone._native.made, "allreduce", lambda *_: gate)
    monkeypatch.setattr(alone._native.made, "abort", gate.opened.set)
    alone.all_reduce(torch.ones(3))
    thread = threading.Thread(target=barrier)
    thread.start()
    assert gate.seen.wait(PATIENCE)
    alone.close()
    thread.join(PATIENCE)
    assert [type(each) for each in errors] == [ClosedError]


class Stream:
    """A CUDA stream."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def wait_stream(self, _: object) -> None:
        self.log.append("after the caller's stream")

    def synchronize(self) -> None:
        self.log.append("synchronized")


@pytest.mark.usefixtures("alone")
def test_a_checked_operation_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    monkeypatch.setattr(torch.cuda, "Stream", lambda: Stream(log), raising=False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: Stream(log))
    monkeypatch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
    checked: Any = pparallel.build(NcclCollectiveConfig(check=True))
    with checked:
        gate = Gate()
        monkeypatch.setattr(checked._native.made, "allreduce", lambda *_: gate)
        work = checked.all_reduce(torch.ones(3), async_op=True)
        assert log == ["after the caller's stream"]
        assert gate.seen.wait(PATIENCE), "nothing waits for the GPU"
        assert not work.is_completed()
        gate.opened.set()
        work.wait(PATIENCE)
        assert log == ["after the caller's stream", "synchronized"]


@pytest.mark.gpu
def test_the_host_is_ahead_of_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU here")
    monkeypatch.setenv("NCCL_RAS_ENABLE", "0")  # it would listen until the process ends
    with pparallel.build(NcclCollectiveConfig()) as single:
        tensor = torch.ones(4, device="cuda")
        single.all_reduce(tensor)  # connects
        torch.cuda.synchronize()
        torch.cuda._sleep(2_000_000_000)  # cycles: about a second
        single.all_reduce(tensor)
        tensor.mul_(2)
        assert not torch.cuda.current_stream().query(), "the host waited for the GPU"
        assert tensor.tolist() == [2.0] * 4
