"""Compress gradients, and remember what was left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, assert_never

from pparallel_reducers.compression.bf16 import to_bf16
from pparallel_reducers.compression.config import (
    Bf16CompressionConfig,
    CompressionConfig,
    PowerSgdCompressionConfig,
    TopKCompressionConfig,
)
from pparallel_reducers.compression.message import Compressed
from pparallel_reducers.compression.pieces import Piece, Shape, Shapes, Whole, compressible, total
from pparallel_reducers.compression.powersgd import PowerSgd
from pparallel_reducers.compression.topk import to_topk, worth_sending
from pparallel_reducers.layout import Flats

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_Encode: TypeAlias = "Callable[[Tensor], Piece]"  #: makes a piece of a finite flat tensor


class _Encoding(NamedTuple):
    """How flat tensors are encoded.

    Attributes:
        encode: does it.
        method: has the state that it keeps between two of them, if it keeps any.
    """

    encode: _Encode
    method: PowerSgd | None = None


class Compressor:
    """Compresses the gradients of one model for one sender, with error feedback.

    It is used by one thread at a time, and keeps two flat tensors of the size of the gradients.
    """

    def __init__(self, config: CompressionConfig, shapes: Shapes) -> None:
        """Make a compressor that owes nothing.

        Args:
            config: how to compress.
            shapes: of the tensors in the flat tensors: see
                :func:`~pparallel_reducers.compression.pieces.shapes_of`.
        """
        self._kind = config.kind
        self._shapes = shapes
        self._memories = {
            dtype: _Memory(encoding, dtype, total(own))
            for dtype, own in shapes.items()
            if compressible(dtype)
            and total(own)
            and (encoding := _encoding(config, dtype, own)) is not None
        }

    def compress(self, gradients: Flats) -> Compressed:
        """Return a message of *gradients* and of what is owed, as far as there is room for it.

        The message may share memory with *gradients*, which are on the CPU and not changed; it is
        good until :meth:`compress` is called again. A message that was not settled counts as
        refused.

        A flat tensor with a number that is infinite or NaN is sent whole and as it is, so that the
        receiver sees it; what is owed of that dtype stays.
        """
        pieces: dict[torch.dtype, Piece] = {}
        for dtype in self._shapes:
            memory = self._memories.get(dtype)
            flat = gradients[dtype]
            pieces[dtype] = Whole(flat) if memory is None else memory.encode(flat)
        return Compressed(self._shapes, pieces)

    def settle(self, accepted: bool) -> None:
        """Say what became of the last message: if it was refused, all is owed as before."""
        for each in self._memories.values():
            each.settle(accepted)

    def owed(self) -> Flats:
        """Return a copy of what all accepted messages left out, by dtype."""
        return {dtype: each.owed.clone() for dtype, each in self._memories.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return what is owed, and what else the next messages depend on: plain data, copied.

        A message that is not settled yet counts as refused.
        """
        memories = {_name(dtype): each.state_dict() for dtype, each in self._memories.items()}
        return {"kind": self._kind, "memories": memories}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on as the compressor would that returned *state*, between two messages.

        Raises:
            ValueError: it is of another kind, or of other gradients; nothing was loaded.
        """
        if state.get("kind") != self._kind:
            message = (
                f"the state is of a compression of kind {state.get('kind')!r}, and this is"
                f" {self._kind!r}"
            )
            raise ValueError(message)
        found = {_name(dtype): each for dtype, each in self._memories.items()}
        if state["memories"].keys() != found.keys():
            theirs, own = (", ".join(each) or "no dtype" for each in (state["memories"], found))
            message = f"the state is of compressed gradients of {theirs}, and these are of {own}"
            raise ValueError(message)
        for name, each in found.items():
            each.validate(state["memories"][name])
        for name, each in found.items():
            each.load_state_dict(state["memories"][name])


class _Memory:
    """What is owed of one flat tensor.

    Attributes:
        owed: [n] float32, or float64 where the gradients are.
    """

    def __init__(self, encoding: _Encoding, dtype: torch.dtype, size: int) -> None:
        import torch

        self._encode, self._method = encoding
        # Sums of what is left out would lose most of it in two bytes.
        wide = dtype if dtype.itemsize >= 4 else torch.float32
        self.owed = torch.zeros(size, dtype=wide)
        self._then = torch.zeros(size, dtype=wide)  # what is owed if the message is accepted
        self._sent = False

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {"owed": self.owed.clone()}
        if self._method is not None:
            state["method"] = self._method.state_dict()
        return state

    def validate(self, state: Mapping[str, Any]) -> None:
        """Refuse *state* if it is of another model or rank.

        Raises:
            ValueError: it is.
        """
        owed = state["owed"]
        if (len(owed), owed.dtype) != (len(self.owed), self.owed.dtype):
            message = (
                f"the state has {len(owed)} numbers of {owed.dtype} that are owed, and the"
                f" gradients take {len(self.owed)} of {self.owed.dtype}"
            )
            raise ValueError(message)
        if self._method is not None:
            self._method.validate(state["method"])

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.owed.copy_(state["owed"])
        self._sent = False
        if self._method is not None:
            self._method.load_state_dict(state["method"])

    def encode(self, flat: Tensor) -> Piece:
        import torch

        torch.add(flat, self.owed, out=self._then)
        self._sent = False
        if not torch.isfinite(self._then.sum()) and not torch.isfinite(self._then).all():
            return Whole(flat)
        piece = self._encode(self._then)
        if not piece.finite():  # a number in two bytes does not reach far
            return Whole(flat)
        piece.add_to(self._then, -1)
        self._sent = True
        return piece

    def settle(self, accepted: bool) -> None:
        if accepted and self._sent:
            self.owed, self._then = self._then, self.owed
        self._sent = False


def _encoding(
    config: CompressionConfig, dtype: torch.dtype, shapes: Sequence[Shape]
) -> _Encoding | None:
    """Return how flat tensors are encoded; None if they are to be sent whole."""
    match config:
        case Bf16CompressionConfig():
            return _Encoding(to_bf16) if dtype.itemsize > 2 else None
        case TopKCompressionConfig(ratio=ratio):
            count = worth_sending(ratio, total(shapes), dtype)
            return None if count is None else _Encoding(partial(to_topk, dtype=dtype, count=count))
        case PowerSgdCompressionConfig(rank=rank):
            method = PowerSgd(rank, shapes)
            if not method.saves:
                return None
            return _Encoding(partial(method.approximate, dtype=dtype), method)
        case _:
            assert_never(config)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
