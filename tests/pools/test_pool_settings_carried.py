"""Settings of the caller that a worker has, and those that it does not."""

from __future__ import annotations

import warnings
from contextlib import ExitStack

import torch

import pparallel
from pparallel_process import ProcessPoolConfig


def dtype_of(number: float) -> torch.dtype:
    return torch.tensor(number).dtype


def test_an_initializer_sets_the_default_dtype_of_workers() -> None:
    config = ProcessPoolConfig(
        size=1,
        preload=("torch",),
        initializer=torch.set_default_dtype,
        initargs=(torch.float64,),
    )
    with pparallel.build(config) as pool:
        assert pool.map(dtype_of, [0.5]) == [torch.float64]
    assert dtype_of(0.5) == torch.float32


def warn(number: int) -> int:
    warnings.warn("thin ice", RuntimeWarning, stacklevel=1)
    return number


def test_a_recording_around_a_pool_gets_each_warning_of_a_map() -> None:
    with warnings.catch_warnings(record=True) as recorded:
        warnings.simplefilter("always")
        with pparallel.build(ProcessPoolConfig(size=2, preload=("torch",))) as pool:
            for number in range(1, 4):
                pool.map(warn, range(5))
                assert len(recorded) == 5 * number
    assert {each.category for each in recorded} == {RuntimeWarning}


def test_a_worker_keeps_the_filters_of_its_start() -> None:
    pool: pparallel.Pool = pparallel.build(ProcessPoolConfig(size=1, preload=("torch",)))
    with ExitStack() as stack:
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            stack.enter_context(pool)
        recorded = stack.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("always")
        assert pool.map(warn, range(5)) == [*range(5)]
        assert [str(each.message) for each in recorded] == ["thin ice (in pool-worker-0)"]
        warnings.simplefilter("error")
        assert pool.map(warn, range(5)) == [*range(5)]
