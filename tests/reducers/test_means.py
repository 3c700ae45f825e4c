"""Means of tensors of several members."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from pparallel.interfaces.collective import ReduceOp

_DTYPES = [
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
]
_TOLERANCE = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 1e-6, torch.complex64: 1e-6}


def _expected(parts: list[Tensor]) -> Tensor:
    wide = torch.complex128 if parts[0].is_complex() else torch.float64
    return torch.stack([each.to(wide) for each in parts]).mean(0)


def _assert_close(found: Tensor, expected: Tensor) -> None:
    error = _TOLERANCE.get(found.dtype, 1e-14)
    torch.testing.assert_close(found.to(expected.dtype), expected, rtol=error, atol=error * 4)


@given(
    shape=st.lists(st.integers(0, 40), max_size=3).map(tuple),
    dtype=st.sampled_from(_DTYPES),
    count=st.integers(1, 5),
    step=st.sampled_from([1, 2]),
    in_place=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_means_of_any_tensors(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    count: int,
    step: int,
    in_place: bool,
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)

    def made() -> Tensor:
        values = torch.rand((*shape, step), generator=generator, dtype=torch.float64)
        return values.to(dtype)[..., 0]

    parts = [made() for _ in range(count)]
    expected = _expected(parts)
    others = [each.clone() for each in parts[1:]]
    out = parts[0] if in_place else made()
    ReduceOp.AVG.combine(parts, out)
    _assert_close(out, expected)
    for mine, theirs in zip(parts[1:], others, strict=True):
        assert mine.equal(theirs)


@pytest.mark.parametrize(("place", "size"), [(0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (1, 5)])
def test_a_mean_is_written_over_one_of_its_first_parts(place: int, size: int) -> None:
    parts = [torch.arange(33.0) * (number + 1) for number in range(size)]
    expected = _expected(parts)
    ReduceOp.AVG.combine(parts, parts[place])
    _assert_close(parts[place], expected)


@pytest.mark.parametrize("size", [2, 3, 4, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_large_and_special_values_stay_what_they_are(dtype: torch.dtype, size: int) -> None:
    limits = torch.finfo(dtype)
    row = torch.tensor(
        [float("-inf"), float("nan"), 0.0, -0.0] + [limits.max / 2] * 13, dtype=dtype
    )
    out = torch.empty_like(row)
    ReduceOp.AVG.combine([row.clone() for _ in range(size)], out)
    torch.testing.assert_close(out, row, equal_nan=True)
    whole = torch.full((17,), limits.min, dtype=dtype)
    out = torch.empty_like(whole)
    ReduceOp.AVG.combine([whole] * 2, out)
    assert out.equal(whole)


@pytest.mark.parametrize("length", [1, 7, 8, 33, 1000])
def test_with_shares_that_are_exact_a_mean_is_what_torch_makes_of_it(length: int) -> None:
    parts = [torch.randn(length) for _ in range(4)]
    out = torch.empty(length)
    ReduceOp.AVG.combine(parts, out)
    expected = parts[0] / 4
    for each in parts[1:]:
        expected += each / 4
    assert out.equal(expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
@pytest.mark.parametrize("size", [2, 3, 5, 7])
def test_an_element_is_rounded_alike_wherever_it_lies(dtype: torch.dtype, size: int) -> None:
    rows = [torch.randn(35, dtype=dtype) * 1e-38 ** (number % 2) for number in range(size)]
    whole = torch.empty(35, dtype=dtype)
    ReduceOp.AVG.combine(rows, whole)
    for first in range(35):
        alone = torch.empty(35 - first, dtype=dtype)
        ReduceOp.AVG.combine([each[first:] for each in rows], alone)
        assert alone.equal(whole[first:])
        single = torch.empty((), dtype=dtype)
        ReduceOp.AVG.combine([each[first] for each in rows], single)
        assert single.equal(whole[first])
    strided = torch.empty(35, 3, dtype=dtype)[:, 1]
    ReduceOp.AVG.combine([torch.stack([each] * 2, 1)[:, 0] for each in rows], strided)
    assert strided.equal(whole)


def test_a_mean_of_another_kind_of_tensors_leaves_nothing_behind() -> None:
    with FakeTensorMode():
        parts = [torch.ones(3, dtype=torch.float64) for _ in range(11)]
        ReduceOp.AVG.combine(parts, torch.empty(3, dtype=torch.float64))
    parts = [torch.ones(3, dtype=torch.float64) for _ in range(11)]
    out = torch.empty(3, dtype=torch.float64)
    ReduceOp.AVG.combine(parts, out)
    torch.testing.assert_close(out, parts[0])
