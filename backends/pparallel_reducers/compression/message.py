"""A compressed gradient on its way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from typing_extensions import Buffer

from pparallel_reducers.compression.bf16 import Bf16
from pparallel_reducers.compression.pieces import Memory, Piece, Shapes, Whole, compressible, total
from pparallel_reducers.compression.powersgd import LowRank
from pparallel_reducers.compression.topk import TopK
from pparallel_reducers.layout import Flats

if TYPE_CHECKING:
    import torch

Body = list[tuple[str, tuple[int, ...]]]  #: for each dtype the kind of its piece, and its words

_KINDS: Mapping[str, type[Piece]] = {each.kind: each for each in (Whole, Bf16, TopK, LowRank)}


class Compressed:
    """What is sent of a gradient: for each dtype a piece, in the order of the shapes."""

    def __init__(self, shapes: Shapes, pieces: Mapping[torch.dtype, Piece]) -> None:
        self._shapes = shapes
        self._pieces = pieces

    def body(self) -> Body:
        """Return what :meth:`received` needs beside :meth:`memory`: small and plain."""
        return [(each.kind, each.words()) for each in self._pieces.values()]

    def memory(self) -> list[Buffer]:
        """Return the memory to send, all on the CPU."""
        import torch

        # numpy, through which the memory is reached, knows neither bfloat16 nor float8.
        return [
            each.view(torch.uint8).numpy().data
            for piece in self._pieces.values()
            for each in piece.tensors()
        ]

    @classmethod
    def received(cls, shapes: Shapes, body: object, memory: Sequence[Buffer]) -> Compressed:
        """Return the message that arrived, over *memory*, which is only read.

        Raises:
            ValueError: it does not fit *shapes*, or is no message at all; it says what is wrong.
        """
        told = _told(body)
        if len(told) != len(shapes):
            message = f"{len(told)} dtypes arrived, and the model has {len(shapes)}"
            raise ValueError(message)
        left = Memory(memory)
        pieces: dict[torch.dtype, Piece] = {}
        for (dtype, own), (kind, words) in zip(shapes.items(), told, strict=True):
            if _KINDS[kind] is not Whole and not compressible(dtype):
                message = f"{dtype} arrived as {kind!r}, and is never compressed"
                raise ValueError(message)
            pieces[dtype] = _KINDS[kind].rebuilt(dtype, own, words, left)
        left.end()
        return cls(shapes, pieces)

    @property
    def nbytes(self) -> int:
        """How many bytes :meth:`memory` holds."""
        return sum(memoryview(each).nbytes for each in self.memory())

    def add_to(self, flats: Flats) -> None:
        """Add the gradient to *flats* in place, on whatever device each is."""
        for dtype, piece in self._pieces.items():
            piece.add_to(flats[dtype])

    def dense(self, device: str = "cpu") -> Flats:
        """Return the gradient as new flat tensors on *device*."""
        import torch

        flats = {
            dtype: torch.zeros(total(shapes), dtype=dtype, device=device)
            for dtype, shapes in self._shapes.items()
        }
        self.add_to(flats)
        return flats

    def finite(self) -> bool:
        """Return whether no number in it is infinite or NaN."""
        return all(each.finite() for each in self._pieces.values())


def _told(body: object) -> Body:
    """Return *body* as what it should be.

    Raises:
        ValueError: it is something else.
    """
    told: Body = []
    for each in body if isinstance(body, list | tuple) else [body]:
        match each:
            case (str(kind), [*given]) if kind in _KINDS:
                words = tuple(x for x in given if type(x) is int)
                if len(words) == len(given):
                    told.append((kind, words))
                    continue
        known = ", ".join(_KINDS)
        message = f"{each!r} arrived where a kind and its words belong; kinds: {known}"
        raise ValueError(message)
    return told
