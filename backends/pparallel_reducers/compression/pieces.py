"""What is sent of one flat tensor."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Self, TypeAlias

from typing_extensions import Buffer, override

from pparallel.runtime.memory import writable
from pparallel_reducers.layout import Entry

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Shape: TypeAlias = tuple[int, ...]
#: Per dtype, the shapes of the tensors that lie end to end in the flat tensor of that dtype.
Shapes: TypeAlias = "Mapping[torch.dtype, Sequence[Shape]]"


def shapes_of(entries: Iterable[Entry], kind: str = "trainable") -> Shapes:
    """Return the shapes of those *entries* of a layout that are of *kind*, in their order."""
    import torch

    shapes: dict[torch.dtype, list[Shape]] = {}
    for entry in entries:
        if entry.kind == kind:
            shapes.setdefault(getattr(torch, entry.dtype), []).append(tuple(entry.shape))
    return shapes


def total(shapes: Iterable[Shape]) -> int:
    """Return how many entries tensors of *shapes* have together."""
    return sum(map(math.prod, shapes))


def compressible(dtype: torch.dtype) -> bool:
    """Return whether there are ways to make tensors of *dtype* smaller."""
    return dtype.is_floating_point and dtype.itemsize > 1


class Piece(ABC):
    """What is sent of one flat tensor: some tensors and few words."""

    kind: ClassVar[str]

    @abstractmethod
    def words(self) -> tuple[int, ...]:
        """Return what :meth:`rebuilt` needs to know beside the shapes: plain numbers."""

    @abstractmethod
    def tensors(self) -> list[Tensor]:
        """Return what is sent; contiguous."""

    @abstractmethod
    def add_to(self, flat: Tensor, sign: int = 1) -> None:
        """Add what is meant, times *sign*, to *flat* in place, wherever that is."""

    @classmethod
    @abstractmethod
    def rebuilt(
        cls, dtype: torch.dtype, shapes: Sequence[Shape], words: Sequence[int], memory: Memory
    ) -> Self:
        """Return the piece that :meth:`words` and :meth:`tensors` describe, over that memory.

        Raises:
            ValueError: they do not fit together, or the shapes.
        """

    def finite(self) -> bool:
        """Return whether no number is infinite or NaN."""
        return all(bool(each.isfinite().all()) for each in self.tensors())


class Memory:
    """The buffers of a message, taken one after the other and checked."""

    def __init__(self, buffers: Iterable[Buffer]) -> None:
        self._left = list(buffers)[::-1]

    def take(self, dtype: torch.dtype, size: int, what: str) -> Tensor:
        """Return a tensor of *size* entries over the next buffer; *what* names it in errors.

        Raises:
            ValueError: there is none, or it is of another size.
        """
        import torch

        if not self._left:
            message = f"the message ends before {what}"
            raise ValueError(message)
        buffer = memoryview(self._left.pop())
        held, wanted = buffer.nbytes, size * dtype.itemsize
        if held != wanted:
            message = f"{held} bytes of {what} arrived, not {wanted}"
            raise ValueError(message)
        if not size:
            return torch.empty(0, dtype=dtype)
        # Tensors cannot be read-only: nobody writes to these.
        return torch.frombuffer(writable(buffer) if buffer.readonly else buffer, dtype=dtype)

    def end(self) -> None:
        """Check that nothing is left.

        Raises:
            ValueError: there is.
        """
        if self._left:
            message = f"{len(self._left)} buffers more than the message speaks of arrived"
            raise ValueError(message)


def no_words(kind: str, words: Sequence[int]) -> None:
    """Refuse *words* for a *kind* that takes none.

    Raises:
        ValueError: there are some.
    """
    if len(words):
        message = f"{kind!r} takes no words, but {list(words)!r} arrived"
        raise ValueError(message)


class Whole(Piece):
    """The flat tensor as it is, or each of its entries in another dtype."""

    kind = "whole"
    how: ClassVar[str] = "whole"  #: it is sent, in words

    def __init__(self, flat: Tensor) -> None:
        self._flat = flat

    @override
    def words(self) -> tuple[int, ...]:
        return ()

    @override
    def tensors(self) -> list[Tensor]:
        return [self._flat]

    @override
    def add_to(self, flat: Tensor, sign: int = 1) -> None:
        flat.add_(self._flat.to(flat.device), alpha=sign)

    @classmethod
    @override
    def rebuilt(
        cls, dtype: torch.dtype, shapes: Sequence[Shape], words: Sequence[int], memory: Memory
    ) -> Self:
        no_words(cls.kind, words)
        return cls(memory.take(cls.sent_as(dtype), total(shapes), f"{dtype} sent {cls.how}"))

    @classmethod
    def sent_as(cls, dtype: torch.dtype) -> torch.dtype:
        """Return the dtype in which entries of *dtype* are sent."""
        return dtype
