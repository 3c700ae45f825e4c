"""Items, functions and results that a pool refuses, by the caller's name of the object."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

import pparallel
from pparallel.compat.machin import pool as machin
from pparallel.errors import SerializationError
from pparallel_process import ProcessPoolConfig


class Holder:
    def __init__(self) -> None:
        self.lock = threading.Lock()


def numbers(*_: object) -> Iterator[int]:
    yield 1


def take(*_: object, **__: object) -> None:
    """Take anything."""


def closing_over(value: object) -> Callable[..., object]:
    return lambda *_: value


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(SerializationError) as caught:
        call()
    assert caught.value.__cause__ is not None
    return str(caught.value)


def test_refusals_of_a_process_pool() -> None:
    bad, closure = Holder(), closing_over(threading.Lock())
    with pparallel.build(ProcessPoolConfig(size=1)) as pool:
        for call, path in (
            (lambda: pool.map(take, [1, bad]), "item.lock"),
            (lambda: list(pool.imap(take, [bad])), "item.lock"),
            (lambda: pool.starmap(take, [(1, bad)]), "args[1].lock"),
            (lambda: pool.apply(take, (1, [bad])), "args[1][0].lock"),
            (lambda: pool.apply(take, (), {"x": bad}), "kwargs['x'].lock"),
            (lambda: pool.submit(take, bad).result(), "args[0].lock"),
            (lambda: pool.submit(take, x=bad).result(), "kwargs['x'].lock"),
            (lambda: pool.map(closure, [1]), "closing_over.<locals>.<lambda> closing over value"),
            (lambda: pool.submit(closure).result(), "closing_over.<locals>.<lambda> closing over"),
        ):
            said = refusal(call)
            assert said.startswith(path), said
            assert "(threading.Lock) cannot be serialised: TypeError: cannot pickle" in said
            assert "make it at module level or in a pool's initializer" in said
        for call in (
            lambda: pool.map(numbers, [1]),
            lambda: pool.apply(numbers),
            lambda: pool.submit(numbers, 1).result(),
        ):
            said = refusal(call)
            assert said.startswith("result (generator) cannot be serialised: ")
            assert said.endswith("; pass or return a list, or use a pool's imap")


def test_refusals_of_a_pool_of_machin() -> None:
    pool = machin.Pool(1)
    try:
        said = refusal(lambda: pool.apply(take, (Holder(),)))
        assert said.startswith("args[0].lock (threading.Lock) cannot be serialised: ")
        assert refusal(lambda: pool.apply(numbers)).startswith("result (generator) cannot")
    finally:
        pool.terminate()
        pool.join()
