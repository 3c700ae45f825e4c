"""Calls for which nobody waits any more, and replies that cannot be sent."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

import pparallel
from pparallel.errors import CallTimeoutError, SerializationError
from pparallel.testing.patience import PATIENCE

TRANSPORTS = ["local", "ipc", "zmq"]
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
            sent = [group.rpc_async("member-1", block, 0.2, (n, bytes(4096))) for n in range(20)]
            for each in sent:
                with pytest.raises(CallTimeoutError):
                    each.wait()
            time.sleep(0.5)  # they expire there a little later than here
            release.set()
            assert group.rpc_sync("member-1", block, args=(99,)) == 99
        group.barrier()

    job(program, handler_threads=2)
    assert sorted(ran) == [0, 1, 99]


@pytest.mark.parametrize("job", TRANSPORTS, indirect=True)
def test_a_window_is_one_for_each_member_and_keeps_time_outs(job: Callable[..., Any]) -> None:
    def program(rt: pparallel.Runtime) -> None:
        group = rt.group()
        if rt.rank == 0:
            held = group.rpc_async("member-1", block, 0, (0, bytes(2**16)))
            began = time.monotonic()
            with pytest.raises(CallTimeoutError, match="max_in_flight"):
                group.rpc_sync("member-1", block, 0.2, (1, bytes(2**16)))
            assert time.monotonic() - began < PATIENCE / 2
            assert group.rpc_sync("member-0", len, args=(bytes(2**16),)) == 2**16
            release.set()
            assert held.wait() == 0
        group.barrier()

    job(program, max_in_flight=2**16)


@pytest.mark.parametrize("job", TRANSPORTS, indirect=True)
def test_a_circle_of_large_calls_passes(job: Callable[..., Any]) -> None:
    def program(rt: pparallel.Runtime) -> None:
        group = rt.group()
        if rt.rank == 0:
            assert group.rpc_sync("member-1", bounce, 60, (group, bytes(2**16), 5)) == 5
        group.barrier()

    job(program, max_in_flight=2**16, handler_threads=1)


def bounce(group: Any, payload: bytes, left: int) -> int:
    """Call the other member, which calls this one."""
    if not left:
        return 0
    other = "member-0" if group.get_cur_name() == "member-1" else "member-1"
    return 1 + int(group.rpc_sync(other, bounce, 60, (group, payload, left - 1)))


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize("job", TRANSPORTS, indirect=True)
def test_what_a_reference_stands_for_is_sent_or_refused(job: Callable[..., Any]) -> None:
    """The reply is deferred: what fails as it is encoded reaches the caller all the same."""

    def program(rt: pparallel.Runtime) -> None:
        group = rt.group()
        if rt.rank == 0:
            dense = torch.eye(4)
            sparse = group.remote("member-1", torch.Tensor.to_sparse_csr, args=(dense,))
            assert torch.equal(sparse.to_here(PATIENCE).to_dense(), dense)
            many = group.remote("member-1", many_buffers)
            assert len(many.to_here(PATIENCE)) == 70_000
            with pytest.raises(SerializationError):
                group.remote("member-1", threading.Lock).to_here(PATIENCE)
            assert group.rpc_sync("member-1", abs, args=(-1,)) == 1
        group.barrier()

    job(program)


def many_buffers() -> list[Any]:
    """Return more buffers than a number of 16 bits counts."""
    return [bytearray(b"1")] * 1 + [bytearray(b"2") for _ in range(69_999)]
