"""What arrives is the receiver's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from typing_extensions import Buffer

from pparallel.interfaces.serializer import Serializer
from pparallel.testing.serializer.base import SerializerTests
from pparallel.testing.serializer.samples import LARGE, make_arrays, make_tensors

KINDS: dict[str, Callable[[Buffer], Buffer]] = {
    "bytes": bytes,
    "bytearray": bytearray,
    "view": lambda each: memoryview(bytearray(each)),
    "read-only view": lambda each: memoryview(bytearray(each)).toreadonly(),
    "in the midst": lambda each: memoryview(bytearray(b"x" + bytes(each)))[1:],
}


class OwnershipTests(SerializerTests):
    """Writable, never seen by the sender or another receiver."""

    def test_tensors_are_the_receivers_own(self, serializer: Serializer) -> None:
        torch = pytest.importorskip("torch")
        made = make_tensors()
        buffers = serializer.dumps(made)
        for kind in KINDS:
            first, second = (_loads(serializer, buffers, kind) for _ in range(2))
            with torch.no_grad():
                for each in first.values():
                    each.untyped_storage().fill_(1)
            expected = make_tensors()
            for name in expected:
                assert torch.equal(made[name], expected[name]), f"the sender sees {name} change"
                assert torch.equal(second[name], expected[name]), f"a receiver sees {name} change"

    def test_arrays_are_the_receivers_own(self, serializer: Serializer) -> None:
        np = pytest.importorskip("numpy")
        made = make_arrays()
        buffers = serializer.dumps(made)
        for kind in KINDS:
            first, second = (_loads(serializer, buffers, kind) for _ in range(2))
            for name, each in first.items():
                assert each.flags.writeable, name
                each[...] = np.ones((), each.dtype)
            expected = make_arrays()
            for name in expected:
                assert np.array_equal(made[name], expected[name]), f"the sender sees {name} change"
                assert np.array_equal(second[name], expected[name]), (
                    f"a receiver sees {name} change"
                )

    def test_builds_over_the_buffers_it_is_given(self, serializer: Serializer) -> None:
        np = pytest.importorskip("numpy")
        torch = pytest.importorskip("torch")
        for large in (torch.zeros(LARGE // 4), np.zeros(LARGE // 8)):
            buffers = [bytearray(each) for each in serializer.dumps(large)]
            found = serializer.loads(buffers)
            found[0] = 1
            assert any(buffers[1]), "loads copied a buffer that it may write to"

    def test_copies_buffers_it_may_not_write_to(self, serializer: Serializer) -> None:
        np = pytest.importorskip("numpy")
        torch = pytest.importorskip("torch")
        sent = serializer.dumps([torch.zeros(LARGE // 4), np.zeros(LARGE // 8), bytearray(9)])
        buffers = [bytes(each) for each in sent]
        first, second = serializer.loads(buffers), serializer.loads(buffers)
        for found in first:
            found[0] = 1
        assert all(each == bytes(sent[i]) for i, each in enumerate(buffers))
        assert not any(found[0] for found in second)


def _loads(serializer: Serializer, buffers: Sequence[Buffer], kind: str) -> Any:
    return serializer.loads([KINDS[kind](each) for each in buffers])
