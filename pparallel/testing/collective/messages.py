"""Programs of the collective suite: messages, tags, groups, objects."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from pparallel.interfaces.collective import USER_TAGS, Collective, ReduceOp
from pparallel.testing.collective.samples import LARGE, same, sample
from pparallel.testing.patience import PATIENCE

if TYPE_CHECKING:
    from torch import Tensor

    from pparallel.builder import Runtime


def number(value: int, device: str, size: int = 1) -> Tensor:
    """Return a message that says a number, on so many elements."""
    import torch

    return torch.full((size,), value, dtype=torch.int64, device=device)


def ring(rt: Runtime, device: str, dtypes: Sequence[str]) -> None:
    """Everyone sends to the next before it receives from the one before."""
    group, size = rt.collective, rt.world_size
    after, before = (rt.rank + 1) % size, (rt.rank - 1) % size
    for dtype in dtypes:
        mine, got = sample(rt.rank, dtype, device), sample(rt.rank, dtype, device).zero_()
        sent = group.isend(mine.T, after)
        assert group.recv(got.T, before) == before
        sent.wait(PATIENCE)
        same(got, sample(before, dtype, device), f"a message of {dtype}")
        got.zero_()
        same(mine, sample(rt.rank, dtype, device), "what was sent")
    conjugated, got = sample(rt.rank, "complex64", device), sample(0, "complex64", device)
    sent = group.isend(conjugated.conj(), after)
    group.recv(got, before)
    sent.wait(PATIENCE)
    same(got, sample(before, "complex64", device).conj_physical(), "a conjugated message")


def order(rt: Runtime, device: str, count: int) -> None:
    """Messages of various sizes; the receiver comes first for some and last for others."""
    group = rt.collective
    sizes = [1 if at % 3 else 1 + 20_000 * (at % 2) for at in range(count)]
    if rt.rank == 0:
        sent = [group.isend(number(at, device, size), 1) for at, size in enumerate(sizes)]
        for each in sent:
            each.wait(PATIENCE)
        group.barrier()
        for at, size in enumerate(sizes):
            group.send(number(at, device, size), 1)
    if rt.rank == 1:
        _receive_in_order(group, sizes, device, ahead=1)
        group.barrier()
        _receive_in_order(group, sizes, device, ahead=10)


def _receive_in_order(group: Collective, sizes: Sequence[int], device: str, ahead: int) -> None:
    for first in range(0, len(sizes), ahead):
        tensors = [number(-1, device, size) for size in sizes[first : first + ahead]]
        works = [group.irecv(each, 0) for each in tensors]
        assert [work.wait(PATIENCE) for work in works] == [0] * len(works)
        for at, tensor in enumerate(tensors, start=first):
            assert (tensor == at).all(), f"message {at} came out of order: {tensor[0]}"


def tags(rt: Runtime, device: str) -> None:
    """Tags are received in another order than they are sent in."""
    group = rt.collective
    if rt.rank == 0:
        for at in range(20):
            for tag in (3, 0, USER_TAGS - 1):
                group.send(number(100 * at + tag, device), 1, tag)
    if rt.rank == 1:
        late = [number(-1, device) for _ in range(10)]
        works = [group.irecv(each, 0, tag=3) for each in late]
        for tag, count in ((USER_TAGS - 1, 20), (0, 20)):
            _receive_tag(group, tag, range(count), device)
        for at, (work, tensor) in enumerate(zip(works, late, strict=True)):
            work.wait(PATIENCE)
            assert tensor.item() == 100 * at + 3, "a message of another tag"
        _receive_tag(group, 3, range(10, 20), device)
    group.barrier()


def _receive_tag(group: Collective, tag: int, numbers: range, device: str) -> None:
    for at in numbers:
        tensor = number(-1, device)
        assert group.recv(tensor, 0, tag) == 0
        assert tensor.item() == 100 * at + tag, "a message of another tag, or out of order"


def no_tags(rt: Runtime, device: str) -> None:
    with pytest.raises(ValueError, match="tag"):
        rt.collective.isend(number(0, device), 1 - rt.rank, tag=1)
    with pytest.raises(ValueError, match="tag"):
        rt.collective.irecv(number(0, device), 1 - rt.rank, tag=1)


def any_source(rt: Runtime, device: str, count: int) -> None:
    """Everyone sends to the first, which sometimes asks for a certain sender."""
    group, senders = rt.collective, range(1, rt.world_size)
    for at in range(count if rt.rank else 0):
        group.send(number(1000 * rt.rank + at, device), 0)
    if rt.rank == 0:
        _receive_from_anyone(group, dict.fromkeys(senders, 0), device, count)
    group.barrier()


def _receive_from_anyone(group: Collective, seen: dict[int, int], device: str, count: int) -> None:
    for at in range(count * len(seen)):
        tensor = number(-1, device)
        wanted = 1 if at % 5 == 0 and seen[1] < count else None
        source = (
            group.irecv(tensor, wanted).wait(PATIENCE) if at % 2 else group.recv(tensor, wanted)
        )
        assert wanted in (None, source)
        assert tensor.item() == 1000 * source + seen[source], "not what that sender sent next"
        seen[source] += 1
    assert set(seen.values()) == {count}


def no_any_source(rt: Runtime, device: str) -> None:
    with pytest.raises(ValueError, match="src"):
        rt.collective.irecv(number(0, device))


def change_after_sending(rt: Runtime, device: str) -> None:
    """The receiver comes when what was sent has been changed long since."""
    group = rt.collective
    for size in (1, 1000, LARGE):
        tensor = number(rt.rank + 7, device, size)
        if rt.rank == 0:
            group.isend(tensor, 1).wait(PATIENCE)
            tensor.fill_(-1)
            group.send(tensor, 1)
            tensor.fill_(-2)
        group.barrier()
        if rt.rank == 1:
            for expected in (7, -1):
                group.recv(tensor, 0)
                assert (tensor == expected).all(), "a message changed with its sender's tensor"


def both_ways(rt: Runtime, device: str) -> None:
    """Both send all they have before they receive anything."""
    group, other = rt.collective, 1 - rt.rank
    works = [group.isend(number(at, device, LARGE), other) for at in range(3)]
    for each in works:
        each.wait(PATIENCE)
    for at in range(3):
        tensor = number(-1, device, LARGE)
        group.recv(tensor, other)
        assert (tensor == at).all()


def many_threads(rt: Runtime, device: str, count: int) -> None:
    """Each thread talks with its like by a tag of its own."""
    group, other = rt.collective, 1 - rt.rank
    errors: list[BaseException] = []

    def talk(tag: int) -> None:
        try:
            for at in range(count):
                tensor = number(1000 * tag + at, device)
                sent = group.isend(tensor, other, tag)
                got = number(-1, device)
                group.recv(got, other, tag)
                sent.wait(PATIENCE)
                assert got.item() == 1000 * tag + at, "a message of another thread"
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    threads = [threading.Thread(target=talk, args=(tag,)) for tag in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    if errors:
        raise errors[0]


def what_does_not_fit(rt: Runtime, device: str) -> None:
    """A message of another shape or dtype is an error of its receiver, and of nobody else."""
    group = rt.collective
    for shape, dtype in (((4, 3), "float32"), ((12,), "float32"), ((3, 4), "int32")):
        if rt.rank == 0:
            group.send(sample(1, device=device), 1)
            group.send(sample(2, device=device), 1)
        else:
            target = sample(3, dtype, device).reshape(shape)
            kept = target.clone()
            with pytest.raises(ValueError, match="does not fit"):
                group.recv(target, 0)
            same(target, kept, "the target of what does not fit")
            group.recv(target := sample(3, device=device), 0)
            same(target, sample(2, device=device), "the message after it")
        group.barrier()


def operation_that_does_not_fit(rt: Runtime, device: str, name: str) -> None:
    """Some member, or all, must find it; the others end with the job."""
    tensor = sample(0, device=device)
    if rt.rank == 1:
        tensor = tensor.reshape(-1)[:5].clone()
    if name == "broadcast":
        rt.collective.broadcast(tensor, 0)
    elif name == "all_gather":
        rt.collective.all_gather([tensor.clone(), tensor.clone()], tensor)
    else:
        rt.collective.all_reduce(tensor)
    rt.collective.barrier()


def wrong_arguments(rt: Runtime, device: str) -> None:
    group, one = rt.collective, number(0, device)
    refused: list[tuple[str, Callable[[], object]]] = [
        ("rank 7 is not in this group", lambda: group.send(one, 7)),
        ("rank 7 is not in this group", lambda: group.broadcast(one, 7)),
        ("rank -1 is not in this group", lambda: group.recv(one, -1)),
        ("is this member", lambda: group.send(one, rt.rank)),
        ("is this member", lambda: group.recv(one, rt.rank)),
        ("a tag is at least 0", lambda: group.send(one, 1 - rt.rank, -1)),
        ("a tag is at least 0 and less", lambda: group.recv(one, 1 - rt.rank, USER_TAGS)),
        ("one entry for each of the 2 members, not 1", lambda: group.all_gather([one], one)),
        (
            "one entry for each of the 2 members, not nothing",
            lambda: group.scatter(one, None, rt.rank),
        ),
        ("objs has one entry", lambda: group.scatter_object(["only"], rt.rank)),
        ("AVG does not apply to", lambda: group.all_reduce(one, ReduceOp.AVG)),
        ("BXOR does not apply to", lambda: group.all_reduce(one.float(), ReduceOp.BXOR)),
        ("MAX does not apply to", lambda: group.reduce(one.to(_complex()), 0, ReduceOp.MAX)),
        ("at least one tensor", lambda: group.all_reduce_multigpu([])),
        ("has 2 tensors, not 1", lambda: group.all_gather_multigpu([[one]], [one])),
        ("rank 5 is not in this group", lambda: group.new_group([0, 1, 5])),
        ("each member once", lambda: group.new_group([0, 1, 1])),
        ("only its members", lambda: group.new_group([1 - rt.rank])),
    ]
    for message, call in refused:
        with pytest.raises(ValueError, match=message):
            call()
    group.barrier()


def _complex() -> Any:
    import torch

    return torch.complex64
