"""What cannot be sent or read is refused, and nothing else suffers."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from pparallel.errors import SerializationError
from pparallel.interfaces.serializer import Serializer
from pparallel.testing.serializer.base import SerializerTests, round_trip
from pparallel.testing.serializer.samples import FailsToArrive, FailsToLeave, nested
from pparallel.testing.suite import requires


class RefusalTests(SerializerTests):
    """``SerializationError`` and nothing else."""

    def test_refuses_what_cannot_be_serialised(self, serializer: Serializer) -> None:
        for bad in ({"a": [threading.Lock()]}, (i for i in [1]), FailsToLeave(), nested(30_000)):
            with pytest.raises(SerializationError) as caught:
                serializer.dumps(bad)
            assert caught.value.__cause__ is not None
            assert str(caught.value)

    def test_names_the_culprit(self, serializer: Serializer) -> None:
        for bad in ({"a": [1, threading.Lock()]}, [[], (2.5, {"b": threading.Lock()})]):
            with pytest.raises(SerializationError, match=r"(?i)lock"):
                serializer.dumps(bad)

    def test_a_refusal_spoils_nothing(self, serializer: Serializer) -> None:
        np = pytest.importorskip("numpy")
        torch = pytest.importorskip("torch")
        large: list[Any] = [torch.ones(1000), np.ones(1000), "text" * 1000]
        small = len(serializer.dumps([1]))
        for bad in (threading.Lock(), FailsToLeave(), nested(30_000)):
            before = serializer.dumps(large)
            with pytest.raises(SerializationError):
                serializer.dumps([*large, {"bad": bad}])
            after = serializer.dumps(large)
            with pytest.raises(SerializationError):
                serializer.dumps([*large, {"bad": bad}])
            assert len(serializer.dumps([1])) == small, "it sends what is left of the refused"
            for found in (serializer.loads(before), serializer.loads(after)):
                assert torch.equal(found[0], large[0])
                assert np.array_equal(found[1], large[1])
                assert found[2] == large[2]

    @requires("objects")
    def test_refuses_what_cannot_be_rebuilt(self, serializer: Serializer) -> None:
        with pytest.raises(SerializationError, match="will not arrive"):
            round_trip(serializer, FailsToArrive())

    def test_refuses_damaged_bytes(self, serializer: Serializer) -> None:
        torch = pytest.importorskip("torch")
        sent = {"a": list(range(50)), "t": torch.ones(1 << 20), "u": torch.ones(1 << 10)}
        stream, *rest = map(bytes, serializer.dumps(sent))
        damaged: list[list[bytes]] = [
            [],
            [b""],
            [b"", *rest],
            [b"no object at all"],
            [stream],
            [stream, *rest, b"one more"],
            [stream, rest[0][:-8], *rest[1:]],
            [stream, b"", *rest[1:]],
            [stream, rest[0] + b"longer", *rest[1:]],
            [stream, *rest[::-1]],
            *([stream[:cut], *rest] for cut in range(0, len(stream), 7)),
        ]
        for each in damaged:
            with pytest.raises(SerializationError):
                serializer.loads(each)

    def test_refuses_cut_streams(self, serializer: Serializer) -> None:
        for obj in (None, 1, "text", [1, 2.5, "three"], {"a": (None, True), "b": b"bytes"}):
            (stream,) = map(bytes, serializer.dumps(obj))
            for end in range(len(stream)):
                with pytest.raises(SerializationError):
                    serializer.loads([stream[:end]])
