"""The serializer ``safe``: what it takes, what it refuses, and that it does without pickle."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pparallel
from pparallel.errors import ConfigError, SerializationError
from pparallel_serializers import SafeSerializerConfig
from pparallel_serializers.safe import SafeSerializer

SAFE = SafeSerializer(SafeSerializerConfig())
SMALL = SafeSerializer(SafeSerializerConfig(max_bytes=1 << 20))


def sent(obj: Any, serializer: SafeSerializer = SAFE) -> Any:
    return serializer.loads([bytearray(each) for each in serializer.dumps(obj)])


# -- what it takes ----------------------------------------------------------------------------

keys: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.complex_numbers()
    | st.text(st.characters(codec=None))  # lone surrogates too
    | st.binary(max_size=40)
)
keys = st.recursive(
    keys,
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)
plain = st.recursive(
    keys | st.binary(max_size=40).map(bytearray),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.lists(inner, max_size=5).map(tuple)
        | st.dictionaries(keys, inner, max_size=5)
        | st.dictionaries(keys, inner, max_size=5).map(OrderedDict)
        | st.sets(keys, max_size=5)
    ),
    max_leaves=15,
)


def same(one: Any, other: Any) -> bool:
    """Equal, of the same types all the way down, with NaNs and signs of zeros."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return len(one) == len(other) and all(map(same, flat(one), flat(other)))
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, (set, frozenset)):
        return sorted(map(ordered, one)) == sorted(map(ordered, other))
    return repr(one) == repr(other)


def flat(mapping: dict[Any, Any]) -> Iterator[Any]:
    for pair in mapping.items():
        yield from pair


def ordered(obj: Any) -> str:
    if isinstance(obj, frozenset):
        return f"frozenset{sorted(map(ordered, obj))}"
    if isinstance(obj, tuple):
        return f"tuple{list(map(ordered, obj))}"
    return repr(obj)


class TestData:
    @settings(max_examples=50)
    @given(plain)
    def test_any_plain_data(self, obj: Any) -> None:
        assert same(sent(obj), obj)

    def test_state_of_a_model_and_its_optimizer(self) -> None:
        model = torch.nn.Sequential(torch.nn.Linear(40, 30), torch.nn.BatchNorm1d(30))
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(2, 40)).sum().backward()
        optimizer.step()
        state, of_optimizer = sent([model.state_dict(), optimizer.state_dict()])
        assert type(state) is OrderedDict
        assert state._metadata == model.state_dict()._metadata  # type: ignore[attr-defined]
        twin = torch.nn.Sequential(torch.nn.Linear(40, 30), torch.nn.BatchNorm1d(30))
        twin.load_state_dict(state)
        assert all(map(torch.equal, twin.parameters(), model.parameters()))
        torch.optim.Adam(twin.parameters()).load_state_dict(of_optimizer)

    @pytest.mark.parametrize(
        "value",
        [
            *(np.float64(2.5), np.int8(-3), np.bool_(True), np.complex64(1j), np.longdouble(1.5)),
            *(np.str_(""), np.str_("grüße"), np.bytes_(b"a"), np.void(b"abc")),
            *(np.datetime64("2020-01-01"), np.array([3], "m8[25s]")[0]),
            np.ones((), [("a", "i4"), ("b", "U3")])[()],
            torch.Size([2, 3]),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_scalars_and_sizes(self, value: Any) -> None:
        found = sent([value])[0]
        assert type(found) is type(value)
        assert found == value

    def test_a_list_that_is_twice_there_becomes_two(self) -> None:
        shared = [1]
        one, other = sent([shared, shared])
        assert one == other == [1]
        assert one is not other

    def test_small_objects_make_small_streams(self) -> None:
        assert len(memoryview(SAFE.dumps({"a": [1, 2, 3]})[0])) < 80


class Number(IntEnum):
    ONE = 1


class Text(str):
    __slots__ = ()


class TestRefusals:
    @pytest.mark.parametrize(
        ("obj", "where"),
        [
            (len, "function len"),
            ({"a": [1, (2, {"b": threading.Lock()})]}, r"\['a'\]\[1\]\[1\]\['b'\] \(threading"),
            ([Number.ONE], r"obj\[0\] \(.*Number\)"),
            ([Text("text")], r"obj\[0\] \(.*Text\)"),
            ([defaultdict(list)], r"obj\[0\] \(collections.defaultdict\)"),
            ([1, type], r"obj\[1\] \(class type\)"),
            ({"error": ValueError("no")}, r"obj\['error'\] \(ValueError\)"),
            ({Number.ONE: 1}, "Number"),
        ],
        ids=lambda each: type(each).__name__ if not isinstance(each, str) else "",
    )
    def test_names_what_it_does_not_take(self, obj: object, where: str) -> None:
        with pytest.raises(SerializationError, match=where) as caught:
            SAFE.dumps(obj)
        assert "safe takes data only: None, bool, int" in str(caught.value)

    def test_tensors_that_are_not_strided_memory(self) -> None:
        class Special(torch.Tensor):
            pass

        bad = [
            torch.eye(3).to_sparse(),
            torch.empty(3, device="meta"),
            torch.ones(3).as_subclass(Special),
            torch.ones([1] * 65),
        ]
        for each in bad:
            with pytest.raises(SerializationError, match=r"obj\[1\] \(.*\) cannot .* safe takes"):
                SAFE.dumps([1, each])

    def test_an_attribute_is_named(self) -> None:
        tensor: Any = torch.ones(3)
        tensor.hook = [print]
        with pytest.raises(SerializationError, match=r"obj\[0\]\.hook\[0\] \(function print\)"):
            SAFE.dumps([tensor])

    @pytest.mark.parametrize(
        "array",
        [
            np.array([1, "a"], dtype=object),
            np.zeros(2, [("a", "i4"), ("b", object)]),
            np.zeros(2, np.dtype("i4", metadata={"a": 1})),
            np.zeros(2, np.dtype((np.record, [("a", "i4")]))),
            np.ma.masked_equal(np.arange(3), 1),
            np.array(["a"], np.dtypes.StringDType()),
        ],
        ids=lambda array: str(array.dtype),
    )
    def test_arrays_of_anything_else(self, array: Any) -> None:
        with pytest.raises(SerializationError, match=r"obj\['x'\] \(.*\) cannot .* safe takes"):
            SAFE.dumps({"x": array})

    def test_too_deep_or_endless(self) -> None:
        deep: list[Any] = []
        for _ in range(99):
            deep = [deep]
        assert sent(deep) == deep
        with pytest.raises(SerializationError, match=r"more than 100 deep \(max_depth\)"):
            SAFE.dumps([deep])
        endless: dict[str, Any] = {}
        endless["me"] = endless
        with pytest.raises(SerializationError, match="contains itself"):
            SAFE.dumps(endless)
        shallow = SafeSerializer(SafeSerializerConfig(max_depth=99))
        with pytest.raises(SerializationError, match=r"more than 99 deep \(max_depth\)"):
            shallow.loads(SAFE.dumps(deep))

    def test_too_large(self) -> None:
        for large in (bytes(2 << 20), torch.ones(1 << 19), np.ones(1 << 18), "x" * (2 << 20)):
            with pytest.raises(SerializationError, match=r"1048576 bytes.* max_bytes"):
                SMALL.dumps(large)
            with pytest.raises(SerializationError, match=r"1048576 bytes.* max_bytes"):
                SMALL.loads(SAFE.dumps(large))

    def test_each_value_counts(self) -> None:
        assert len(sent([0] * 8000, SMALL)) == 8000
        lists: list[list[Any]] = [[0] * 8192, [[]] * 4096]
        for many in lists:
            with pytest.raises(SerializationError, match="each value counts 128"):
                SMALL.dumps(many)
            with pytest.raises(SerializationError, match="each value counts 128"):
                SMALL.loads(SAFE.dumps(many))

    def test_one_list_in_very_many_places(self) -> None:
        many: list[Any] = ["x" * 1000]
        for _ in range(60):
            many = [many, many]
        with pytest.raises(SerializationError, match="max_bytes"):
            SMALL.dumps(many)

    def test_gaps_do_not_count(self) -> None:
        for column in (torch.zeros(1000, 1000)[:, 0], np.zeros((1000, 1000))[:, 0]):
            assert len(SMALL.loads(SMALL.dumps(column))) == 1000

    def test_limits_are_options(self) -> None:
        config = pparallel.load(
            pparallel.SerializerConfig, {"backend": "safe", "max_bytes": 1000, "max_depth": 2}
        )
        built = pparallel.build(config)
        assert built.loads(built.dumps(1)) == 1
        for key in ("max_bytes", "max_depth"):
            with pytest.raises(ConfigError, match=key):
                pparallel.load(pparallel.SerializerConfig, {"backend": "safe", key: 0})


# -- without pickle ---------------------------------------------------------------------------

BANNED = ("pickle", "_pickle", "cPickle", "dill", "marshal", "cloudpickle")

WITHOUT_PICKLE = f"""
import json, os, sys
{{preamble}}
banned = {BANNED!r}
known = [sys.modules.pop(name) for name in banned if name in sys.modules]
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in banned:
            raise ImportError(name + " is not to be imported")
sys.meta_path.insert(0, Blocked())
import pparallel
from pparallel_serializers import SafeSerializerConfig
safe = pparallel.build(SafeSerializerConfig())
for module in known:
    for name in ("load", "loads", "Unpickler"):
        if hasattr(module, name):
            setattr(module, name, None)
buffers = [bytearray.fromhex(each) for each in json.load(sys.stdin)]
found = safe.loads(buffers)
"""


def without_pickle(obj: Any, preamble: str, check: str) -> str:
    """Load *obj* where nothing can import pickle; return what *check* prints."""
    code = WITHOUT_PICKLE.format(preamble=preamble) + textwrap.dedent(check)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        input=json.dumps([bytes(each).hex() for each in SAFE.dumps(obj)]),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class TestWithoutPickle:
    def test_plain_data(self) -> None:
        obj = {"a": [1, 2.5, "text", None, (True, {1, 2}), 1 << 100], b"b": OrderedDict(x=1j)}
        check = """
        assert not {"torch", "numpy"} & set(sys.modules)
        assert not set(banned) & set(sys.modules), "imported all the same"
        print(found)
        """
        assert without_pickle(obj, "", check) == f"{obj}\n"

    def test_tensors_and_arrays(self) -> None:
        base = torch.arange(1000, dtype=torch.bfloat16)
        parameter: Any = torch.nn.Parameter(torch.ones(20, 30).t())
        parameter.note = {"mask": base[:500]}
        records = np.zeros(40, [("a", ">i4"), ("when", "M8[D]", (2,))])
        obj = [base[400:], parameter, records, np.float64(2.5), base[:0], np.ones((9, 9))[:, 0]]
        check = """
        tail, parameter, records, scalar, empty, column = found
        assert type(parameter) is torch.nn.Parameter and parameter.stride() == (1, 30)
        head = parameter.note["mask"]
        head[450] = -1
        assert tail[50] == -1 and tail.dtype == torch.bfloat16
        assert records.dtype == numpy.dtype([("a", ">i4"), ("when", "M8[D]", (2,))])
        assert scalar == 2.5 and column.strides == (8,) and column.sum() == 9
        assert not set(banned) & set(sys.modules), "imported all the same"
        print("fine")
        """
        # Both import pickle for their own use: they come first.
        assert without_pickle(obj, "import numpy, torch", check) == "fine\n"
