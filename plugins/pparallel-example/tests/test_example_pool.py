"""The pool does what every pool promises, and what is its own."""

from __future__ import annotations

import threading

import pparallel
import pytest
from pparallel.testing import PoolSuite
from typing_extensions import override

from pparallel_example import ExamplePoolConfig


class TestExamplePool(PoolSuite):
    @pytest.fixture
    @override
    def config(self) -> ExamplePoolConfig:
        return ExamplePoolConfig(size=2)


def test_it_is_found_by_name() -> None:
    with pparallel.build({"pool": {"backend": "example", "size": 3}}) as rt:
        assert type(rt.pool).__name__ == "ExamplePool"
        assert rt.pool.map(abs, range(-3, 0)) == [3, 2, 1]


def test_join_is_as_patient_as_it_was_told_to_be() -> None:
    started, release = threading.Event(), threading.Event()

    def task() -> None:
        started.set()
        release.wait()

    pool = pparallel.build(ExamplePoolConfig(size=1, patience=0))
    pool.open()
    try:
        pool.submit(task)
        assert started.wait(30)
        pool.terminate()
        pool.join()
        assert not release.is_set()
    finally:
        release.set()
