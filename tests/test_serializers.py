"""The built-in serializers: their suites, and what is theirs alone."""

from __future__ import annotations

import abc
import collections
import dataclasses
import enum
import errno
import functools
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypedDict, TypeVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from pparallel.errors import SerializationError
from pparallel.interfaces.serializer import Serializer, SerializerConfig
from pparallel.testing import SerializerSuite
from pparallel_serializers import (
    CloudpickleSerializerConfig,
    DillSerializerConfig,
    PickleSerializerConfig,
    SafeSerializerConfig,
    mark_static_module,
)
from pparallel_serializers.by_value import namespaces
from pparallel_serializers.cloudpickle import CloudpickleSerializer
from pparallel_serializers.dill import DillSerializer
from pparallel_serializers.pickle import PickleSerializer
from pparallel_serializers.safe import SafeSerializer

T = TypeVar("T")

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


class TestDillRecursing(SerializerSuite):
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


@pytest.fixture
def dill() -> DillSerializer:
    return DillSerializer(DillSerializerConfig())


MADE: dict[str, Callable[[], Serializer]] = {
    "pickle": lambda: PickleSerializer(PickleSerializerConfig()),
    "dill": lambda: DillSerializer(DillSerializerConfig()),
    "cloudpickle": lambda: CloudpickleSerializer(CloudpickleSerializerConfig()),
    "safe": lambda: SafeSerializer(SafeSerializerConfig()),
}


@pytest.fixture(params=["pickle", "dill", "cloudpickle"])
def serializer(request: pytest.FixtureRequest) -> Serializer:
    return MADE[request.param]()


@pytest.fixture(params=MADE)
def each_serializer(request: pytest.FixtureRequest) -> Serializer:
    return MADE[request.param]()


def sent(serializer: Serializer, obj: Any) -> Any:
    return serializer.loads([bytearray(each) for each in serializer.dumps(obj)])


def run_script(text: str, tmp_path: Path, name: str = "script.py", **given: str) -> str:
    """Run *text* as ``__main__`` of a process of its own and return what it prints."""
    script = tmp_path / name
    script.write_text(textwrap.dedent(text))
    command = [sys.executable, "-W", "error", str(script)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=100, env={**os.environ, **given}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


PREAMBLE = """
import os, sys, pathlib
from pparallel_serializers import DillSerializerConfig, mark_static_module
from pparallel_serializers.dill import DillSerializer
dill = DillSerializer(DillSerializerConfig())
def write(obj, name="object"):
    for i, each in enumerate(dill.dumps(obj)):
        pathlib.Path(os.environ["WHERE"], f"{name}.{i}").write_bytes(bytes(each))
def read(name="object"):
    found = sorted(pathlib.Path(os.environ["WHERE"]).glob(f"{name}.*"))
    return dill.loads([bytearray(each.read_bytes()) for each in found])
"""


@pytest.fixture
def across(tmp_path: Path) -> Callable[[str, str], str]:
    """Runs one script, then another in a process of its own: what the second one prints."""

    def run(writer: str, reader: str) -> str:
        where = str(tmp_path)
        preamble = textwrap.dedent(PREAMBLE)
        run_script(preamble + textwrap.dedent(writer), tmp_path, "writer.py", WHERE=where)
        return run_script(preamble + textwrap.dedent(reader), tmp_path, "reader.py", WHERE=where)

    return run


class TestTensors:
    @pytest.mark.filterwarnings("ignore:ComplexHalf support:UserWarning")
    @pytest.mark.parametrize("step", [1, 2, 5])
    def test_every_dtype(self, each_serializer: Serializer, step: int) -> None:
        raw = torch.arange(4096, dtype=torch.int64).view(torch.uint8).untyped_storage()
        for dtype in DTYPES:
            tensor = torch.empty(0, dtype=dtype).set_(raw, 0, (64,), (step,))
            found = sent(each_serializer, tensor)
            assert found.dtype == dtype
            assert found.stride() == (step,)
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
        assert found.strides == column.strides

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
    @settings(max_examples=60)
    @given(nested)
    def test_nested_data(self, obj: Any) -> None:
        for make in MADE.values():
            assert sent(make(), obj) == obj

    @settings(max_examples=150)
    @given(st.lists(tensors(), min_size=1, max_size=4), st.data())
    def test_views(self, views: list[torch.Tensor], data: st.DataObject) -> None:
        views.append(data.draw(st.sampled_from(views))[...])
        serializer = MADE[data.draw(st.sampled_from(["dill", "safe"]))]()
        found = sent(serializer, views)
        for view, arrived in zip(views, found, strict=True):
            assert torch.equal(view, arrived)
            assert (view.dtype, view.stride()) == (arrived.dtype, arrived.stride())
        before = [view.clone() for view in views]
        found[-1].fill_(99)
        assert all(torch.equal(*pair) for pair in zip(views, before, strict=True))
        shares = [
            v.untyped_storage().data_ptr() == views[-1].untyped_storage().data_ptr() != 0
            for v in views
        ]
        for view, arrived, is_shared in zip(views, found, shares, strict=True):
            assert is_shared or torch.equal(view, arrived)


class Colour(enum.Enum):
    RED = 1


def plain(x: int) -> int:
    return x + COUNTER


COUNTER = 10


class TestCode:
    def test_one_memo_for_closures_and_what_is_outside(self, dill: DillSerializer) -> None:
        shared: list[int] = []

        def push(x: int) -> None:
            shared.append(x)

        found, same, again = sent(dill, [push, shared, lambda: shared])
        found(5)
        assert same == [5]
        assert again() is same
        assert shared == []

    def test_functions_share_a_cell(self, dill: DillSerializer) -> None:
        def make() -> tuple[Callable[[], None], Callable[[], int]]:
            count = 0

            def up() -> None:
                nonlocal count
                count += 1

            return up, lambda: count

        up, read = sent(dill, make())
        up()
        assert read() == 1

    def test_cycles_through_closures(self, dill: DillSerializer) -> None:
        holder: dict[str, Any] = {}
        holder["me"] = lambda: holder
        found = sent(dill, holder)
        assert found["me"]() is found

        def even(n: int) -> bool:
            return n == 0 or odd(n - 1)

        def odd(n: int) -> bool:
            return n != 0 and even(n - 1)

        assert sent(dill, even)(10)
        cell = (lambda: even).__closure__[0]  # type: ignore[index]
        assert sent(dill, cell).cell_contents(4)

    def test_everything_that_a_function_has(self, dill: DillSerializer) -> None:
        def function(a: int, b: list[int] = [1], *, c: str = "c") -> str:  # noqa: B006
            """Says something."""
            return f"{a}{b}{c}"

        function.note = "attribute"  # type: ignore[attr-defined]
        found = sent(dill, function)
        assert found(1) == "1[1]c"
        assert found.__doc__ == "Says something."
        assert found.note == "attribute"
        assert found.__qualname__ == function.__qualname__
        assert found.__module__ == __name__
        assert found.__kwdefaults__ == {"c": "c"}
        assert found.__annotations__ == function.__annotations__

    def test_kinds_of_functions(self, dill: DillSerializer) -> None:
        async def coroutine() -> int:
            return 1

        def generator() -> Any:
            yield 1

        partial = functools.partial(lambda a, b: a - b, b=1)
        assert sent(dill, partial)(5) == 4
        assert list(sent(dill, generator)()) == [1]
        with pytest.raises(StopIteration, match="1"):
            sent(dill, coroutine)().send(None)
        cached = functools.lru_cache(maxsize=3)(lambda n: n + 1)
        assert sent(dill, cached)(1) == 2
        assert sent(dill, cached).cache_parameters()["maxsize"] == 3
        assert sent(dill, functools.wraps(plain)(lambda x: x * 2))(4) == 8

    def test_importable_goes_by_name(self, dill: DillSerializer) -> None:
        for each in (
            plain,
            os.path.join,
            len,
            Colour,
            Colour.RED,
            dict,
            TestCode.helper,
            str.upper,
        ):
            assert sent(dill, each) is each
            assert dill.dumps(each)[0] == PickleSerializer(PickleSerializerConfig()).dumps(each)[0]

    @staticmethod
    def helper() -> None: ...

    def test_functions_see_the_receivers_module(self, dill: DillSerializer) -> None:
        recursing = DillSerializer(DillSerializerConfig(recurse=True))
        function = lambda: plain(1) + COUNTER  # noqa: E731
        live, copy = sent(dill, function), sent(recursing, function)
        assert live() == copy() == 21
        globals()["COUNTER"] = 20
        try:
            assert live() == 41
            assert copy() == 31  # plain is importable: it goes by name
        finally:
            globals()["COUNTER"] = 10

    def test_modules_go_by_name(self, dill: DillSerializer) -> None:
        assert sent(dill, os.path) is os.path
        made = types.ModuleType("made_at_run_time")
        with pytest.raises(SerializationError, match="made_at_run_time"):
            dill.dumps(lambda: made)

    def test_builtin_types_without_a_name(self, dill: DillSerializer) -> None:
        for each in (types.FunctionType, types.CellType, type(None), types.GeneratorType):
            assert sent(dill, each) is each

    def test_what_a_class_may_hold(self, dill: DillSerializer) -> None:
        found = pickle_away(dill, make_classes)
        assert found["slots"].x == 1
        assert dataclasses.asdict(found["data"]) == {"a": 1, "b": [2]}
        assert [each.name for each in dataclasses.fields(found["data"])] == ["a", "b"]
        assert found["tuple"]._replace(x=5) == (5, 2)
        assert found["enum"].TWO.label() == "TWO 2"
        assert found["enum"](2) is found["enum"].TWO
        assert found["enum"](4) is found["enum"].TWO
        assert found["planet"].size == 3
        assert found["flag"] | type(found["flag"]).WRITE == type(found["flag"])(3)
        assert found["typed"](a=1) == {"a": 1}
        assert found["members"].doubled == 4
        assert found["members"].cached == "cached"
        assert found["members"].static() == "static"
        assert type(found["members"]).klass() is type(found["members"])
        assert isinstance(3, found["abstract"])
        with pytest.raises(TypeError, match="abstract"):
            found["abstract"]()
        assert found["generic"][int].__args__ == (int,)
        assert found["derived"].hello() == "derived base"
        assert found["meta"].made_by == "meta"

    def test_local_class_keeps_its_identity_here(self, dill: DillSerializer) -> None:
        classes = make_classes()
        assert type(sent(dill, classes["data"])) is type(classes["data"])
        assert sent(dill, classes["enum"].TWO) is classes["enum"].TWO


def make_classes() -> dict[str, Any]:
    return {**make_data_classes(), **make_behaviour()}


def make_data_classes() -> dict[str, Any]:
    class Slots:
        __slots__ = ("__hidden", "x")

        def __init__(self) -> None:
            self.x = 1
            self.__hidden = 2

    @dataclasses.dataclass
    class Data:
        a: int
        b: list[int] = dataclasses.field(default_factory=lambda: [2])

    class Pair(NamedTuple):
        x: int
        y: int = 2

    class Number(enum.IntEnum):
        ONE = 1
        TWO = 2
        ALIAS = 2

        @classmethod
        @override
        def _missing_(cls, value: object) -> Any:
            return cls.TWO

        def label(self) -> str:
            return f"{self.name} {int(Number(self.value))}"

    class Planet(enum.Enum):
        EARTH = (1, 2)

        def __init__(self, one: int, two: int) -> None:
            self.size = one + two

    class Access(enum.Flag):
        READ = 1
        WRITE = 2

    class Typed(TypedDict):
        a: int

    return {
        "slots": Slots(),
        "data": Data(1),
        "tuple": Pair(1),
        "enum": Number,
        "planet": Planet.EARTH,
        "flag": Access.READ,
        "typed": Typed,
    }


def make_behaviour() -> dict[str, Any]:
    class Members:
        @property
        def doubled(self) -> int:
            return 4

        @functools.cached_property
        def cached(self) -> str:
            return "cached"

        @staticmethod
        def static() -> str:
            return "static"

        @classmethod
        def klass(cls) -> type:
            return cls

    class Abstract(abc.ABC):
        @abc.abstractmethod
        def method(self) -> None: ...

    Abstract.register(int)

    class Box(Generic[T]):
        pass

    class Base:
        def hello(self) -> str:
            return "base"

    class Derived(Base):
        @override
        def hello(self) -> str:
            return f"derived {super().hello()}"

    class Meta(type):
        made_by = "meta"

    class WithMeta(metaclass=Meta):
        pass

    return {
        "members": Members(),
        "abstract": Abstract,
        "generic": Box,
        "derived": Derived(),
        "meta": WithMeta,
    }


def pickle_away(dill: DillSerializer, make: Callable[[], Any]) -> Any:
    """Return what *make* made, as a process gets it that has never seen its classes."""
    from pparallel_serializers.by_value import classes

    buffers = [bytearray(each) for each in dill.dumps(make())]
    known = dict(classes._classes)
    classes._classes.clear()
    try:
        return dill.loads(buffers)
    finally:
        classes._classes.update(known)


class TestMain:
    """What lives in ``__main__``, between processes that share none, or run the same script."""

    def test_functions_take_their_globals_along(self, across: Callable[[str, str], str]) -> None:
        writer = """
        import xml.etree.ElementTree
        rate, unused = 3, open(os.devnull)
        class Thing:
            made = 0
            def __init__(self, n): self.n = n
            def __eq__(self, other): return isinstance(other, Thing) and self.n == other.n
            def twin(self): Thing.made += 1; return Thing(scaled(self.n))
        def scaled(x): return x * rate
        def parse(): return xml.etree.ElementTree.fromstring("<a/>").tag
        write([scaled, Thing(2), lambda: Thing(rate), parse], "a")
        write([Thing(7), Thing], "b")
        Thing.made = 40
        write(Thing(0), "c")
        """
        reader = """
        scaled, thing, make, parse = read("a")
        assert scaled(2) == 6 and thing.twin().n == 6 and make().n == 3
        assert type(make()) is type(thing) and thing.twin() == type(thing)(6)
        other, Thing = read("b")
        assert type(other) is Thing is type(thing), "built twice"
        assert Thing.made == 2, "attributes set here stay"
        assert type(read("c")) is Thing and Thing.made == 40, "and follow the definer's"
        assert parse() == "a"
        assert "dill" not in sys.modules and "torch" not in sys.modules
        print("fine")
        """
        assert across(writer, reader) == "fine\n"

    def test_a_class_comes_home(self, tmp_path: Path) -> None:
        script = """
        import subprocess
        class Thing:
            def __init__(self): self.items = []
        if len(sys.argv) == 1:
            write(Thing())
            code = "import os; exec(os.environ['PREAMBLE']); thing = read();"
            code += "thing.items.append(type(thing)); write(thing)"
            subprocess.run([sys.executable, "-c", code], check=True)
            back = read()
            assert type(back) is Thing and back.items == [Thing]
            print("fine")
        """
        text = PREAMBLE + textwrap.dedent(script)
        given = {"WHERE": str(tmp_path), "PREAMBLE": PREAMBLE}
        assert run_script(text, tmp_path, **given) == "fine\n"

    def test_ranks_of_one_script_share_classes_and_functions(self, tmp_path: Path) -> None:
        script = """
        import enum
        calls = 0
        class Thing: pass
        class Kind(enum.Enum): A = 1
        def count():
            global calls
            calls += 1
            return calls
        if os.environ["RANK"] == "0":
            calls = 100
            write([Thing(), count, Kind.A, lambda: count()])
        else:
            thing, function, kind, indirect = read()
            assert type(thing) is Thing and function is count and kind is Kind.A
            assert indirect() == 1 and calls == 1, "a rank's own state"
            print("fine")
        """
        text = PREAMBLE + textwrap.dedent(script)
        run_script(text, tmp_path, WHERE=str(tmp_path), RANK="0")
        assert run_script(text, tmp_path, WHERE=str(tmp_path), RANK="1") == "fine\n"

    def test_a_different_class_of_the_same_name_is_not_taken(
        self, across: Callable[[str, str], str]
    ) -> None:
        writer = """
        class Thing:
            def f(self): return 1
        write(Thing())
        """
        reader = """
        class Thing:
            def f(self): return 2
        assert read().f() == 1 and Thing().f() == 2
        print("fine")
        """
        assert across(writer, reader) == "fine\n"

    def test_same_process(self, tmp_path: Path) -> None:
        script = """
        x = 1
        class Thing: pass
        def get(): return x
        function, thing, anonymous = dill.loads(dill.dumps([get, Thing(), lambda: x]))
        assert function is get and type(thing) is Thing
        x = 2
        assert anonymous() == 2
        print("fine")
        """
        text = PREAMBLE + textwrap.dedent(script)
        assert run_script(text, tmp_path, WHERE="") == "fine\n"

    def test_static_main_goes_by_name(self, across: Callable[[str, str], str]) -> None:
        writer = """
        def answer(): return 1
        mark_static_module(sys.modules["__main__"])
        write([answer, lambda: answer()])
        """
        reader = """
        def answer(): return 42
        named, anonymous = read()
        assert named is answer and anonymous() == 42
        print("fine")
        """
        assert across(writer, reader) == "fine\n"

    def test_a_missing_module_is_named(self, across: Callable[[str, str], str]) -> None:
        writer = """
        pathlib.Path(os.environ["WHERE"], "elsewhere.py").write_text("def f(): pass")
        import elsewhere
        write(elsewhere.f)
        os.remove(elsewhere.__file__)
        """
        reader = """
        from pparallel.errors import SerializationError
        try: read()
        except SerializationError as error: print(error)
        """
        assert "elsewhere" in across(writer, reader)


class TestCloudpickleAlone:
    def test_main_travels_as_a_copy(self, tmp_path: Path) -> None:
        script = """
        import torch
        from pparallel_serializers import CloudpickleSerializerConfig
        from pparallel_serializers.cloudpickle import CloudpickleSerializer
        serializer = CloudpickleSerializer(CloudpickleSerializerConfig())
        weights = torch.zeros(1000)
        def first(): return weights[0]
        stream, data = serializer.dumps(first)
        assert len(stream) < 2000 and data.nbytes == 4000, "out of band, also among globals"
        found = serializer.loads([stream, bytearray(data)])
        weights[0] = 1
        assert found is not first and found() == 0 and first() == 1
        print("fine")
        """
        assert run_script(script, tmp_path) == "fine\n"

    def test_objects_do_not_mix(self, tmp_path: Path) -> None:
        serializer = MADE["cloudpickle"]()
        for number in range(50):
            namespace: dict[str, Any] = {"__name__": f"made_{number}", "number": number}
            exec("def get(): return number", namespace)
            assert sent(serializer, namespace.pop("get"))() == number

    def test_says_how_to_install_it(self, tmp_path: Path) -> None:
        script = """
        import sys
        sys.modules["cloudpickle"] = None
        import pparallel
        from pparallel_serializers import CloudpickleSerializerConfig
        try: pparallel.build(CloudpickleSerializerConfig())
        except pparallel.errors.MissingDependencyError as error: print(error.install)
        """
        assert run_script(script, tmp_path) == "pip install 'pparallel[cloudpickle]'\n"

    def test_static_modules_go_by_name(self) -> None:
        module = types.ModuleType("static_for_cloudpickle")
        exec("def shadowed(): return 1\nkept = shadowed\ndef shadowed(): return 2", vars(module))
        sys.modules[module.__name__] = module
        try:
            assert sent(MADE["cloudpickle"](), module.kept) is not module.shadowed
            mark_static_module(module)
            assert sent(MADE["cloudpickle"](), module.kept) is module.shadowed
        finally:
            del sys.modules[module.__name__]


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


class TestErrors:
    def test_says_where(self, serializer: Serializer) -> None:
        with pytest.raises(SerializationError, match=r"lock .* at \['a'\]\[1\]\.inner"):
            serializer.dumps({"a": [1, HoldsLock()]})

    def test_says_what_failed_in_a_hook(self, serializer: Serializer) -> None:
        with pytest.raises(SerializationError, match=r"Stubborn .* at \[1\].* no reason") as caught:
            serializer.dumps([1, Stubborn()])
        assert isinstance(caught.value.__cause__, LookupError)

    def test_closures_are_searched(self, dill: DillSerializer) -> None:
        lock = threading.Lock()
        with pytest.raises(SerializationError, match="closing over lock"):
            dill.dumps(lambda: lock)

    def test_pickle_names_the_lambda(self) -> None:
        with pytest.raises(SerializationError, match="lambda"):
            PickleSerializer(PickleSerializerConfig()).dumps([lambda: 1])

    def test_a_failing_repr_hides_nothing(self, serializer: Serializer) -> None:
        with pytest.raises(SerializationError, match="Nameless"):
            serializer.dumps(Nameless())

    def test_a_bystander_that_refuses_all_questions(self, serializer: Serializer) -> None:
        with pytest.raises(SerializationError, match=r"lock .* at \[0\]\.inner"):
            serializer.dumps([HoldsLock(), Unanswering()])

    def test_a_bystander_that_has_no_name(self) -> None:
        with pytest.raises(SerializationError, match=r"function .* at \[1\] cannot"):
            PickleSerializer(PickleSerializerConfig()).dumps([Unprintable, NAMELESS[0]])

    def test_an_error_that_cannot_be_read(self, serializer: Serializer) -> None:
        with pytest.raises(SerializationError, match=r"Silent .*: SilentError: <its message"):
            serializer.dumps(Silent())
        stream = serializer.dumps(Late())
        with pytest.raises(SerializationError, match="SilentError: <its message cannot be read>"):
            serializer.loads(stream)

    def test_interrupts_pass(self, serializer: Serializer) -> None:
        with pytest.raises(KeyboardInterrupt):
            serializer.dumps(Interrupts())
        assert sent(serializer, 1) == 1

    def test_code_of_another_python(self, dill: DillSerializer) -> None:
        from importlib.util import MAGIC_NUMBER

        stream = bytes(dill.dumps(lambda: 1)[0])
        with pytest.raises(SerializationError, match="another version of Python"):
            dill.loads([stream.replace(MAGIC_NUMBER, b"\0\0\r\n")])

    def test_serialising_inside_reduce(self, serializer: Serializer) -> None:
        assert sent(serializer, Nesting(serializer)) == [1, 2]


class HoldsLock:
    def __init__(self) -> None:
        self.inner = threading.Lock()


class Stubborn:
    @override
    def __getstate__(self) -> object:
        raise LookupError("no reason")


class Nameless:
    @override
    def __repr__(self) -> str:
        raise LookupError("no name")

    @override
    def __getstate__(self) -> object:
        raise LookupError("no state")


class Unanswering:
    def __getattr__(self, name: str) -> object:
        raise LookupError(name)


class Refusing(type):
    @override
    def __repr__(cls) -> str:
        raise LookupError("no name")


class Unprintable(metaclass=Refusing):
    pass


NAMELESS = [lambda: 1]


class SilentError(Exception):
    @override
    def __str__(self) -> str:
        raise LookupError("no message")


class Silent:
    @override
    def __getstate__(self) -> object:
        raise SilentError


class Late:
    @override
    def __reduce__(self) -> Any:
        return fail_silently, ()


def fail_silently() -> None:
    raise SilentError


class Interrupts:
    @override
    def __reduce__(self) -> str:
        raise KeyboardInterrupt


class Nesting:
    def __init__(self, serializer: Serializer) -> None:
        self.serializer = serializer

    @override
    def __reduce__(self) -> Any:
        inner = self.serializer.loads(self.serializer.dumps([1, 2]))
        return list, (inner,)


class TestNamespaces:
    def test_two_threads_make_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Another thread is quicker, after this one has looked and before it has its own."""
        quicker: list[dict[str, Any]] = []
        kind = namespaces.ReceivedMain

        def make(*args: Any) -> namespaces.ReceivedMain:
            if not quicker:
                quicker.append({})
                quicker[0] = namespaces.make_namespace("process", {})
            return kind(*args)

        monkeypatch.setattr(namespaces, "_received", {})
        monkeypatch.setattr(namespaces, "ReceivedMain", make)
        assert namespaces.make_namespace("process", {}) is quicker[0]


class TestImports:
    def test_light_until_needed(self, tmp_path: Path) -> None:
        script = """
        import pickle
        before = dict(pickle._Pickler.dispatch)
        assert dill.loads(dill.dumps(lambda x: x + 1))(1) == 2
        heavy = {"dill", "torch", "numpy", "cloudpickle"} & set(sys.modules)
        assert not heavy, heavy
        import functools
        assert dill.loads(dill.dumps(functools.lru_cache(lambda x: x)))(1) == 1
        assert "dill" in sys.modules
        assert pickle._Pickler.dispatch == before, "dill changed the standard pickler"
        import numpy
        assert dill.loads(dill.dumps(numpy.ones(3))).sum() == 3
        print("fine")
        """
        text = PREAMBLE + textwrap.dedent(script)
        assert run_script(text, tmp_path, WHERE="") == "fine\n"

    def test_static_module_by_its_name(self, dill: DillSerializer) -> None:
        module = types.ModuleType("static_example")
        exec("def shadowed(): return 1\nkept = shadowed\ndef shadowed(): return 2", vars(module))
        sys.modules["static_example"] = module
        try:
            assert sent(dill, module.kept) is not module.shadowed
            mark_static_module(module)
            assert sent(dill, module.kept) is module.shadowed
        finally:
            del sys.modules["static_example"]
