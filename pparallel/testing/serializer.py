"""SerializerSuite: what every serializer promises."""

from __future__ import annotations

import collections
import math
import threading
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from typing_extensions import override

from pparallel.errors import SerializationError
from pparallel.interfaces.serializer import Serializer, SerializerConfig
from pparallel.testing.suite import Suite, requires

LARGE = 1 << 20  #: bytes of what must travel out of band

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


def round_trip(serializer: Serializer, obj: Any) -> Any:
    """Return *obj* as a receiver gets it: from buffers of its own."""
    return serializer.loads([bytearray(each) for each in serializer.dumps(obj)])


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


class SerializerSuite(Suite):
    """Tests for :class:`~pparallel.interfaces.serializer.Serializer`."""

    interface: ClassVar[str] = "serializer"

    @pytest.fixture
    def serializer(
        self, config: SerializerConfig, build: Callable[[SerializerConfig], Serializer]
    ) -> Serializer:
        """The serializer under test."""
        return build(config)

    @pytest.mark.parametrize(
        "obj",
        [
            None,
            True,
            -(1 << 80),
            math.inf,
            "grüße \udcff\0",
            b"\0bytes",
            bytearray(b"mutable"),
            [1, [2.5, []]],
            {"key": {1: None}, (1, 2): "tuple"},
            {1, 2, 3},
            (1, (2,)),
            list(range(100_000)),
            b"x" * LARGE,
        ],
        ids=lambda obj: type(obj).__name__,
    )
    def test_keeps_plain_data(self, serializer: Serializer, obj: object) -> None:
        found = round_trip(serializer, obj)
        assert found == obj
        assert type(found) is type(obj)

    def test_keeps_tensors(self, serializer: Serializer) -> None:
        torch = pytest.importorskip("torch")
        for name, tensor in make_tensors().items():
            tensor.pp_version = 3
            found = round_trip(serializer, tensor)
            assert type(found) is type(tensor), name
            assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape), name
            assert found.stride() == tensor.stride(), name
            assert found.requires_grad == tensor.requires_grad, name
            assert found.pp_version == 3, name
            assert torch.equal(found, tensor), name
            with torch.no_grad():
                found.zero_()
            assert tensor.numel() == 0 or tensor.count_nonzero(), f"{name} was an alias"

    def test_keeps_arrays(self, serializer: Serializer) -> None:
        np = pytest.importorskip("numpy")
        matrix = np.arange(600.0).reshape(20, 30)
        fixed = matrix.copy()
        fixed.flags.writeable = False
        arrays = {
            "contiguous": matrix,
            "Fortran": np.asfortranarray(matrix),
            "slice": matrix[3:5, ::2],
            "backwards": matrix[::-1],
            "complex": matrix * 1j,
            "big endian": matrix.astype(">f4"),
            "read-only": fixed,
            "scalar": np.array(2.5),
            "empty": np.empty((0, 3)),
            "dates": np.arange(300).astype("M8[D]"),
            "records": np.zeros(40, dtype=[("a", "i4"), ("b", "f8", (3,))]),
        }
        for name, array in arrays.items():
            found = round_trip(serializer, array)
            assert type(found) is type(array), name
            assert (found.dtype, found.shape) == (array.dtype, array.shape), name
            assert found.strides == array.strides, name
            assert np.array_equal(found, array), name
            assert found.flags.writeable, name
            assert not np.shares_memory(found, array), name

    def test_keeps_shared_storage(self, serializer: Serializer) -> None:
        torch = pytest.importorskip("torch")
        base = torch.zeros(1000)
        tied = torch.nn.Parameter(torch.zeros(30))
        found = round_trip(
            serializer, {"low": base[:600], "high": base[400:], "tied": [tied, {"again": tied}]}
        )
        found["low"][500] = 7
        assert found["high"][100] == 7
        assert (
            found["low"].untyped_storage().data_ptr() == found["high"].untyped_storage().data_ptr()
        )
        assert found["tied"][0] is found["tied"][1]["again"]

    def test_takes_large_data_out_of_band(self, serializer: Serializer) -> None:
        np = pytest.importorskip("numpy")
        torch = pytest.importorskip("torch")
        for large in (torch.zeros(LARGE // 4), np.zeros(LARGE // 8)):
            stream, *buffers = serializer.dumps({"large": large})
            assert memoryview(stream).nbytes < LARGE // 100
            (buffer,) = buffers
            before = bytes(memoryview(buffer).cast("B")[:4])
            large[0] = 1
            assert bytes(memoryview(buffer).cast("B")[:8]) != before + bytes(4)

    def test_builds_over_the_buffers_it_is_given(self, serializer: Serializer) -> None:
        torch = pytest.importorskip("torch")
        buffers = [bytearray(each) for each in serializer.dumps(torch.zeros(LARGE // 4))]
        found = serializer.loads(buffers)
        found[0] = 1
        assert any(buffers[1]), "loads copied a buffer that it may write to"

    def test_copies_buffers_it_may_not_write_to(self, serializer: Serializer) -> None:
        np = pytest.importorskip("numpy")
        torch = pytest.importorskip("torch")
        sent = serializer.dumps([torch.zeros(LARGE // 4), np.zeros(LARGE // 8)])
        buffers = [bytes(each) for each in sent]
        for found in serializer.loads(buffers):
            found[0] = 1
        assert all(each == bytes(sent[i]) for i, each in enumerate(buffers))

    def test_sends_only_the_part_of_a_storage_in_use(self, serializer: Serializer) -> None:
        torch = pytest.importorskip("torch")
        matrix = torch.zeros(1000, LARGE // 1000)
        for part in (matrix[3], matrix[:, 3]):
            size = sum(memoryview(each).nbytes for each in serializer.dumps(part))
            assert size < LARGE // 50

    def test_may_be_used_by_many_threads(self, serializer: Serializer) -> None:
        found: list[Any] = []

        def send(number: int) -> None:
            objects = [{"number": number, "values": [number] * i} for i in range(200)]
            found.append([round_trip(serializer, obj) for obj in objects] == objects)

        threads = [threading.Thread(target=send, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [True] * 8

    @requires("objects")
    def test_sends_objects(self, serializer: Serializer) -> None:
        shared = [1]
        found = round_trip(serializer, Plain(a=shared, b=shared, error=ValueError("no")))
        assert found.a is found.b
        assert found.error.args == ("no",)
        assert type(found) is Plain
        assert round_trip(serializer, Point(1, y=2)) == Point(1, 2)
        assert round_trip(serializer, [Plain, math.sqrt, round_trip]) == [
            Plain,
            math.sqrt,
            round_trip,
        ]

    @requires("objects")
    def test_keeps_cycles(self, serializer: Serializer) -> None:
        node: Any = Plain(name="node")
        node.me = [node]
        found = round_trip(serializer, node)
        assert found.me[0] is found

    @requires("code")
    def test_sends_code(self, serializer: Serializer) -> None:
        factor = 3

        class Local(Plain):
            def __init__(self, a: int) -> None:
                super().__init__(a=a)

            def times(self, n: int) -> int:
                return n * factor

        def factorial(n: int) -> int:
            return 1 if n < 2 else n * factorial(n - 1)

        assert round_trip(serializer, lambda n: n + factor)(1) == 4
        assert round_trip(serializer, factorial)(5) == 120
        assert round_trip(serializer, Local(1)).times(2) == 6
        assert isinstance(round_trip(serializer, Local(1)), Local)

    def test_refuses_what_cannot_be_serialised(self, serializer: Serializer) -> None:
        deep: list[Any] = []
        for _ in range(100_000):
            deep = [deep]
        for bad in ({"a": [threading.Lock()]}, (i for i in [1]), FailsToLeave(), deep):
            with pytest.raises(SerializationError) as caught:
                serializer.dumps(bad)
            assert caught.value.__cause__ is not None
            assert str(caught.value)
        assert round_trip(serializer, [1]) == [1], "a refusal must not spoil what follows"

    @requires("objects")
    def test_refuses_what_cannot_be_rebuilt(self, serializer: Serializer) -> None:
        with pytest.raises(SerializationError, match="will not arrive"):
            round_trip(serializer, FailsToArrive())

    def test_names_the_culprit(self, serializer: Serializer) -> None:
        with pytest.raises(SerializationError, match="lock"):
            serializer.dumps({"a": [1, threading.Lock()]})

    def test_refuses_damaged_bytes(self, serializer: Serializer) -> None:
        torch = pytest.importorskip("torch")
        stream, *rest = map(bytes, serializer.dumps({"a": list(range(50)), "t": torch.ones(LARGE)}))
        damaged: list[list[bytes]] = [
            [],
            [b""],
            [b"", *rest],
            [b"no object at all"],
            [stream],
            [stream, *rest, b"one more"],
            [stream, rest[0][:-8]],
            [stream, b""],
            *([stream[:cut], *rest] for cut in range(0, len(stream), 7)),
        ]
        for each in damaged:
            with pytest.raises(SerializationError):
                serializer.loads(each)
