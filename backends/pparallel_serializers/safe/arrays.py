"""numpy arrays and scalars as data: a dtype is described in parts that are checked one by one."""

from __future__ import annotations

import math
import re
import reprlib
from typing import TYPE_CHECKING, Any

from pparallel_serializers import arrays
from pparallel_serializers.refusals import RefusedError
from pparallel_serializers.safe import stream
from pparallel_serializers.safe.stream import Node

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from pparallel_serializers.arrays import Array
    from pparallel_serializers.safe.reader import Reader
    from pparallel_serializers.safe.writer import Writer

Described = str | tuple[Any, ...]  #: ``dtype.str``, ``(base, shape)``, or a record's six parts

_SIMPLE = re.compile(
    r"[<>|=](b1|[iu][1248]|f(2|4|8|12|16)|c(8|16|24|32)|[SUV][0-9]{1,10}"
    r"|[mM]8(\[[0-9]{0,9}(Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?)"
)


def splitters() -> dict[type, Callable[[Writer, Any], Node]]:
    """Return how numpy's objects are taken apart."""
    import numpy as np

    scalars: list[type] = [np.void, *np.sctypeDict.values()]
    return {
        np.ndarray: _split,
        **{each: _split_scalar for each in scalars if each is not np.object_},
    }


def join(reader: Reader, children: list[Any]) -> Array:
    """Return an array over its bytes."""
    description, inline, *numbers = children
    offset, dims, *layout = stream.sizes(numbers, signed=True)
    shape, strides = stream.sizes(layout[:dims]), tuple(layout[dims:])
    if offset < 0 or len(layout) != 2 * dims or dims > stream.DIMENSIONS:
        raise RefusedError("an array has lost its shape")
    dtype = _dtype(description)
    content = reader.content(inline)
    _check(dtype.itemsize, shape, strides, offset, memoryview(content).nbytes)
    return reader.add(arrays.rebuild(content, dtype, shape, strides, offset))


def scalar(children: list[Any]) -> Any:
    """Return a numpy scalar."""
    description, content = children
    dtype = _dtype(description)
    if type(content) is not bytes or len(content) != dtype.itemsize:
        raise RefusedError("a scalar is not whole")
    return arrays.rebuild(content, dtype, (), (), 0)[()]


def _split(writer: Writer, array: Array) -> Node:
    return writer.once(array, lambda: _taken_apart(writer, array))


def _taken_apart(writer: Writer, array: Array) -> Node:
    description = _described(array.dtype, array)
    content, offset, strides = arrays.laid_out(array)
    inline = writer.placed(arrays.bytes_of(content))
    numbers = (offset, array.ndim, *array.shape, *strides)
    return Node(stream.ARRAY, (description, inline, *numbers))


def _split_scalar(writer: Writer, value: np.generic) -> Node:
    data = value.tobytes()[: value.itemsize]  # an empty text would give one letter
    return Node(stream.SCALAR, (_described(value.dtype, value), data))


def _check(
    size: int, shape: tuple[int, ...], strides: tuple[int, ...], offset: int, there: int
) -> None:
    """Hold an array's layout against the bytes that are there."""
    if math.prod(shape) * size > stream.LARGEST:
        raise RefusedError(f"no array has the shape {shape}")
    steps = [(n - 1) * step for n, step in zip(shape, strides, strict=True)]
    low = offset + sum(step for step in steps if step < 0)
    high = offset + sum(step for step in steps if step > 0) + size
    fits = 0 <= low < high <= there if math.prod(shape) * size else offset == 0
    if not fits:
        raise RefusedError(f"an array of shape {shape} reaches beyond the bytes that came")


def _described(dtype: np.dtype[Any], owner: object) -> Described:
    """Return *dtype* as plain data, or refuse its *owner*."""
    why = f"safe takes arrays of numbers, bytes, text, dates and records of them, not {dtype!r}"
    try:
        parts = _parts(dtype)
        if _dtype(parts) == dtype:
            return parts
    except RefusedError as error:
        why += f" ({error})"
    raise RefusedError(why, owner)


def _parts(dtype: np.dtype[Any]) -> Described:
    import numpy as np

    if dtype.metadata is not None:
        raise RefusedError("a dtype's metadata may be anything")
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return _parts(base), shape
    if dtype.names is None:
        return dtype.str
    if dtype.type is not np.void:
        raise RefusedError("its scalars have a class of their own")
    fields: list[Any] = [dtype.fields[name] for name in dtype.names]  # type: ignore[index]
    formats = tuple(_parts(field[0]) for field in fields)
    offsets = tuple(field[1] for field in fields)
    titles = tuple(field[2] if len(field) > 2 else None for field in fields)
    return dtype.names, formats, offsets, titles, dtype.itemsize, dtype.isalignedstruct


def _dtype(parts: object) -> np.dtype[Any]:
    import numpy as np

    if type(parts) is str:
        if not _SIMPLE.fullmatch(parts):
            raise RefusedError(f"{reprlib.repr(parts)} is no dtype of arrays that safe takes")
        return np.dtype(parts)
    if type(parts) is not tuple or len(parts) not in (2, 6):
        raise RefusedError("something else stands where a dtype should")
    if len(parts) == 2:
        base, shape = parts
        return np.dtype((_dtype(base), _all(int, shape)))
    names, formats, offsets, titles, itemsize, aligned = parts
    if type(formats) is not tuple or type(itemsize) is not int or type(aligned) is not bool:
        raise RefusedError("a record's dtype has something else where it says its size")
    fields: Any = {
        "names": _all(str, names),
        "formats": [_dtype(each) for each in formats],
        "offsets": _all(int, offsets),
        "titles": _all((str, type(None)), titles),
        "itemsize": itemsize,
    }
    if not len(names) == len(formats) == len(offsets) == len(titles):
        raise RefusedError("a record's dtype is incomplete")
    found: np.dtype[Any] = np.dtype(fields, align=aligned)
    return found


def _all(kinds: Any, values: object) -> tuple[Any, ...]:
    if type(values) is not tuple or not all(isinstance(each, kinds) for each in values):
        raise RefusedError("a record's dtype has something else where a name or size should be")
    return values
