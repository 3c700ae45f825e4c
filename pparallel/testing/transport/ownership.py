"""Tensors that arrive are the receiver's own, whatever the serializer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pparallel.testing.patience import PATIENCE
from pparallel.testing.serializer import make_tensors
from pparallel.testing.transport.base import Run, TransportTests
from pparallel.testing.transport.called import note, noted

if TYPE_CHECKING:
    import torch

    from pparallel.builder import Runtime


def make_values() -> dict[str, torch.Tensor]:
    """Return tensors of every kind, and a large one."""
    import torch

    return {**make_tensors(), "large": torch.arange(300_000.0)}


def check_same(found: dict[str, torch.Tensor]) -> None:
    """Check that *found* is what :func:`make_values` returns."""
    import torch

    made = make_values()
    assert found.keys() == made.keys()
    for name, expected in made.items():
        assert torch.equal(found[name], expected), f"{name} has changed"


def fill(values: dict[str, torch.Tensor], byte: int) -> None:
    """Overwrite all memory of *values*."""
    for each in values.values():
        _memory(each).fill_(byte)


def check_filled(values: dict[str, torch.Tensor], byte: int) -> None:
    """Check that the memory of *values* holds nothing but *byte*."""
    for name, tensor in values.items():
        assert (_memory(tensor) == byte).all(), f"{name} has changed"


def _memory(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


def take(values: dict[str, torch.Tensor], byte: int) -> dict[str, torch.Tensor]:
    """Check what arrived, overwrite it, keep it, and send it back: in the receiver."""
    check_same(values)
    fill(values, byte)
    note((values, byte))
    return values


def give() -> Any:
    """Send back what was taken first: in the receiver."""
    return noted()[0][0]


def look() -> int:
    """Check that nobody else changed what was taken: in the receiver."""
    for values, byte in noted():
        check_filled(values, byte)
    return len(noted())


def own_tensors(rt: Runtime) -> None:
    """Send tensors to every member, itself among them, and look who sees which change."""
    group = rt.group()
    for function in (take, give, look):
        group.register(f"{function.__name__} {rt.rank}", function)
    group.pair(f"values {rt.rank}", make_values())
    group.barrier(PATIENCE)
    if rt.rank == 0:
        mine = make_values()
        for to in range(rt.world_size):
            _check_back(group.registered_sync(f"take {to}", args=(mine, 10 + to)), 10 + to)
            check_same(mine)
        both = {
            to: group.registered_async(f"take {to}", args=(mine,), kwargs={"byte": 20 + to})
            for to in (1, 2)
        }
        for to, future in both.items():
            _check_back(future.wait(), 20 + to)
        check_same(mine)
        for _ in range(2):  # the same object, to the same receiver
            _check_back(group.registered_sync("give 1"), 11)
            paired = group.get_paired("values 1").to_here()
            check_same(paired)
            fill(paired, 30)
        fill(mine, 31)
        assert [group.registered_sync(f"look {to}") for to in range(3)] == [1, 2, 2]
    group.barrier(PATIENCE)


def _check_back(back: dict[str, torch.Tensor], byte: int) -> None:
    check_filled(back, byte)
    fill(back, 30)


class OwnershipTests(TransportTests):
    """Tests that no two members, nor two calls of one, ever share memory."""

    @pytest.mark.parametrize("serializer", ["dill", "safe"])
    def test_tensors_are_the_receivers_own(self, run: Run, serializer: str) -> None:
        pytest.importorskip("torch")
        run(own_tensors, members=3, serializer=serializer)
