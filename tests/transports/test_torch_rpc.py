"""The transport ``torch_rpc``."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_members as members
from exhausted import no_threads
from reduced_transport_suite import ReducedTransportSuite
from typing_extensions import Buffer, override

import pparallel
from pparallel.errors import ConfigError, ResourceExhaustedError, WorkerLostError
from pparallel.interfaces.launcher import LaunchContext, LauncherConfig
from pparallel.interfaces.transport import TransportConfig
from pparallel.runtime.links.ordering import Ordering
from pparallel.runtime.member import Member
from pparallel.testing.transport.alone import Received, echo
from pparallel.testing.transport.calls import CallTests
from pparallel.testing.transport.faults import FaultTests
from pparallel_process import ProcessLauncherConfig
from pparallel_torch import TorchRpcTransportConfig
from pparallel_torch.rpc import frames
from pparallel_torch.rpc.transport import TorchRpcTransport

PRELOAD = ("pparallel.testing.transport", "pparallel_torch.rpc.transport")
TWO = {
    "members": 2,
    "launcher": ProcessLauncherConfig(preload=PRELOAD),
    "transport": TorchRpcTransportConfig(),
}


class TestTorchRpcTransport(ReducedTransportSuite):
    test_every_call_is_answered_once = CallTests.test_every_call_is_answered_once
    test_timeout = CallTests.test_timeout
    test_remote_exceptions = CallTests.test_remote_exceptions
    test_calls_that_differ = CallTests.test_calls_that_differ
    test_a_forked_child_closes_its_copy = CallTests.test_a_forked_child_closes_its_copy
    test_one_slow_member_holds_up_no_other = FaultTests.test_one_slow_member_holds_up_no_other

    @pytest.fixture
    @override
    def config(self) -> TransportConfig:
        return TorchRpcTransportConfig()

    @pytest.fixture
    @override
    def launcher(self) -> LauncherConfig:
        return ProcessLauncherConfig(preload=PRELOAD)


Start = Callable[..., Any]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start so many members that run a function of ``torch_members`` with a folder and *args*."""
    with pparallel.build(ProcessLauncherConfig(preload=PRELOAD)) as launcher:

        def start(size: int, program: Callable[..., Any], *args: Any, join: bool = True) -> Any:
            given = (tmp_path, *args)
            return launcher.spawn(program, given, size, join=join, start_method="forkserver")

        yield start


def watching(start: Start, size: int, *, far: bool = False, **options: Any) -> LaunchContext:
    """Have members watch the end of the second of them."""
    context: LaunchContext = start(size, members.watch_an_end, size, far, options, join=False)
    return context


@pytest.mark.parametrize("far", [False, True], ids=["this machine", "others"])
def test_a_killed_member(start: Start, tmp_path: Path, far: bool) -> None:
    context = watching(start, 3, far=far, allow_insecure=far)
    pids = [members.heard(tmp_path, rank, "pid") for rank in range(3)]
    killed = time.monotonic()
    os.kill(pids[1], signal.SIGKILL)
    for rank in (0, 2):
        when, error, message, told = members.heard(tmp_path, rank, "lost")
        assert when - killed < 10.0
        assert error == "PeerLostError"
        assert "m1" in message
        assert [name for name, _ in told] == ["m1"]
        assert members.heard(tmp_path, rank, "members") == ["m0", "m2"]
    with pytest.raises(WorkerLostError):
        context.join()


@pytest.mark.parametrize("far", [False, True], ids=["this machine", "others"])
def test_a_stopped_member_is_given_up(start: Start, tmp_path: Path, far: bool) -> None:
    context = watching(start, 2, far=far, allow_insecure=far, liveness_bound=1.0)
    pid = members.heard(tmp_path, 1, "pid")
    stopped = time.monotonic()
    os.kill(pid, signal.SIGSTOP)
    when, error, _, _ = members.heard(tmp_path, 0, "lost")
    assert error == "PeerLostError"
    assert 0.5 < when - stopped < 10.0
    os.kill(pid, signal.SIGCONT)
    ended = members.heard(tmp_path, 1, "ended")
    assert "member 'm0' gave this member up" in ended
    (tmp_path / "go").touch()
    context.join()


def test_a_member_that_holds_the_gil_is_not_lost(start: Start) -> None:
    assert start(2, members.hold_the_gil, False, 0.8, 2.4) == [["m0", "m1"]] * 2


def test_the_death_of_the_first_ends_the_job(start: Start, tmp_path: Path) -> None:
    context = watching(start, 3)
    pids = [members.heard(tmp_path, rank, "pid") for rank in range(3)]
    os.kill(pids[0], signal.SIGKILL)
    for rank in (1, 2):
        assert "member 'm0' has died" in members.heard(tmp_path, rank, "ended")
    with pytest.raises(WorkerLostError):
        context.join()


def test_the_last_messages_arrive_in_order_before_the_end(start: Start) -> None:
    (found, lost), _ = start(2, members.send_and_leave, 200)
    assert found == [*range(200)]
    assert lost == [("m1", "has left", 200)]


def test_several_machines_must_be_allowed(start: Start) -> None:
    for refusal in start(2, members.come, 2, True, {}):
        assert refusal.startswith("ConfigError: transport.allow_insecure: member 'm")
        assert "backend: zmq" in refusal


def test_one_per_process(start: Start) -> None:
    for second, third in start(2, members.open_twice):
        assert "this process has torch RPC in use already" in second
        assert third == "m0m1"


def test_one_machine_listens_to_itself_only(start: Start) -> None:
    found = start(2, members.listening)
    assert {each for addresses in found for each in addresses} <= {"127.0.0.1", "::1"}


def test_who_is_missing_is_named(start: Start) -> None:
    found = start(1, members.come, 3, False, {"rendezvous_timeout": 0.5})
    assert found == ["CallTimeoutError: the arrival of m1, m2 was not answered within 0.5 s"]


def test_nothing_says_where_to_meet() -> None:
    transport = TorchRpcTransport(
        TorchRpcTransportConfig(), member=Member("a", 0, 0, 2, ("a", "b"))
    )
    with pytest.raises(ConfigError, match="nothing says where"):
        transport.open(Received(echo))
    transport.close()


def test_frames_of_every_kind() -> None:
    size = frames.LARGE
    writable = bytearray(range(256)) * (size // 128)
    strided = memoryview(bytearray(range(100)))[::3]
    sent: list[Buffer] = [
        b"",
        b"x",
        bytes(size),
        writable,
        memoryview(writable).toreadonly(),
        strided,
    ]
    parcel = frames.pack(sent)
    assert parcel.large[1].data_ptr() == torch.frombuffer(writable, dtype=torch.uint8).data_ptr()
    assert parcel.sizes == [0, 1, -1, -1, -1, 34]
    found = frames.unpack(*parcel)
    assert [bytes(each) for each in found] == [bytes(each) for each in sent]
    assert not any(memoryview(each).readonly for each in found)


def test_a_message_that_cannot_be_sent_fails_alone() -> None:
    first, _ = pparallel.launch(TWO, members.fail_to_send_once)
    assert first == ["NoneType", "SerializationError", "NoneType"]


def test_a_message_that_cannot_be_taken_is_reported_on_both_sides() -> None:
    (there, behind), here = pparallel.launch(TWO, members.fail_to_take_once)
    assert there == "PeerLostError: member 'member-1' could not take a message: MemoryError('none')"
    assert here.startswith(
        "PeerLostError: member 'member-0' sent a message that could not be taken"
    )
    assert behind == 2


def test_a_transport_whose_closing_thread_cannot_start_closes_later() -> None:
    transport = TorchRpcTransport(TorchRpcTransportConfig(), member=Member())
    transport.open(Received(echo))
    with no_threads(), pytest.raises(ResourceExhaustedError):
        transport.close()
    transport.close()


def test_a_function_that_never_ends_holds_up_no_close() -> None:
    assert pparallel.launch(TWO, members.call_and_leave) == [None, None]


def test_messages_are_put_in_order() -> None:
    ordering, done = Ordering(), list[int]()

    def act(number: int) -> None:
        done.append(number)
        if number == 1:  # what is acted on brings the next
            ordering.arrived(2, lambda: done.append(2))
        if number == 0:  # and fails
            raise LookupError

    for number in (3, 1, 0, 1):
        ordering.arrived(number, lambda number=number: act(number))  # type: ignore[misc]
    assert done == [0, 1, 2, 3]


def test_the_end_comes_after_the_last_message_and_nothing_later() -> None:
    ordering, done = Ordering(), list[str]()

    def leave() -> None:
        ordering.end(lambda: done.append("end"))
        done.append("leave")

    ordering.arrived(2, lambda: done.append("late"))
    ordering.arrived(0, leave)
    ordering.arrived(1, lambda: done.append("late"))
    ordering.end(lambda: done.append("end again"))
    assert done == ["leave", "end"]
