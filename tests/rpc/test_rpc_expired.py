"""Calls for which nobody waits any more, and replies that cannot be sent."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

import psutil
import pytest
import torch
from typing_extensions import override

import pparallel
from pparallel.errors import CallTimeoutError, SerializationError
from pparallel.testing.patience import PATIENCE, until
from pparallel_serializers.outofband import OutOfBandSerializer

TRANSPORTS = ["local", "ipc", "zmq"]
ACROSS = ["ipc", "zmq"]
ran: list[int] = []
release = threading.Event()


def block(n: int, _: bytes = b"") -> int:
    """Note that this runs, and wait."""
    ran.append(n)
    release.wait(PATIENCE)
    return n


@pytest.fixture
def job(request: pytest.FixtureRequest) -> Callable[..., Any]:
    ran.clear()
    release.clear()
    return lambda program, **options: pparallel.launch(
        {"members": 2, "transport": {"backend": request.param, **options}}, program
    )


@pytest.mark.parametrize("job", TRANSPORTS, indirect=True)
def test_calls_that_have_expired_are_not_run(job: Callable[..., Any]) -> None:
    def program(rt: pparallel.Runtime) -> None:
        group = rt.group()
        if rt.rank == 0:
            sent = [
                group.rpc_async("member-1", block, (n, bytes(4096)), timeout=0.2) for n in range(20)
            ]
            for each in sent:
                with pytest.raises(CallTimeoutError):
                    each.wait()
            time.sleep(0.5)  # they expire there a little later than here
            release.set()
            assert group.rpc_sync("member-1", block, args=(99,)) == 99
        group.barrier()

    job(program, handler_threads=2)
    assert sorted(ran) == [0, 1, 99]


@pytest.mark.parametrize("job", ACROSS, indirect=True)
def test_memory_of_calls_that_expire_is_bounded(job: Callable[..., Any]) -> None:
    """A function that is stuck holds its own call, and those behind it as long as they wait."""
    most, size, many = 2**22, 2**18, 300

    def program(rt: pparallel.Runtime) -> None:
        group = rt.group()
        if rt.rank == 0:
            stuck = group.rpc_async("member-1", block, (0,), timeout=None)
            until(lambda: bool(ran), "the function was not called")
            before = psutil.Process().memory_info().rss
            for n in range(many):
                with pytest.raises(CallTimeoutError):
                    group.rpc_async("member-1", block, (n, bytes(size)), timeout=0.01).wait()
            grown = psutil.Process().memory_info().rss - before
            assert grown < many * size / 2, f"{grown >> 20} MiB of calls are held"
            release.set()
            assert stuck.wait() == 0
        group.barrier()

    job(program, handler_threads=1, max_in_flight=most)


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


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize("job", ACROSS, indirect=True)
def test_a_sparse_tensor_that_a_reference_stands_for_is_sent(job: Callable[..., Any]) -> None:
    """The reply is deferred: what fails as it is encoded must reach the caller all the same."""

    def program(rt: pparallel.Runtime) -> None:
        group = rt.group()
        if rt.rank == 0:
            for layout in ("csr", "csc", "bsr"):
                found = group.remote("member-1", make_sparse, args=(layout,)).to_here(PATIENCE)
                assert torch.equal(found.to_dense(), torch.eye(4)), layout
        group.barrier()

    job(program)


@pytest.mark.parametrize("job", ACROSS, indirect=True)
def test_more_buffers_than_16_bits_count_of_a_reference_are_sent(job: Callable[..., Any]) -> None:
    def program(rt: pparallel.Runtime) -> None:
        group = rt.group()
        if rt.rank == 0:
            found = group.remote("member-1", many_buffers).to_here(PATIENCE)
            assert [int(bytes(each)) for each in found] == [*range(70_000)]
        group.barrier()

    job(program)


def make_scattered() -> pickle.PickleBuffer:
    """Return memory that fails as it is sent, when all else has been pickled."""
    return pickle.PickleBuffer(memoryview(bytearray(8))[::2])


@pytest.mark.parametrize("job", TRANSPORTS, indirect=True)
def test_a_value_of_a_reference_that_cannot_be_sent_is_an_error_of_the_caller(
    job: Callable[..., Any],
) -> None:
    def program(rt: pparallel.Runtime) -> None:
        group = rt.group()
        if rt.rank == 0:
            for make in (Unsendable, threading.Lock, make_scattered):
                with pytest.raises(SerializationError):
                    group.remote("member-1", make).to_here(PATIENCE)
                assert group.rpc_sync("member-1", abs, args=(-1,)) == 1
        group.barrier()

    job(program)


@pytest.mark.parametrize("error", [RuntimeError, MemoryError])
@pytest.mark.parametrize("job", ACROSS, indirect=True)
def test_a_serializer_that_fails_on_a_value_of_a_reference_is_an_error_of_the_caller(
    job: Callable[..., Any], error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    dumps = OutOfBandSerializer.dumps

    def fail(serializer: OutOfBandSerializer, value: object) -> Any:
        if type(value) is Unsendable:
            raise error("no serializer raises it")
        return dumps(serializer, value)

    def program(rt: pparallel.Runtime) -> None:
        group = rt.group()
        if rt.rank == 0:
            with pytest.raises(Exception, match="no serializer raises it"):
                group.remote("member-1", Unsendable).to_here(PATIENCE)
            assert group.rpc_sync("member-1", abs, args=(-1,)) == 1
        group.barrier()

    monkeypatch.setattr(OutOfBandSerializer, "dumps", fail)
    job(program)
