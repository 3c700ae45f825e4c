"""Matrices of low rank.

Source: PowerSGD: Vogels, Karimireddy, Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression
for Distributed Optimization", NeurIPS 2019. There the members all-reduce the two factors one after
the other, so that all have the same; here each member approximates its own gradient and sends both
factors, and the receiver adds up their products.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from typing_extensions import override

from pparallel_reducers.compression.pieces import Memory, Piece, Shape

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class _Place(NamedTuple):
    """One tensor in the flat tensor, and in what is sent.

    Attributes:
        start: where it begins in the flat tensor.
        end: where it ends there.
        shape: as a matrix, if its factors are sent.
        rank: of these; 0 if it is sent as it is.
        sent: where it begins in what is sent.
    """

    start: int
    end: int
    shape: tuple[int, int]
    rank: int
    sent: int

    @property
    def size(self) -> int:
        """How many entries are sent."""
        rows, columns = self.shape
        return self.rank * (rows + columns) if self.rank else self.end - self.start

    def factors(self, sent: Tensor) -> tuple[Tensor, Tensor]:
        """Return [rows, rank] and [columns, rank], views of what is *sent*."""
        (rows, columns), middle = self.shape, self.sent + self.shape[0] * self.rank
        left = sent[self.sent : middle].view(rows, self.rank)
        return left, sent[middle : self.sent + self.size].view(columns, self.rank)


class LowRank(Piece):
    """The two factors of each matrix, and the other tensors as they are, in one flat tensor."""

    kind = "powersgd"

    def __init__(self, rank: int, places: Sequence[_Place], sent: Tensor) -> None:
        self._rank = rank
        self._places = places
        self._sent = sent

    @override
    def words(self) -> tuple[int, ...]:
        return (self._rank,)

    @override
    def tensors(self) -> list[Tensor]:
        return [self._sent]

    @override
    def add_to(self, flat: Tensor, sign: int = 1) -> None:
        sent = self._sent.to(flat.device, flat.dtype)
        for place in self._places:
            mine = flat[place.start : place.end]
            if place.rank:
                left, right = place.factors(sent)
                with _whole_numbers(flat.device):
                    mine.view(place.shape).addmm_(left, right.T, alpha=sign)
            else:
                mine.add_(sent[place.sent :][: place.size], alpha=sign)

    @classmethod
    @override
    def rebuilt(
        cls, dtype: torch.dtype, shapes: Sequence[Shape], words: Sequence[int], memory: Memory
    ) -> Self:
        if len(words) != 1 or words[0] < 1:
            message = f"a rank is at least 1, and {list(words)!r} arrived for {dtype}"
            raise ValueError(message)
        places = list(_placed(shapes, words[0]))
        sent = sum(each.size for each in places)
        what = f"{dtype} sent with rank {words[0]}"
        return cls(words[0], places, memory.take(dtype, sent, what))


class PowerSgd:
    """Approximates the matrices in a flat tensor; begins where it ended the time before.

    A column of a right factor that is zero, to rounding, is drawn anew: it would never find what
    the matrices that follow have in other rows or columns.
    """

    def __init__(self, rank: int, shapes: Sequence[Shape]) -> None:
        import torch

        self._rank = rank
        self._places = list(_placed(shapes, rank))
        self._random = torch.Generator().manual_seed(0)
        self._right: dict[int, Tensor] = {}  # by where the matrix starts: [columns, rank]

    @property
    def saves(self) -> bool:
        """Whether there is a matrix whose factors are smaller than it."""
        return any(each.rank for each in self._places)

    def approximate(self, flat: Tensor, dtype: torch.dtype) -> LowRank:
        """Return an approximation of *flat*, to be sent as *dtype*.

        Args:
            flat: [n] float32 or float64, on the CPU and finite.
            dtype: in which it is sent.
        """
        sent = flat.new_empty(sum(each.size for each in self._places))
        for place in self._places:
            mine = flat[place.start : place.end]
            if place.rank:
                self._factor(place, mine.view(place.shape), place.factors(sent))
            else:
                sent[place.sent :][: place.size] = mine
        return LowRank(self._rank, self._places, sent.to(dtype))

    def state_dict(self) -> dict[str, Any]:
        """Return the right factors, by the number of the tensor, and the state of the generator."""
        return {
            "random": self._random.get_state(),
            "right": {
                str(number): self._right[place.start].clone()
                for number, place in enumerate(self._places)
                if place.start in self._right
            },
        }

    def validate(self, state: Mapping[str, Any]) -> None:
        """Refuse *state* if it is of other matrices, or of another rank.

        Raises:
            ValueError: it is.
        """
        for number, factor in state["right"].items():
            place = self._places[int(number)] if int(number) < len(self._places) else None
            shape = None if place is None or not place.rank else (place.shape[1], place.rank)
            if tuple(factor.shape) != shape:
                message = (
                    f"the state has a right factor of shape {tuple(factor.shape)} for tensor"
                    f" {number}, which takes one of {shape}: 'rank' or the model is another"
                )
                raise ValueError(message)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from *state*, which :meth:`validate` has accepted."""
        factors = state["right"].items()
        self._right = {
            self._places[int(number)].start: each.to("cpu", copy=True) for number, each in factors
        }
        self._random.set_state(state["random"].cpu())

    def _factor(self, place: _Place, matrix: Tensor, factors: tuple[Tensor, Tensor]) -> None:
        """Make one step of a subspace iteration towards the best factors."""
        import torch

        right = self._right.get(place.start)
        if right is None:
            right = self._drawn(place, matrix.dtype)
        # Householder's method gives orthonormal columns even where the rank is smaller.
        with _whole_numbers(matrix.device):
            basis = torch.linalg.qr(matrix @ right).Q
            factors[0].copy_(basis)
            torch.mm(matrix.T, basis, out=right)
        factors[1].copy_(right)
        if right.isfinite().all():
            self._right[place.start] = self._renewed(place, right)
        else:
            self._right.pop(place.start, None)

    def _renewed(self, place: _Place, right: Tensor) -> Tensor:
        """Return *right* with columns drawn anew for those that are zero, to rounding."""
        import torch

        sizes = right.abs().amax(0)  # squares of small numbers would be zero
        largest = sizes.max()
        noise = torch.finfo(right.dtype).eps * max(place.shape)
        degenerate = sizes <= noise * largest
        if largest > 0:
            # Only the directions matter. Products with gradients as small, or as large, again would
            # be zero or infinite; a power of two keeps all digits.
            right = torch.ldexp(right, -torch.frexp(largest).exponent)
        if degenerate.any():
            right[:, degenerate] = self._drawn(place, right.dtype)[:, degenerate]
        return right

    def _drawn(self, place: _Place, dtype: torch.dtype) -> Tensor:
        import torch

        shape = (place.shape[1], place.rank)
        return torch.randn(shape, generator=self._random, dtype=dtype)


def _whole_numbers(device: torch.device) -> AbstractContextManager[object]:
    """Have products made in the dtype of the factors, where a program pushes inside autocast."""
    import torch

    return torch.autocast(device.type, enabled=False)


def _placed(shapes: Sequence[Shape], rank: int) -> Iterator[_Place]:
    start = sent = 0
    for shape in shapes:
        size = math.prod(shape)
        rows = shape[0] if shape else 1
        columns = size // rows if rows else 0
        fitting = min(rank, rows, columns) if len(shape) > 1 else 0
        if fitting * (rows + columns) >= size:
            fitting = 0
        place = _Place(start, start + size, (rows, columns), fitting, sent)
        yield place
        start, sent = place.end, sent + place.size
