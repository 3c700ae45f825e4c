"""Tensors and arrays arrive as they were."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pytest

from pparallel.interfaces.serializer import Serializer
from pparallel.testing.serializer.base import SerializerTests, round_trip
from pparallel.testing.serializer.samples import LARGE, make_arrays, make_tensors

if TYPE_CHECKING:
    import torch

DTYPES = (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "float32", "float64"),
    *("complex32", "complex64", "complex128"),
)


class TensorTests(SerializerTests):
    """All that a tensor or an array is."""

    def test_keeps_tensors(self, serializer: Serializer) -> None:
        torch = pytest.importorskip("torch")
        for name, tensor in make_tensors().items():
            found = round_trip(serializer, tensor)
            assert type(found) is type(tensor), name
            assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape), name
            strides = zip(tensor.shape, tensor.stride(), strict=True)
            if not has_gaps(strides, tensor.numel()):
                assert found.stride() == tensor.stride(), name
            assert found.requires_grad == tensor.requires_grad, name
            assert found.is_leaf, name
            assert torch.equal(found, tensor), name

    def test_detaches_a_tensor_of_a_graph(self, serializer: Serializer) -> None:
        torch = pytest.importorskip("torch")
        weight = torch.ones(20, 30, requires_grad=True)
        hidden = weight * 2
        for sent in (hidden, hidden.t(), hidden[3], weight[3], hidden[0, 0]):
            leaf, found = round_trip(serializer, [weight, sent])
            assert leaf.requires_grad
            assert not found.requires_grad
            assert torch.equal(found, sent)
            with pytest.raises(RuntimeError, match="does not require grad"):
                found.sum().backward()

    @pytest.mark.filterwarnings("ignore:ComplexHalf support:UserWarning")
    def test_keeps_every_dtype(self, serializer: Serializer) -> None:
        torch = pytest.importorskip("torch")
        # Any bits at all, NaNs among them: no way through another dtype keeps them.
        random = torch.Generator().manual_seed(0)
        content = torch.randint(256, (1 << 18,), dtype=torch.uint8, generator=random)
        for name in DTYPES:
            memory = (content % 2 if name == "bool" else content).untyped_storage()
            whole = torch.empty(0, dtype=getattr(torch, name)).set_(memory, 0, (4096,), (1,))
            for sent in (whole, whole[:7], whole[::3]):
                found = round_trip(serializer, sent)
                assert found.dtype == sent.dtype, name
                assert bits(found) == bits(sent), name

    def test_keeps_lazy_conjugates(self, serializer: Serializer) -> None:
        torch = pytest.importorskip("torch")
        base = torch.complex(torch.arange(300.0), torch.ones(300))
        lazy = [base.conj(), base.conj().imag, base.conj()[3:].imag, base]
        for found, sent in zip(round_trip(serializer, lazy), lazy, strict=True):
            assert torch.equal(found, sent)

    def test_keeps_attributes(self, serializer: Serializer) -> None:
        torch = pytest.importorskip("torch")
        for tensor in (torch.arange(600.0), torch.nn.Parameter(torch.zeros(3)), torch.ones(2).t()):
            tensor.note = {"version": [1, (2.5, None)], "mask": tensor.detach() > 5}
            tensor.tail = [{"of": tensor.detach()[1:]}]
            tensor.me = tensor
            found = round_trip(serializer, [tensor])[0]
            assert found.__dict__.keys() == tensor.__dict__.keys()
            assert found.note["version"] == [1, (2.5, None)]
            assert torch.equal(found.note["mask"], tensor.note["mask"])
            assert found.me is found
            with torch.no_grad():
                found[1] = 42
            assert found.tail[0]["of"][0] == 42, "a view among the attributes was cut off"

    def test_keeps_arrays(self, serializer: Serializer) -> None:
        np = pytest.importorskip("numpy")
        for name, array in make_arrays().items():
            found = round_trip(serializer, array)
            assert type(found) is type(array), name
            assert found.dtype == array.dtype, name
            assert found.dtype.isalignedstruct == array.dtype.isalignedstruct, name
            assert found.shape == array.shape, name
            strides = zip(array.shape, array.strides, strict=True)
            if not has_gaps(strides, array.size, array.itemsize):
                assert found.strides == array.strides, name
            assert np.array_equal(found, array), name

    def test_keeps_shared_storage(self, serializer: Serializer) -> None:
        torch = pytest.importorskip("torch")
        base = torch.zeros(1000)
        found = round_trip(serializer, {"low": base[:600], "in": [(base[400:], base[450:550])]})
        low = found["low"]
        high, small = found["in"][0]
        low[500] = 7
        assert high[100] == 7
        assert small[50] == 7
        assert len({each.untyped_storage().data_ptr() for each in (low, high, small)}) == 1
        before = high._version
        low.add_(1)
        assert high._version == before, "autograd would take them for views of one another"

    def test_keeps_views_of_another_dtype(self, serializer: Serializer) -> None:
        torch = pytest.importorskip("torch")
        base = torch.arange(600, dtype=torch.int64)
        sent = [base[100:200], base.view(torch.int16)[390:], base.view(torch.float64)[:3]]
        found = round_trip(serializer, sent)
        for one, other in zip(found, sent, strict=True):
            assert one.dtype == other.dtype
            assert torch.equal(one, other)
        found[1].fill_(-1)
        assert found[0].sum() == -100, "they no longer share their storage"

    def test_keeps_what_is_one_object(self, serializer: Serializer) -> None:
        np = pytest.importorskip("numpy")
        torch = pytest.importorskip("torch")
        for one in (torch.nn.Parameter(torch.zeros(30)), torch.empty(0), np.ones(5)):
            found = round_trip(serializer, [one, {"again": (one,)}])
            assert found[0] is found[1]["again"][0]

    def test_takes_large_data_out_of_band(self, serializer: Serializer) -> None:
        np = pytest.importorskip("numpy")
        torch = pytest.importorskip("torch")
        for large in (torch.zeros(LARGE // 4), np.zeros(LARGE // 8)):
            stream, *buffers = serializer.dumps({"large": large})
            assert memoryview(stream).nbytes < LARGE // 100
            (buffer,) = buffers
            large[0] = 1
            assert any(memoryview(buffer).cast("B")[:8]), "dumps copied the data"

    def test_sends_only_the_part_of_a_storage_in_use(self, serializer: Serializer) -> None:
        torch = pytest.importorskip("torch")
        matrix = torch.zeros(1000, LARGE // 1000)
        matrix[3, 3] = 1
        for part in (matrix[3], matrix[:, 3], matrix[3:5], matrix.t()[3], matrix[:0]):
            buffers = serializer.dumps(part)
            assert sum(memoryview(each).nbytes for each in buffers) < LARGE // 50
            found = serializer.loads([bytearray(each) for each in buffers])
            assert torch.equal(found, part)

    def test_sends_elements_without_large_gaps(self, serializer: Serializer) -> None:
        np = pytest.importorskip("numpy")
        torch = pytest.importorskip("torch")
        matrix = np.arange(LARGE // 4, dtype=np.float32).reshape(1 << 10, -1)
        for array in (matrix[:, 3], matrix[::4, ::-4], matrix.T[::8]):
            sent = serializer.dumps(array)
            assert sum(memoryview(each).nbytes for each in sent) < array.nbytes + LARGE // 100
            found = serializer.loads([bytearray(each) for each in sent])
            assert found.flags.c_contiguous, "what arrives takes as much memory as the gaps"
            assert np.array_equal(found, array)
        whole = torch.from_numpy(matrix)
        for tensor in (whole[:, 3], whole[::4, ::4], whole.t()[::8]):
            sent = serializer.dumps(tensor)
            nbytes = tensor.numel() * 4
            assert sum(memoryview(each).nbytes for each in sent) < nbytes + LARGE // 100
            found = serializer.loads([bytearray(each) for each in sent])
            assert found.untyped_storage().nbytes() == nbytes
            assert torch.equal(found, tensor)
        one, two = round_trip(serializer, [whole[:, 3], whole[:, 4:6]])
        one.untyped_storage().fill_(0)
        assert not two.any(), "views of one storage share it no longer"


def has_gaps(layout: Iterable[tuple[int, int]], count: int, size: int = 1) -> bool:
    """Return whether *count* elements span more than twice the memory that they take."""
    return sum(abs((n - 1) * step) for n, step in layout) + size > 2 * count * size


def bits(tensor: torch.Tensor) -> bytes:
    """Return what the elements of a one-dimensional *tensor* are made of."""
    import torch

    size, first = tensor.element_size(), int(tensor.storage_offset())
    memory = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    shape, stride = (len(tensor), size), (tensor.stride(0) * size, 1)
    return memory.as_strided(shape, stride, first * size).contiguous().numpy().tobytes()
