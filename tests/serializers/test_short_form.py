"""What is tensors alone is written at once, and nothing else is."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pparallel.errors import SerializationError
from pparallel_serializers import short_form
from pparallel_serializers.config import DillSerializerConfig
from pparallel_serializers.dill import DillSerializer

torch = pytest.importorskip("torch")

DTYPES = (torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool, torch.complex64)


@pytest.fixture(scope="module")
def serializer() -> DillSerializer:
    return DillSerializer(DillSerializerConfig())


def sent(serializer: DillSerializer, obj: object) -> Any:
    """Return what a receiver has of *obj*, whose bytes came in memory that it may not write to."""
    return serializer.loads([bytes(each) for each in serializer.dumps(obj)])


def tensor_of(dtype: Any, shape: list[int]) -> Any:
    count = 1
    for each in shape:
        count *= each
    return torch.arange(count).to(dtype).reshape(shape)


@given(
    st.lists(
        st.one_of(
            st.integers(),
            st.text(),
            st.binary(),
            st.floats(allow_nan=False),
            st.none(),
            st.builds(tensor_of, st.sampled_from(DTYPES), st.lists(st.integers(1, 9), max_size=4)),
            st.tuples(st.builds(tensor_of, st.sampled_from(DTYPES), st.just([40, 40]))),
        ),
        max_size=5,
    ).map(tuple)
)
def test_tensors_and_plain_values_arrive_as_they_were(obj: tuple[Any, ...]) -> None:
    serializer = DillSerializer(DillSerializerConfig())
    assert_equal(sent(serializer, obj), obj)


def assert_equal(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_equal(one, other)
    elif isinstance(expected, torch.Tensor):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert found.stride() == expected.stride()
        assert torch.equal(found, expected)
    else:
        assert found == expected


@pytest.mark.parametrize("size", [3, 3000])
def test_what_arrives_is_the_receivers_own(serializer: DillSerializer, size: int) -> None:
    original = torch.zeros(size)
    arrived = sent(serializer, original)
    arrived.add_(1)
    assert not original.any()
    assert not arrived.is_shared()
    assert arrived._version == 1
    assert arrived._base is None


def usual() -> dict[str, Any]:
    """Return what has no short form."""
    base = torch.arange(6.0).reshape(2, 3)
    with_note = base.clone()
    with_note.note = "seen"
    return {
        "no tensor": (1, "two"),
        "a column": base[:, 0],
        "transposed": base.t(),
        "two over one storage": (base, base[0]),
        "the same twice": (base, base),
        "a gradient": torch.ones(2, requires_grad=True),
        "a parameter": torch.nn.Parameter(base.clone()),
        "attributes": with_note,
        "no numpy dtype": base.bfloat16(),
        "conjugate": torch.ones(2, dtype=torch.complex64).conj(),
        "sparse": base.to_sparse(),
        "empty": torch.empty(0, 3),
        "in a list": [base],
        "in a dict": {"base": base},
        "deep": ((((base,),),),),
        "long": (base, *range(20)),
        "a subclass of tuple": torch.Size((1, 2)),
    }


@pytest.mark.parametrize("case", usual())
def test_what_is_out_of_the_ordinary_goes_the_usual_way(
    serializer: DillSerializer, case: str
) -> None:
    obj = usual()[case]
    assert short_form.dumps(obj) is None
    assert type(sent(serializer, obj)) is type(obj)


def test_tensors_over_one_storage_share_it_still(serializer: DillSerializer) -> None:
    base = torch.zeros(2, 3)
    whole, row = sent(serializer, (base, base[0]))
    row.fill_(7.0)
    assert whole[0].tolist() == [7.0] * 3


def test_by_reference_means_by_reference(serializer: DillSerializer) -> None:
    original = torch.zeros(1000)
    arrived = sent(serializer.sharing("cpu"), original)
    arrived.fill_(3.0)
    assert original.sum() == 3000


@pytest.mark.parametrize("length", [1, 5, 20])
def test_a_stream_that_was_cut_is_refused(serializer: DillSerializer, length: int) -> None:
    stream, *buffers = serializer.dumps((torch.zeros(1000),))
    with pytest.raises(SerializationError):
        serializer.loads([bytes(stream)[:length], *buffers])


def test_buffers_that_do_not_belong_are_refused(serializer: DillSerializer) -> None:
    stream, content = serializer.dumps(torch.zeros(1000))
    for buffers in ([], [bytes(3999)], [content, b"more"]):
        with pytest.raises(SerializationError, match="buffer"):
            serializer.loads([stream, *buffers])


def test_a_pickle_does_not_begin_like_it() -> None:
    assert not pickle.dumps(None, 5).startswith(short_form.MARK)
