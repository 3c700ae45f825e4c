"""The built-in serializers: their suites, and what is theirs alone."""

from __future__ import annotations

import collections
import errno
import itertools
import os
import pickle
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from serializers_sent import MADE, PREAMBLE, run_script, sent
from serializers_sent import dill as dill
from serializers_sent import each_serializer as each_serializer
from serializers_sent import serializer as serializer
from typing_extensions import override

from pparallel.errors import SerializationError
from pparallel.interfaces.serializer import Serializer, SerializerConfig
from pparallel.testing import SerializerSuite
from pparallel.testing.serializer.objects import ObjectTests
from pparallel.testing.threads import in_threads
from pparallel_serializers import (
    CloudpickleSerializerConfig,
    DillSerializerConfig,
    PickleSerializerConfig,
    SafeSerializerConfig,
)
from pparallel_serializers.bytype import ByType
from pparallel_serializers.dill import DillSerializer

DTYPES = sorted(
    {each for each in vars(torch).values() if isinstance(each, torch.dtype)}
    - {torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4},
    key=str,
)


class TestPickle(SerializerSuite):
    @pytest.fixture
    @override
    def config(self) -> SerializerConfig:
        return PickleSerializerConfig()


class TestDill(SerializerSuite):
    @pytest.fixture
    @override
    def config(self) -> SerializerConfig:
        return DillSerializerConfig()


class TestDillRecursing(ObjectTests):
    @pytest.fixture
    @override
    def config(self) -> SerializerConfig:
        return DillSerializerConfig(recurse=True)


class TestCloudpickle(SerializerSuite):
    @pytest.fixture
    @override
    def config(self) -> SerializerConfig:
        return CloudpickleSerializerConfig()


class TestSafe(SerializerSuite):
    @pytest.fixture
    @override
    def config(self) -> SerializerConfig:
        return SafeSerializerConfig()


class TestTensors:
    @pytest.mark.filterwarnings("ignore:ComplexHalf support:UserWarning")
    def test_every_dtype(self, each_serializer: Serializer) -> None:
        raw = torch.arange(4096, dtype=torch.int64).view(torch.uint8).untyped_storage()
        for dtype, step in itertools.product(DTYPES, (1, 2, 5)):
            tensor = torch.empty(0, dtype=dtype).set_(raw, 0, (64,), (step,))
            found = sent(each_serializer, tensor)
            assert found.dtype == dtype
            assert found.stride() == (step if step == 2 else 1,)
            assert every_byte(found) == every_byte(tensor), dtype

    def test_lazy_conjugate_and_negative(self, each_serializer: Serializer) -> None:
        base = torch.randn(200, dtype=torch.complex64)
        conjugate, negative = sent(each_serializer, [base.conj(), base.conj().imag])
        assert conjugate.is_conj()
        assert negative.is_neg()
        assert torch.equal(conjugate, base.conj())
        assert torch.equal(negative, base.conj().imag)

    @pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
    @pytest.mark.filterwarnings("ignore:TypedStorage is deprecated:UserWarning")
    def test_sparse_meta_and_quantised(self, serializer: Serializer) -> None:
        dense = torch.eye(50)
        sparse = sent(serializer, dense.to_sparse())
        assert sparse.layout == torch.sparse_coo
        assert torch.equal(sparse.to_dense(), dense)
        quantised = torch.quantize_per_tensor(dense, 0.1, 3, torch.qint8)
        assert torch.equal(sent(serializer, quantised).dequantize(), quantised.dequantize())
        meta = sent(serializer, torch.empty(3, 4, device="meta"))
        assert (meta.device.type, meta.shape) == ("meta", (3, 4))

    @pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
    def test_compressed_sparse(self, serializer: Serializer) -> None:
        dense = torch.eye(50)
        for layout in ("csr", "csc", "bsr", "bsc"):
            made = getattr(dense, f"to_sparse_{layout}")(*[(5, 5)] * layout.startswith("bs"))
            for value in (made, (made, made.values())):  # alone, and with others
                found = sent(serializer, value)
                found = found[0] if isinstance(found, tuple) else found
                assert found.layout == made.layout
                assert torch.equal(found.to_dense(), dense)

    def test_subclass(self, serializer: Serializer) -> None:
        tensor = torch.arange(1000.0).as_subclass(TensorSubclass)
        tensor.note = "kept"
        found, view = sent(serializer, [tensor, tensor[10:]])
        assert type(found) is TensorSubclass
        assert found.note == "kept"
        found[10] = -1
        assert view[0] == -1

    def test_bare_storage(self, serializer: Serializer) -> None:
        tensor = torch.arange(1000.0)
        found, storage = sent(serializer, [tensor, tensor.untyped_storage()])
        assert found.untyped_storage().data_ptr() == storage.data_ptr()

    def test_empty_tensor_beside_a_slice_of_its_storage(self, each_serializer: Serializer) -> None:
        base = torch.arange(10_000.0)
        found = sent(each_serializer, [base[0:0], base[5000:5100], base[9000:9000]])
        assert [each.numel() for each in found] == [0, 100, 0]
        assert torch.equal(found[1], base[5000:5100])

    def test_tensors_over_one_foreign_memory(self, each_serializer: Serializer) -> None:
        array = np.zeros(1000)
        one, two = sent(each_serializer, [torch.from_numpy(array), torch.from_numpy(array)])
        one[3] = 1
        assert two[3] == 1

    def test_unaligned_buffers(self, each_serializer: Serializer) -> None:
        tensor = torch.arange(1000.0)
        stream, data = map(bytes, each_serializer.dumps(tensor))
        moved = memoryview(bytearray(b"x" + data))[1:]
        assert torch.equal(each_serializer.loads([stream, moved]), tensor)

    def test_module_state_and_optimizer(self, serializer: Serializer) -> None:
        model: Any = torch.nn.Sequential(torch.nn.Linear(40, 30), torch.nn.Linear(30, 40))
        model[1].weight = torch.nn.Parameter(model[0].weight.t())
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(40)).sum().backward()
        optimizer.step()
        found, its_optimizer, state = sent(serializer, [model, optimizer, model.state_dict()])
        assert type(state) is collections.OrderedDict
        assert torch.equal(found(torch.ones(40)), model(torch.ones(40)))
        assert its_optimizer.param_groups[0]["params"][0] is found[0].weight
        with torch.no_grad():
            state["0.weight"].zero_()
        assert not found[0].weight.any()
        found(torch.ones(40)).sum().backward()
        its_optimizer.step()

    def test_version_counters_are_not_shared(self, each_serializer: Serializer) -> None:
        base = torch.zeros(100)
        low, high = sent(each_serializer, [base[:50], base[50:]])
        before = high._version
        low.add_(1)
        assert high._version == before

    def test_inference_mode_and_default_device(self, each_serializer: Serializer) -> None:
        with torch.device("meta"):
            found = sent(each_serializer, torch.ones(300, device="cpu"))
        assert found.device.type == "cpu"
        assert found.sum() == 300

    @pytest.mark.gpu
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    def test_cuda(self, each_serializer: Serializer) -> None:
        base = torch.arange(1000.0, device="cuda")
        low, high = sent(each_serializer, [base[:600], base[400:]])
        assert low.device == base.device
        low[500] = -1
        assert high[100] == -1


def every_byte(tensor: torch.Tensor) -> bytes:
    step, size = tensor.stride(0), tensor.element_size()
    storage = tensor.untyped_storage()
    whole = torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),), (1,))
    raw = whole.numpy().tobytes()
    return b"".join(raw[i * step * size :][:size] for i in range(len(tensor)))


class TensorSubclass(torch.Tensor):
    """A tensor with a name of its own."""

    note: str


class TestArrays:
    def test_objects_subclasses_and_broadcasts(self, serializer: Serializer) -> None:
        mixed = np.array([1, "a", None, torch.ones(1000)], dtype=object)
        found = sent(serializer, mixed)
        assert found[:3].tolist() == [1, "a", None]
        assert torch.equal(found[3], torch.ones(1000))
        masked = sent(serializer, np.ma.masked_equal(np.arange(300), 3))
        assert type(masked) is np.ma.MaskedArray
        assert masked.mask.sum() == 1
        rows = np.zeros(40, dtype=[("a", "i4")]).view(np.recarray)
        assert type(sent(serializer, rows)) is np.recarray
        wide = np.broadcast_to(np.arange(300.0), (5, 300))
        assert sent(serializer, wide).strides == wide.strides

    def test_column_of_a_large_matrix(self, each_serializer: Serializer) -> None:
        column = np.arange(1_000_000.0).reshape(1000, 1000)[:, 5]
        assert sum(memoryview(each).nbytes for each in each_serializer.dumps(column)) < 20_000
        found = sent(each_serializer, column)
        assert np.array_equal(found, column)
        assert found.strides == (8,)

    def test_own_out_of_band_buffers(self, serializer: Serializer) -> None:
        obj = [pickle.PickleBuffer(bytearray(b"one")), torch.ones(1000), HoldsBuffer(b"two")]
        found = sent(serializer, obj)
        assert bytes(found[0]) == b"one"
        assert found[2].content == b"two"


class HoldsBuffer:
    """Sends its content out of band, as libraries do."""

    def __init__(self, content: bytes) -> None:
        self.content = bytes(content)

    @override
    def __reduce_ex__(self, protocol: Any) -> Any:
        return HoldsBuffer, (pickle.PickleBuffer(self.content),)


leaves: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
)
leaves |= st.binary(max_size=40)
nested = st.recursive(
    leaves,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=20,
)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Views of any shape and stride, small enough to stay in the stream or not."""
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.int8, torch.complex128]))
    shape = draw(st.lists(st.integers(0, 12), max_size=3))
    tensor = torch.arange(draw(st.just(int(np.prod(shape))))).to(dtype).view(shape)
    for axis in range(len(shape)):
        start, step = draw(st.integers(0, 3)), draw(st.integers(1, 4))
        index = [slice(None)] * len(shape)
        index[axis] = slice(start, None, step)
        tensor = tensor[tuple(index)]
    if draw(st.booleans()) and tensor.dim() > 1:
        tensor = tensor.transpose(0, 1)
    return tensor


class TestProperties:
    @settings(max_examples=20)
    @given(nested)
    def test_nested_data(self, obj: Any) -> None:
        for make in MADE.values():
            assert sent(make(), obj) == obj

    @settings(max_examples=50)
    @given(st.lists(tensors(), min_size=1, max_size=4), st.data())
    def test_views(self, views: list[torch.Tensor], data: st.DataObject) -> None:
        views.append(data.draw(st.sampled_from(views))[...])
        serializer = MADE[data.draw(st.sampled_from(["dill", "safe"]))]()
        found = sent(serializer, views)
        for view, arrived in zip(views, found, strict=True):
            assert torch.equal(view, arrived)
            assert view.dtype == arrived.dtype
        before = [view.clone() for view in views]
        found[-1].fill_(99)
        assert all(torch.equal(*pair) for pair in zip(views, before, strict=True))
        shares = [
            v.untyped_storage().data_ptr() == views[-1].untyped_storage().data_ptr() != 0
            for v in views
        ]
        for view, arrived, is_shared in zip(views, found, shares, strict=True):
            assert is_shared or torch.equal(view, arrived)


class TestSharing:
    """``copy_tensor=False``."""

    @pytest.fixture
    def sharing(self) -> DillSerializer:
        return DillSerializer(DillSerializerConfig(copy_tensor=False))

    def test_both_sides_see_writes(self, sharing: DillSerializer) -> None:
        tensor = torch.zeros(1000)
        found, view = sent(sharing, [tensor, tensor[10:20]])
        found[15] = 3
        assert tensor[15] == 3
        assert view[5] == 3
        multiprocessing: Any = torch.multiprocessing
        assert multiprocessing.get_sharing_strategy() == "file_descriptor"

    def test_another_process(self, sharing: DillSerializer, tmp_path: Path) -> None:
        tensor = torch.nn.Parameter(torch.zeros(1000))
        (stream,) = sharing.dumps(tensor)
        (tmp_path / "object.0").write_bytes(stream)
        script = """
        tensor = read()
        assert type(tensor).__name__ == "Parameter"
        tensor.data[7] = 42
        """
        run_script(PREAMBLE + textwrap.dedent(script), tmp_path, WHERE=str(tmp_path))
        assert tensor[7] == 42

    def test_descriptors_are_closed(self, sharing: DillSerializer) -> None:
        before = set(os.listdir("/proc/self/fd"))
        tensor = torch.zeros(1000)
        for _ in range(20):
            sent(sharing, tensor)
        del tensor
        assert set(os.listdir("/proc/self/fd")) <= before

    def test_freed_by_the_sender(self, sharing: DillSerializer) -> None:
        (stream,) = sharing.dumps(torch.zeros(1000))
        with pytest.raises(SerializationError, match="has let go of it"):
            sharing.loads([stream])

    def test_without_descriptors(
        self, sharing: DillSerializer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tensor = torch.zeros(1000)
        (stream,) = sharing.dumps(tensor)

        def refuse(*_: object) -> int:
            raise OSError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr(os, "open", refuse)
        with pytest.raises(SerializationError, match="Too many open files"):
            sharing.loads([stream])

    @pytest.mark.parametrize("device", ["cpu", "cuda"])
    def test_what_is_shared_once_stays_shared(self, sharing: DillSerializer, device: str) -> None:
        plain = DillSerializer(DillSerializerConfig())
        more = sharing.sharing(device), plain.sharing("cpu").sharing(device)
        for each in (*more, *pickle.loads(pickle.dumps(more))):
            tensor = torch.zeros(1000)
            sent(each, tensor)[15] = 3
            assert tensor[15] == 3


class Named(str):
    """A name at which threads take turns whenever it is looked up."""

    __slots__ = ()

    @override
    def __hash__(self) -> int:
        time.sleep(0)
        return super().__hash__()


def test_types_by_library_are_taken_up_by_many_threads_at_once() -> None:
    """All of them, whoever does it, and nobody meets a change half done."""

    def late(name: str) -> Callable[[], dict[type, str]]:
        return lambda: {type(name, (), {}): name}

    libraries = [Named(name) for name in list(sys.modules) if name.isidentifier()][:40]
    for _ in range(5):
        known: ByType[str] = ByType({}, {name: late(name) for name in libraries})
        assert in_threads(8, lambda _, known=known: known.look()) == [None] * 8  # type: ignore[misc]
        assert not known.waiting
        assert set(known.values()) == set(libraries)
