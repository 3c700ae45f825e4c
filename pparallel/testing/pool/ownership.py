"""Who owns what is sent, and what happens when it cannot be."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from typing_extensions import override

from pparallel.errors import RemoteError, SerializationError
from pparallel.interfaces.pool import Pool, ResultStream
from pparallel.testing.deaths import FAILURES, WhenRebuilt, WhenSent, WhenStateIsSet
from pparallel.testing.patience import PATIENCE
from pparallel.testing.pool.base import Make, PoolTests
from pparallel.testing.pool.tasks import double, keep, kept, overwrite, same
from pparallel.testing.suite import requires

_LARGE = 300_000  #: bytes: more than goes along in a message
_copies = requires(lacking=("references",))


def _numpy() -> Any:
    return pytest.importorskip("numpy").arange(_LARGE // 8)


def _torch() -> Any:
    return pytest.importorskip("torch").arange(_LARGE // 8)


KINDS: dict[str, Callable[[], Any]] = {
    "list": lambda: [0, 1, 2],
    "bytearray": lambda: bytearray(_LARGE),
    "array": _numpy,
    "tensor": _torch,
}
each_kind = pytest.mark.parametrize("kind", KINDS)


class OwnershipTests(PoolTests):
    """Tests of what arrives: it is the receiver's own; or an error comes."""

    @_copies
    @each_kind
    def test_a_worker_may_write_to_its_argument(self, pool: Pool, kind: str) -> None:
        values = KINDS[kind]()
        calls: list[Any] = [pool.apply(overwrite, (values,)), pool.submit(overwrite, values).get()]
        calls += pool.map(overwrite, [values] * 20)
        calls += pool.starmap(overwrite, [(values,)] * 20)
        calls += pool.imap(overwrite, [values] * 20)
        assert [int(each[0]) for each in calls] == [1] * len(calls)
        assert int(values[0]) == 0
        # two arguments that are one object are one object to the worker too
        both = pool.submit(_overwrite_both, values, values).get()
        assert [int(each[0]) for each in both] == [2, 2]

    @_copies
    @each_kind
    def test_results_are_the_callers_own(self, make: Make, kind: str) -> None:
        with make(size=1) as pool:
            given = KINDS[kind]()
            echoed = pool.apply(keep, (given,))
            results = [echoed, *pool.map(kept, range(3)), *pool.imap(kept, range(3))]
            for each in results:
                overwrite(each)
            assert [int(each[0]) for each in results] == [1] * 7
            assert int(pool.apply(kept)[0]) == int(given[0]) == 0

    @_copies
    @each_kind
    def test_what_is_kept_stays_as_it_was(self, make: Make, kind: str) -> None:
        with make(size=1) as pool:
            values = KINDS[kind]()
            pool.submit(keep, values).get()
            overwrite(values)
            for _ in range(10):  # what is sent now must not come where the kept one lies
                other = overwrite(overwrite(KINDS[kind]()))
                assert int(pool.apply(overwrite, (other,))[0]) == 3
            assert int(pool.apply(kept)[0]) == 0

    @_copies
    @each_kind
    def test_results_outlive_the_pool(self, make: Make, kind: str) -> None:
        with make(size=2) as pool:
            handle = pool.map_async(same, [KINDS[kind]() for _ in range(6)])
            single = pool.apply(same, (KINDS[kind](),))
        results = [*handle.get(0), single]
        for each in results:
            overwrite(each)
        assert [int(each[0]) for each in results] == [1] * 7
        assert [int(each[-1]) for each in results] == [int(KINDS[kind]()[-1])] * 7

    @requires("isolated", lacking=("references",))
    @each_kind
    def test_results_outlive_their_worker(self, make: Make, kind: str) -> None:
        with make(size=1) as pool:
            results = pool.map(same, [KINDS[kind]() for _ in range(3)])
            assert pool.submit(os._exit, 1).exception(PATIENCE) is not None
            results += pool.map(same, [overwrite(KINDS[kind]()) for _ in range(3)])
            assert [int(each[0]) for each in results] == [0, 0, 0, 1, 1, 1]

    @_copies
    @pytest.mark.parametrize("failure", FAILURES)
    def test_what_fails_on_the_way(self, make: Make, failure: str) -> None:
        call, args, _ = FAILURES[failure]
        with make(size=1) as pool:
            for kind in (WhenSent, WhenRebuilt, WhenStateIsSet):
                for position in _positions(pool, kind, call, args):
                    before, after = pool.submit(double, 1), pool.map_async(double, range(9))
                    with pytest.raises(SerializationError):
                        position()
                    assert before.result(PATIENCE) == 2
                    assert after.get(PATIENCE) == list(range(0, 18, 2))

    @_copies
    def test_one_that_fails_on_the_way_among_many(self, pool: Pool) -> None:
        items = [*range(10), WhenRebuilt(*FAILURES["exception"][:2]), *range(10)]
        stream: ResultStream[object] = pool.imap(same, items)
        assert [stream.next(PATIENCE) for _ in range(10)] == list(range(10))
        with pytest.raises(SerializationError):
            stream.next(PATIENCE)
        assert list(stream) == list(range(10))
        with pytest.raises(SerializationError):
            pool.map_async(same, items).get(PATIENCE)
        stream = pool.imap(_failing_on_odd, range(20))
        results = [_result(stream) for _ in range(20)]
        assert results[::2] == list(range(0, 20, 2))
        assert {type(each) for each in results[1::2]} == {SerializationError}

    @_copies
    @pytest.mark.parametrize("kind", ["holds a lock", "two arguments", "unreadable"])
    def test_an_exception_that_cannot_be_sent(self, pool: Pool, kind: str) -> None:
        for _ in range(2):
            error = pool.submit(_raise, kind).exception(PATIENCE)
            assert isinstance(error, RemoteError)
            assert error.type_name.rpartition(".")[2] == _EXCEPTIONS[kind].__name__
            assert "in _raise" in error.traceback
            with pytest.raises(RemoteError):
                pool.map_async(_raise, [kind]).get(PATIENCE)
        assert pool.map(double, [1]) == [2]

    @_copies
    def test_an_exception_keeps_what_it_says(self, pool: Pool) -> None:
        error = pool.submit(_raise, "with notes").exception(PATIENCE)
        assert isinstance(error, WithNotes)
        assert (error.args, error.extra) == (("words",), [1, 2])
        assert isinstance(error.__cause__, RemoteError)


def _overwrite_both(first: Any, second: Any) -> tuple[Any, Any]:
    overwrite(first)
    return first, overwrite(second)


def _positions(
    pool: Pool, kind: type, call: Callable[..., Any], args: tuple[Any, ...]
) -> Iterator[Callable[[], object]]:
    """What puts an object that fails into each position: an argument, the function, a result."""
    yield lambda: pool.submit(same, kind(call, args)).result(PATIENCE)
    yield lambda: pool.map_async(same, [kind(call, args)]).get(PATIENCE)
    yield lambda: pool.imap(same, [kind(call, args)]).next(PATIENCE)
    yield lambda: pool.submit(partial(same, kind(call, args))).result(PATIENCE)
    yield lambda: pool.imap(partial(power_of, kind(call, args)), [1]).next(PATIENCE)
    yield lambda: pool.submit(kind, call, args).result(PATIENCE)
    yield lambda: pool.starmap_async(kind, [(call, args)]).get(PATIENCE)
    yield lambda: pool.imap(partial(kind, call), [args]).next(PATIENCE)


def power_of(_: object, number: int) -> int:
    """Return the number."""
    return number


def _failing_on_odd(number: int) -> object:
    return WhenSent(*FAILURES["exception"][:2]) if number % 2 else number


def _result(stream: ResultStream[object]) -> object:
    try:
        return stream.next(PATIENCE)
    except SerializationError as error:
        return error


class HoldsALock(Exception):  # noqa: N818
    """Cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("holds a lock")
        self.lock = threading.Lock()


class TwoArguments(Exception):  # noqa: N818
    """Can be pickled, and not rebuilt."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


class Unreadable(HoldsALock):
    """Cannot even say what it is."""

    @override
    def __str__(self) -> str:
        raise self


class WithNotes(Exception):  # noqa: N818
    """Has an attribute beside its arguments."""

    def __init__(self, words: str) -> None:
        super().__init__(words)
        self.extra = [1, 2]


_EXCEPTIONS: dict[str, type[Exception]] = {
    "holds a lock": HoldsALock,
    "two arguments": TwoArguments,
    "unreadable": Unreadable,
    "with notes": WithNotes,
}


def _raise(kind: str) -> None:
    args = {"two arguments": (1, 2), "with notes": ("words",)}.get(kind, ())
    raise _EXCEPTIONS[kind](*args)
