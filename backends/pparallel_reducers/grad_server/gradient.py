"""One member's gradient, on its way to a secondary."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pparallel.runtime.rpc import RpcGroup
from pparallel_reducers.grad_server.flat import Flat, Source
from pparallel_reducers.grad_server.shares import Share
from pparallel_reducers.gradients import (
    dense,
    first_not_finite,
    first_with_nan,
    gradient_in_its_dtype,
)
from pparallel_reducers.layout import ModelTensors

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

    from pparallel_reducers.grad_server.squeezed import Squeezed, Squeezer


class Gradient:
    """The gradients of a model with its buffers; packed as they are sent, and only once.

    Attributes:
        layout: the model's.
        versions: for each share, of the parameters that it was computed on.
    """

    def __init__(
        self,
        model: Module,
        tensors: ModelTensors,
        versions: Sequence[int],
        squeezer: Callable[[], Squeezer | None] = lambda: None,
    ) -> None:
        """Look at *model*, which must not change until this is sent.

        Args:
            model: the model.
            tensors: its tensors.
            versions: of the parameters.
            squeezer: returns the compressor of it; None: it is sent as it is.

        Raises:
            ValueError: a trainable parameter has no gradient, or one of another dtype, or a buffer
                changed its shape.
        """
        self.layout = tensors.layout
        self.versions = list(versions)
        self._trainable = tensors.trainable
        self._gradients = [
            (name, gradient_in_its_dtype(name, each)) for name, each in tensors.trainable
        ]
        self._buffers = tensors.buffers(model)
        self._tensors = {**dict(self._buffers), **dict(self._gradients)}
        self._packed: list[memoryview] = []
        self._find_squeezer = squeezer
        self._squeezer: Squeezer | None = None
        self._squeezed: Squeezed | None = None

    @property
    def tensors(self) -> list[Tensor]:
        """The gradients themselves."""
        return [each for _, each in self._gradients]

    def put_back(self) -> None:
        """Give the parameters their gradients again."""
        for (_, parameter), (_, gradient) in zip(self._trainable, self._gradients, strict=True):
            parameter.grad = gradient

    def not_finite(self) -> str | None:
        """Return why it is to be refused where ``refuse_nan`` is set, None if it is not."""
        if (name := first_not_finite(self._gradients)) is not None:
            return f"the gradient of {name!r} is not finite"
        if (name := first_with_nan(self._buffers)) is not None:
            return f"buffer {name!r} holds NaN"
        return None

    def squeezed(self) -> Squeezed | None:
        """Return it compressed, if it is to be; the first time it is asked, it is compressed."""
        if self._squeezed is None and (squeezer := self._find_squeezer()) is not None:
            self._squeezer, self._squeezed = squeezer, squeezer.squeeze(self._dense)
        return self._squeezed

    def settle(self) -> None:
        """Note that it is accepted, before the next one is compressed."""
        if self._squeezer is not None:
            self._squeezer.settle(True)

    def pack(self, shares: Sequence[Share], sources: Sequence[Source]) -> list[Flat]:
        """Return it packed for a secondary of this member: in memory that is the secondary's."""
        flats = [each.take() for each in sources]
        for share, flat in zip(shares, flats, strict=True):
            flat.pack(partial(self._part, share))
        return flats

    def pieces(self, shares: Sequence[Share], group: RpcGroup) -> Iterator[memoryview]:
        """Yield it piece by piece, to be sent; what was packed before is not packed again."""
        yield from self._packed
        todo = [(share, index) for share in shares for index in range(len(share.image.pieces))]
        for share, index in todo[len(self._packed) :]:
            start, end = share.image.pieces[index]
            memory = group.memory(end - start)
            flats = share.image.flats(index, memory)
            share.image.fill(index, flats, partial(self._part, share))
            group.publish(memory)
            self._packed.append(memory)
            yield memory

    def _part(self, share: Share, name: str) -> Tensor:
        return share.part(name, self._dense(name))

    def _dense(self, name: str) -> Tensor:
        """Return a tensor to be packed; of a sparse gradient a dense copy, which is made once."""
        found = self._tensors[name] = dense(self._tensors[name])
        return found
