"""The default algorithms of collectives, on a fake whose members are threads."""

from __future__ import annotations

import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor
from typing_extensions import override

from pparallel.errors import CallTimeoutError, SerializationError
from pparallel.interfaces.collective import USER_TAGS, Collective, ReduceOp, Work

T = TypeVar("T")
SIZES = [1, 2, 3, 4, 5, 8]
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.complex64, torch.complex128]


class Done(Work[T]):
    def __init__(self, result: Callable[[], T]) -> None:
        self.result = result

    @override
    def wait(self, timeout: float | None = None) -> T:
        return self.result()

    @override
    def is_completed(self) -> bool:
        return True


class Fake(Collective):
    """Members are threads; a message is a clone in a queue of its sender, receiver and tag."""

    def __init__(
        self,
        rank: int,
        ranks: Sequence[int],
        mail: defaultdict[object, queue.Queue[Tensor]],
    ) -> None:
        self._rank, self._ranks, self._mail = rank, list(ranks), mail

    @property
    @override
    def rank(self) -> int:
        return self._rank

    @property
    @override
    def ranks(self) -> Sequence[int]:
        return self._ranks

    @override
    def size(self) -> int:
        return len(self._ranks)

    @override
    def open(self) -> None: ...

    @override
    def close(self) -> None: ...

    @override
    def new_group(self, ranks: Sequence[int]) -> Fake:
        return Fake(self._rank, ranks, self._mail)

    @override
    def isend(self, tensor: Tensor, dst: int, tag: int = 0) -> Work[None]:
        raw = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        assert tensor.is_contiguous()
        assert not raw.is_conj()
        self._mail[tuple(self._ranks), self._rank, dst, tag].put(tensor.clone())
        return Done(lambda: None)

    @override
    def irecv(self, tensor: Tensor, src: int | None = None, tag: int = 0) -> Work[int]:
        if src is None:
            message = "this fake has no any_source"
            raise ValueError(message)

        def receive() -> int:
            got = self._mail[tuple(self._ranks), src, self._rank, tag].get(timeout=20)
            assert got.shape == tensor.shape
            assert got.dtype == tensor.dtype
            tensor.copy_(got)
            return src

        return Done(receive)


class Mail(defaultdict[object, "queue.Queue[Tensor]"]):
    """A defaultdict that threads may share."""

    def __init__(self) -> None:
        super().__init__(queue.Queue)
        self._lock = threading.Lock()

    @override
    def __missing__(self, key: object) -> queue.Queue[Tensor]:
        with self._lock:
            return self.setdefault(key, queue.Queue())


def together(size: int, work: Callable[[Collective], T]) -> list[T]:
    """Run *work* in every member and return the results by rank."""
    mail = Mail()
    groups = [Fake(rank, range(size), mail) for rank in range(size)]
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(work, groups))


def sample(
    rank: int, dtype: torch.dtype = torch.float32, shape: tuple[int, ...] = (3, 4)
) -> Tensor:
    generator = torch.Generator().manual_seed(rank)
    values = torch.randint(1, 5, shape, generator=generator)
    if dtype.is_complex:
        return torch.complex(values.double(), values.double() - 3).to(dtype)
    return values.to(dtype)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_all_reduce_sums(size: int, dtype: torch.dtype) -> None:
    def work(group: Collective) -> Tensor:
        tensor = sample(group.rank, dtype)
        group.all_reduce(tensor)
        return tensor

    expected = sum(sample(rank, dtype) for rank in range(size))
    for result in together(size, work):
        torch.testing.assert_close(result, expected)


@pytest.mark.parametrize(
    ("op", "combine"),
    [
        (ReduceOp.PRODUCT, torch.mul),
        (ReduceOp.MIN, torch.minimum),
        (ReduceOp.MAX, torch.maximum),
        (ReduceOp.BAND, torch.bitwise_and),
        (ReduceOp.BOR, torch.bitwise_or),
        (ReduceOp.BXOR, torch.bitwise_xor),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 4])
def test_reduce_combines(
    op: ReduceOp, combine: Callable[[Tensor, Tensor], Tensor], size: int
) -> None:
    dst = size - 1

    def work(group: Collective) -> Tensor:
        tensor = sample(group.rank, torch.int64)
        group.reduce(tensor, dst, op)
        return tensor

    results = together(size, work)
    inputs = [sample(rank, torch.int64) for rank in range(size)]
    torch.testing.assert_close(results[dst], reduce(combine, inputs))
    for rank in range(size - 1):
        torch.testing.assert_close(results[rank], inputs[rank])


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
def test_average(dtype: torch.dtype) -> None:
    def work(group: Collective) -> Tensor:
        tensor = sample(group.rank, dtype)
        group.all_reduce(tensor, ReduceOp.AVG)
        return tensor

    expected = torch.stack([sample(rank, dtype) for rank in range(3)]).mean(0)
    for result in together(3, work):
        torch.testing.assert_close(result, expected)


@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        (ReduceOp.AVG, torch.int32),
        (ReduceOp.MAX, torch.complex64),
        (ReduceOp.BXOR, torch.float32),
    ],
)
def test_an_operation_that_does_not_apply_is_refused_before_anything_is_sent(
    op: ReduceOp, dtype: torch.dtype
) -> None:
    def work(group: Collective) -> None:
        with pytest.raises(ValueError, match=f"{op.name} does not apply to torch"):
            group.all_reduce(torch.ones(2, dtype=dtype), op)
        group.barrier()

    assert together(2, work) == [None, None]


@pytest.mark.parametrize("size", SIZES)
def test_broadcast_from_every_member(size: int) -> None:
    def work(group: Collective) -> list[Tensor]:
        results = []
        for src in range(size):
            tensor = sample(group.rank)
            group.broadcast(tensor, src)
            results.append(tensor)
        return results

    for results in together(size, work):
        for src, result in enumerate(results):
            torch.testing.assert_close(result, sample(src))


@pytest.mark.parametrize("size", [1, 2, 5])
def test_gather_scatter_and_all_to_all(size: int) -> None:
    def work(group: Collective) -> dict[str, list[Tensor]]:
        mine = sample(group.rank)
        everyone = [torch.empty(3, 4) for _ in range(size)]
        group.all_gather(everyone, mine)
        at_last = [torch.zeros(3, 4) for _ in range(size)]
        group.gather(mine, at_last if group.rank == size - 1 else None, dst=size - 1)
        part = torch.empty(3, 4)
        group.scatter(part, [sample(10 + to) for to in range(size)], src=0)
        swapped = [torch.empty(3, 4) for _ in range(size)]
        group.all_to_all(swapped, [sample(100 * group.rank + to) for to in range(size)])
        return {"all": everyone, "last": at_last, "part": [part], "swapped": swapped}

    results = together(size, work)
    samples = [sample(rank) for rank in range(size)]
    for rank, result in enumerate(results):
        torch.testing.assert_close(result["all"], samples)
        torch.testing.assert_close(result["part"], [sample(10 + rank)])
        swapped = [sample(100 * source + rank) for source in range(size)]
        torch.testing.assert_close(result["swapped"], swapped)
    torch.testing.assert_close(results[-1]["last"], samples)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128])
def test_reduce_scatter(dtype: torch.dtype) -> None:
    size = 4

    def work(group: Collective) -> Tensor:
        output = torch.empty(3, 4, dtype=dtype)
        group.reduce_scatter(output, [sample(group.rank + 7 * to, dtype) for to in range(size)])
        return output

    for rank, result in enumerate(together(size, work)):
        expected = sum(sample(source + 7 * rank, dtype) for source in range(size))
        torch.testing.assert_close(result, expected)


def test_strided_conjugated_and_recorded_tensors() -> None:
    def work(group: Collective) -> tuple[Tensor, Tensor, Tensor]:
        strided = sample(group.rank).T
        group.all_reduce(strided)
        conjugated = sample(group.rank, torch.complex64).conj()
        group.broadcast(conjugated, 1)
        recorded = torch.nn.Parameter(sample(group.rank))
        group.all_reduce(recorded, ReduceOp.AVG)
        return strided, conjugated, recorded

    for strided, conjugated, recorded in together(2, work):
        torch.testing.assert_close(strided, (sample(0) + sample(1)).T)
        torch.testing.assert_close(
            conjugated.resolve_conj(), sample(1, torch.complex64).conj_physical()
        )
        torch.testing.assert_close(recorded.data, (sample(0) + sample(1)) / 2)
        assert recorded.requires_grad


def test_operations_in_the_background_overlap_and_do_not_mix() -> None:
    def work(group: Collective) -> list[Tensor]:
        tensors = [sample(100 * at + group.rank) for at in range(10)]
        handles = [group.all_reduce(each, async_op=True) for each in tensors]
        message = torch.full((1,), float(group.rank))
        group.send(message, (group.rank + 1) % 3)
        group.recv(message, (group.rank - 1) % 3)
        for handle in reversed(handles):
            assert handle is not None
            assert handle.wait() is None
            assert handle.is_completed()
        return [*tensors, message]

    for rank, results in enumerate(together(3, work)):
        for at, result in enumerate(results[:-1]):
            torch.testing.assert_close(result, sum(sample(100 * at + each) for each in range(3)))
        assert results[-1].item() == (rank - 1) % 3


def test_a_work_that_is_not_done_in_time() -> None:
    group = Fake(0, range(2), Mail())
    work = group.broadcast(torch.zeros(1), src=1, async_op=True)
    assert work is not None
    with pytest.raises(CallTimeoutError, match=r"not answered within 0\.01 s"):
        work.wait(0.01)
    tag = USER_TAGS + 1
    Fake(1, range(2), group._mail).isend(torch.ones(1), 0, tag)
    assert work.wait(20) is None


def test_groups_call_members_by_global_rank() -> None:
    def work(world: Collective) -> tuple[Tensor, list[Any] | None] | None:
        if world.rank % 2 == 0:
            return None
        group = world.new_group([1, 3, 5])
        tensor = sample(world.rank)
        group.broadcast(tensor, src=3)
        with pytest.raises(ValueError, match=r"rank 2 is not in this group of \[1, 3, 5\]"):
            group.broadcast(tensor, src=2)
        return tensor, group.gather_object(world.rank, dst=5)

    results = together(6, work)
    for rank in (1, 3, 5):
        found = results[rank]
        assert found is not None
        torch.testing.assert_close(found[0], sample(3))
        assert found[1] == ([1, 3, 5] if rank == 5 else None)


def test_object_forms() -> None:
    def work(group: Collective) -> tuple[Any, ...]:
        return (
            group.broadcast_object({"from": group.rank}, src=2),
            group.all_gather_object(["x"] * group.rank),
            group.gather_object(group.rank, dst=1),
            group.scatter_object(["a", "b", "c"] if group.rank == 0 else None),
        )

    for rank, (told, everyone, gathered, part) in enumerate(together(3, work)):
        assert told == {"from": 2}
        assert everyone == [[], ["x"], ["x", "x"]]
        assert gathered == ([0, 1, 2] if rank == 1 else None)
        assert part == "abc"[rank]


FORMS: list[Callable[[Collective, object], object]] = [
    lambda group, obj: group.broadcast_object(obj, src=1),
    lambda group, obj: group.all_gather_object(obj),
    lambda group, obj: group.scatter_object([obj] * 3 if group.rank == 1 else None, src=1),
    lambda group, obj: group.gather_object(obj, dst=0),
]


@pytest.mark.parametrize("form", FORMS)
def test_an_object_that_cannot_be_sent_fails_whoever_waits_for_it(
    form: Callable[[Collective, object], object],
) -> None:
    def work(group: Collective) -> BaseException | None:
        obj = threading.Lock() if group.rank == 1 else "fine"
        error: BaseException | None = None
        try:
            form(group, obj)
        except SerializationError as raised:
            error = raised
        group.barrier()
        return error

    results = together(3, work)
    assert "an object of type lock cannot be serialised" in str(results[1])
    assert "the object of rank 1 cannot be serialised: that member could not" in str(results[0])


@pytest.mark.parametrize("async_op", [False, True])
def test_multigpu_forms(async_op: bool) -> None:
    def finish(work: Work[None] | None) -> None:
        assert (work is not None) == async_op
        if work is not None:
            work.wait(20)

    def pair(group: Collective) -> list[Tensor]:
        return [sample(10 * group.rank + at) for at in range(2)]

    def work(group: Collective) -> tuple[list[Tensor], ...]:
        told, total, mean, at_one = (pair(group) for _ in range(4))
        finish(group.broadcast_multigpu(told, src=2, async_op=async_op, src_tensor=1))
        finish(group.all_reduce_multigpu(total, async_op=async_op))
        finish(group.all_reduce_multigpu(mean, ReduceOp.AVG, async_op=async_op))
        finish(group.reduce_multigpu(at_one, 1, async_op=async_op, dst_tensor=1))
        outputs = [[torch.empty(3, 4) for _ in range(6)] for _ in range(2)]
        finish(group.all_gather_multigpu(outputs, pair(group), async_op=async_op))
        torch.testing.assert_close(outputs[0], outputs[1])
        return told, total, mean, at_one, outputs[0]

    everything = [sample(10 * rank + at) for rank in range(3) for at in range(2)]
    total = torch.stack(everything).sum(0)
    for rank, result in enumerate(together(3, work)):
        torch.testing.assert_close(result[0], [sample(21)] * 2)
        torch.testing.assert_close(result[1], [total] * 2)
        torch.testing.assert_close(result[2], [total / 6] * 2)
        own = [sample(10 * rank), sample(10 * rank + 1)]
        torch.testing.assert_close(result[3], [own[0], total if rank == 1 else own[1]])
        torch.testing.assert_close(result[4], everything)


def test_what_does_not_fit_is_refused() -> None:
    group = Fake(0, range(2), Mail())
    one = torch.zeros(1)
    with pytest.raises(
        ValueError, match="tensor_list has one entry for each of the 2 members, not 1"
    ):
        group.all_gather([one], one)
    with pytest.raises(ValueError, match=r"scatter_list has .* not nothing"):
        group.scatter(one)
    with pytest.raises(ValueError, match="objs has one entry"):
        group.scatter_object(["only"])
    with pytest.raises(ValueError, match="at least one tensor"):
        group.all_reduce_multigpu([])
    with pytest.raises(ValueError, match="each list of outputs has 2 tensors, not 1"):
        group.all_gather_multigpu([[one]], [one])


@pytest.mark.parametrize("tag", [-1, USER_TAGS])
def test_tags_of_the_operations_are_not_the_users(tag: int) -> None:
    group = Fake(0, range(2), Mail())
    with pytest.raises(ValueError, match=f"a tag is at least 0 and less than {USER_TAGS}, not"):
        group.send(torch.zeros(1), 1, tag)
    with pytest.raises(ValueError, match="a tag is at least 0"):
        group.recv(torch.zeros(1), 1, tag)
