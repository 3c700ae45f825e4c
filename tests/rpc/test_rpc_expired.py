"""Calls for which nobody waits any more, and replies that cannot be sent."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Iterator
from typing import Any, NoReturn

import psutil
import pytest
import torch
from rpc_members import Gates, first_of_two
from typing_extensions import override

from pparallel.errors import CallTimeoutError, SerializationError
from pparallel.testing.patience import PATIENCE, until
from pparallel_serializers.outofband import OutOfBandSerializer

each_backend = pytest.mark.parametrize("backend", ["local", "ipc", "zmq"])
across = pytest.mark.parametrize("backend", ["ipc", "zmq"])
ran: list[int] = []


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    ran.clear()


def block(n: int, _: bytes = b"") -> int:
    """Note that this runs, and wait."""
    ran.append(n)
    Gates.opened.wait(PATIENCE)
    return n


@each_backend
def test_calls_that_have_expired_are_not_run(backend: str) -> None:
    with first_of_two(backend, handler_threads=2) as group:
        sent = [group.rpc_async(1, block, (n, bytes(4096)), timeout=0.2) for n in range(20)]
        for each in sent:
            with pytest.raises(CallTimeoutError):
                each.wait()
        time.sleep(0.5)  # they expire there a little later than here
        Gates.opened.set()
        assert group.rpc_sync(1, block, args=(99,)) == 99
    assert sorted(ran) == [0, 1, 99]


@across
def test_memory_of_calls_that_expire_is_bounded(backend: str) -> None:
    """A function that is stuck holds its own call, and those behind it as long as they wait."""
    size, many = 2**18, 300
    with first_of_two(backend, handler_threads=1, max_in_flight=2**22) as group:
        stuck = group.rpc_async(1, block, (0,), timeout=None)
        until(lambda: bool(ran), "the function was not called")
        before = psutil.Process().memory_info().rss
        for n in range(many):
            with pytest.raises(CallTimeoutError):
                group.rpc_async(1, block, (n, bytes(size)), timeout=0.01).wait()
        grown = psutil.Process().memory_info().rss - before
        assert grown < many * size / 2, f"{grown >> 20} MiB of calls are held"
        Gates.opened.set()
        assert stuck.wait() == 0


class Unsendable:
    """Fails as it is encoded, with an error that no serializer expects."""

    @override
    def __reduce__(self) -> NoReturn:
        raise RuntimeError("it cannot be sent")


def make_sparse(layout: str) -> Any:
    block_size = [(2, 2)] if layout == "bsr" else []
    return getattr(torch.eye(4), f"to_sparse_{layout}")(*block_size)


def many_buffers() -> list[Any]:
    """Return more buffers than a number of 16 bits counts, each of which is a frame of its own."""
    return [pickle.PickleBuffer(bytearray(b"%d" % n)) for n in range(70_000)]


def make_scattered() -> pickle.PickleBuffer:
    """Return memory that fails as it is sent, when all else has been pickled."""
    return pickle.PickleBuffer(memoryview(bytearray(8))[::2])


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@across
def test_a_sparse_tensor_that_a_reference_stands_for_is_sent(backend: str) -> None:
    """The reply is deferred: what fails as it is encoded must reach the caller all the same."""
    with first_of_two(backend) as group:
        for layout in ("csr", "csc", "bsr"):
            found = group.remote(1, make_sparse, args=(layout,)).to_here(PATIENCE)
            assert torch.equal(found.to_dense(), torch.eye(4)), layout


@across
def test_more_buffers_than_16_bits_count_of_a_reference_are_sent(backend: str) -> None:
    with first_of_two(backend) as group:
        found = group.remote(1, many_buffers).to_here(PATIENCE)
        assert [int(bytes(each)) for each in found] == [*range(70_000)]


@each_backend
def test_a_value_of_a_reference_that_cannot_be_sent_is_an_error_of_the_caller(
    backend: str,
) -> None:
    with first_of_two(backend) as group:
        for make in (Unsendable, threading.Lock, make_scattered):
            with pytest.raises(SerializationError):
                group.remote(1, make).to_here(PATIENCE)
            assert group.rpc_sync(1, abs, args=(-1,)) == 1


@across
def test_a_serializer_that_fails_on_a_value_of_a_reference_is_an_error_of_the_caller(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dumps = OutOfBandSerializer.dumps

    def fail(serializer: OutOfBandSerializer, value: object) -> Any:
        if type(value) is Unsendable:
            raise MemoryError("no serializer raises it")
        return dumps(serializer, value)

    monkeypatch.setattr(OutOfBandSerializer, "dumps", fail)
    with first_of_two(backend) as group:
        with pytest.raises(Exception, match="no serializer raises it"):
            group.remote(1, Unsendable).to_here(PATIENCE)
        assert group.rpc_sync(1, abs, args=(-1,)) == 1
