"""Which tensors of an operation share memory."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any

import pytest
import torch

from pparallel.interfaces.collective.memory import overlaps_itself, share_memory

if TYPE_CHECKING:
    from torch import Tensor

ROOM = torch.zeros(240)
CUBE, TABLE = ROOM.view(4, 6, 10), ROOM.view(24, 10)


def _bytes(tensor: Tensor) -> set[int]:
    places = torch.arange(1000).as_strided(tensor.shape, tensor.stride()).flatten().tolist()
    size = tensor.itemsize
    return {tensor.data_ptr() + size * place + at for place in places for at in range(size)}


@pytest.mark.parametrize(
    "tensors",
    [
        TABLE.chunk(4, 1),
        TABLE.split([1, 9], 1),
        (TABLE[:, :4], TABLE[:, 3:]),
        (TABLE[::2], TABLE[1::2]),
        (TABLE[::2, :5], TABLE[1::2, 5:]),
        (TABLE[::2, :5], TABLE[::2, 5:]),
        (TABLE[:, :5], TABLE[1, 5:]),
        (TABLE[:, :5], TABLE[1, 4:]),
        (TABLE.T[::2], TABLE.T[1::2]),
        [ROOM[at::7][:30] for at in range(7)],
        [ROOM[at::7][:30] for at in range(8)],
        CUBE.chunk(3, 1),
        CUBE.chunk(5, 2),
        (CUBE[:, :3, :5], CUBE[:, 3:, :5], CUBE[:, :3, 5:], CUBE[:, 3:, 5:]),
        (CUBE[:, :3, :5], CUBE[:, 3:, :5], CUBE[:, :3, 5:], CUBE[:, 2:5, 5:]),
        (CUBE.permute(2, 0, 1)[:5], CUBE.permute(2, 0, 1)[5:]),
        (CUBE.permute(2, 0, 1)[:6], CUBE.permute(2, 0, 1)[5:]),
        (ROOM.as_strided((3, 3), (1, 1)), ROOM[3:].as_strided((3, 3), (1, 1))),
        (ROOM.as_strided((5, 3), (2, 20)), ROOM[9:].as_strided((5, 3), (2, 20))),
        (ROOM.as_strided((5, 3), (2, 7)), ROOM[1:].as_strided((5, 3), (2, 7))),
        (ROOM[:1].expand(3), ROOM[::2]),
        (ROOM[1:2].expand(3), ROOM[::2]),
        (ROOM[1:2].expand(2, 3), ROOM.view(torch.float64)[::2]),
        (ROOM.view(torch.uint8)[1::8], ROOM.view(torch.uint8)[3::8]),
        (ROOM.view(torch.uint8)[1::8], ROOM[::2]),
        (ROOM.view(torch.uint8)[5::8], ROOM[::2]),
    ],
)
def test_tensors_share_memory(tensors: tuple[Tensor, ...]) -> None:
    expected = any(_bytes(one) & _bytes(other) for one, other in combinations(tensors, 2))
    assert share_memory(tensors) == expected


def test_columns_need_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: Any) -> None:
        raise AssertionError("room as large as the tensors")

    monkeypatch.setattr(torch, "zeros", refuse)
    assert not share_memory(TABLE.chunk(5, 1))
    assert not share_memory(TABLE.T.chunk(5))
    assert not share_memory(CUBE.chunk(3, 1))
    assert not share_memory([TABLE[at::3] for at in range(3)])


def test_a_tensor_overlaps_itself() -> None:
    for each in (
        ROOM[:1].expand(3),
        ROOM.as_strided((4, 4), (1, 1)),
        ROOM.as_strided((3, 4), (3, 1)),
        ROOM.unfold(0, 10, 9),
    ):
        assert overlaps_itself(each), each.stride()
    for each in (
        ROOM,
        CUBE.permute(1, 2, 0),
        TABLE[:, ::3].T,
        TABLE.diagonal(),
        ROOM[:1].expand(1, 1),
        ROOM.as_strided((4, 1), (1, 0)),
        ROOM.unfold(0, 10, 10),
        ROOM[:1].expand(3)[:0],
    ):
        assert not overlaps_itself(each), each.stride()
