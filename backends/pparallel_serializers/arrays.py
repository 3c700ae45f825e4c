"""numpy arrays beside the stream: writable where they arrive, with their strides or compact."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

from typing_extensions import Buffer

from pparallel_serializers.storages import GAPS, INLINE

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from pparallel_serializers.outofband import OutOfBandPickler, Reducer, Reduction

    Array = npt.NDArray[Any]


class Layout(NamedTuple):
    """The part of an array that is sent.

    Attributes:
        content: contiguous: the array itself, the bytes that it spans, or its elements alone.
        offset: where in the bytes the first element lies.
        strides: of the array that arrives.
    """

    content: Array
    offset: int
    strides: tuple[int, ...]


def reducers() -> dict[type, Reducer]:
    """Return how numpy's objects are reduced."""
    import numpy as np

    return {np.ndarray: _reduce_array}


def rebuild(
    buffer: Buffer,
    dtype: str | np.dtype[Any],
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    offset: int,
) -> Array:
    """Return an array over *buffer*, or over a copy if that is read-only."""
    import numpy as np

    if memoryview(buffer).readonly:
        buffer = bytearray(buffer)
    return np.ndarray(shape, dtype, cast("Any", buffer), offset, strides)


def laid_out(array: Array) -> Layout:
    """Return the part of *array*'s memory that is sent."""
    import numpy as np

    if array.flags.c_contiguous:
        return Layout(array, 0, array.strides)
    steps = [(n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)]
    offset = -sum(step for step in steps if step < 0)
    length = offset + sum(step for step in steps if step > 0) + array.itemsize
    if length > GAPS * array.nbytes:
        elements = array.copy()
        return Layout(elements, 0, elements.strides)
    low = array.__array_interface__["data"][0] - offset
    return Layout(np.asarray(_Memory(array, low, length)), offset, array.strides)


def bytes_of(content: Array) -> memoryview:
    """Return the bytes of a contiguous array."""
    import numpy as np

    # datetime64 and structured arrays have no buffer of their own: view them as bytes.
    return memoryview(cast("Buffer", content.reshape(-1).view(np.uint8)))


def _reduce_array(pickler: OutOfBandPickler, array: Array) -> Reduction:
    dtype = array.dtype
    if dtype.hasobject:
        return NotImplemented
    kind = dtype.str if dtype.isbuiltin == 1 and dtype.metadata is None else dtype
    content, offset, strides = laid_out(array)
    return rebuild, (_placed(pickler, content), kind, array.shape, strides, offset)


def _placed(pickler: OutOfBandPickler, content: Array) -> Any:
    if content.nbytes <= INLINE:
        return bytearray(content.tobytes())
    return pickler.outside(bytes_of(content))


class _Memory:
    """The bytes that an array spans, for ``numpy.asarray``; keeps the array alive."""

    def __init__(self, owner: Array, address: int, length: int) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "data": (address, True),
            "shape": (length,),
            "typestr": "|u1",
            "version": 3,
        }
