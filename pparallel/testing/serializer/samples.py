"""What the serializer's suite sends."""

from __future__ import annotations

import collections
import math
from typing import TYPE_CHECKING, Any

from typing_extensions import override

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[Any]

LARGE = 1 << 20  #: bytes of what must travel out of band
DEEP = 50  #: how deep every serializer lets containers be nested

Point = collections.namedtuple("Point", ["x", "y"])


class Plain:
    """An object with attributes and an importable class."""

    def __init__(self, **attributes: object) -> None:
        self.__dict__.update(attributes)


class FailsToLeave:
    """Raises when it is pickled."""

    @override
    def __reduce__(self) -> str:
        message = "will not leave"
        raise LookupError(message)


class FailsToArrive:
    """Raises when it is unpickled."""

    @override
    def __getstate__(self) -> dict[str, int]:
        return {"one": 1}

    def __setstate__(self, state: object) -> None:
        message = "will not arrive"
        raise LookupError(message)


def nested(depth: int) -> list[Any]:
    """Return a list that is nested so deep."""
    deep: list[Any] = []
    for _ in range(depth - 1):
        deep = [deep]
    return deep


PLAIN_DATA: list[Any] = [
    None,
    True,
    [False, 0, 0.0, 1, 1.0, True],
    [-1, 1 << 63, (1 << 64) - 1, 1 << 64, -(1 << 63), -(1 << 63) - 1, 1 << 1000, -(1 << 80)],
    [math.inf, -math.inf, math.nan, -0.0, 5e-324],
    [1j, complex(-0.0, math.inf)],
    "grüße \udcff\0 \U0001f40d",
    b"\0bytes",
    bytearray(b"mutable"),
    [b"same", bytearray(b"same"), "same"],
    [1, [2.5, []]],
    (1, (2,), ()),
    {"key": {1: None}, (1, 2): "tuple", None: 0, b"b": 1, frozenset({1}): 2, 2.5: 3, 1j: 4},
    {"later": 1, "earlier": 2},
    {1, 2, 3},
    frozenset({4, 5}),
    [set(), frozenset(), {}, [], (), "", b"", bytearray()],
    nested(DEEP),
    list(range(100_000)),
    b"x" * LARGE,
]


def make_tensors() -> dict[str, Any]:
    """Return tensors of every kind that a serializer keeps."""
    import torch

    matrix = torch.arange(600, dtype=torch.float32).view(20, 30)
    return {
        "contiguous": matrix,
        "bfloat16": matrix.to(torch.bfloat16),
        "half": matrix.half(),
        "bool": matrix > 300,
        "int64": matrix.long(),
        "complex": torch.complex(matrix, -matrix),
        "transposed": matrix.t(),
        "slice": matrix[2:5, 3:7],
        "column": matrix[:, 3],
        "steps": matrix[::3, ::7],
        "expanded": torch.arange(300.0).expand(4, 300),
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(0, 3),
        "needs a gradient": torch.ones(300, requires_grad=True),
        "parameter": torch.nn.Parameter(matrix.clone()),
        "frozen parameter": torch.nn.Parameter(matrix.clone(), requires_grad=False),
    }


def make_arrays() -> dict[str, Array]:
    """Return arrays of every kind that a serializer keeps."""
    import numpy as np

    matrix = np.arange(600.0).reshape(20, 30)
    fixed = matrix.copy()
    fixed.flags.writeable = False
    return {
        "contiguous": matrix,
        "Fortran": np.asfortranarray(matrix),
        "slice": matrix[3:5, ::2],
        "column": np.arange(100_000.0).reshape(100, 1000)[:, 5],
        "backwards": matrix[::-1],
        "repeated": np.broadcast_to(matrix[0], (5, 30)),
        "complex": matrix * 1j,
        "half": matrix.astype(np.float16),
        "bool": matrix > 300,
        "big endian": matrix.astype(">f4"),
        "read-only": fixed,
        "scalar": np.array(2.5),
        "empty": np.empty((0, 3)),
        "text": np.array(["a", "größer"]),
        "bytes": np.array([b"a", b"bc"]),
        "dates": np.arange(300).astype("M8[D]"),
        "durations": np.arange(300).astype("m8[25s]"),
        "records": make_records(),
    }


def make_records() -> Array:
    """Return records that hold all that records may hold."""
    import numpy as np

    inner = np.dtype([("x", ">i2"), ("when", "M8[ns]")])
    kind: np.dtype[Any] = np.dtype(
        [("a", "i1"), (("title", "b"), "f8", (3,)), ("inner", inner), ("name", "U3")], align=True
    )
    records = np.zeros(40, kind)
    records["a"] = range(40)
    records["b"] = 0.5
    records["name"] = "one"
    return records
