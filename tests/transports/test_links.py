"""What transports between processes share: hello, membership, the watch."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from exhausted import no_descriptors, no_threads
from hypothesis import given, settings
from hypothesis import strategies as st
from member_pairs import ask, pair

import pparallel
from pparallel import Runtime
from pparallel.errors import CallTimeoutError, ClosedError, PeerLostError, ResourceExhaustedError
from pparallel.interfaces.transport import TransportConfig
from pparallel.runtime import processes
from pparallel.runtime.links import Hello, Membership, ProcessId, RefusedError
from pparallel.runtime.links import hello as hello_module
from pparallel.runtime.links.hello import LONGEST
from pparallel.runtime.links.watch import Watch
from pparallel.testing.patience import PATIENCE, until
from pparallel.testing.threads import in_threads
from pparallel.testing.transport.called import bounce
from pparallel_ipc import IpcTransportConfig
from pparallel_zmq import ZmqTransportConfig

BOUND = 0.5


def hello(name: str, process: ProcessId | None = None, incarnation: bytes = bytes(16)) -> Hello:
    return Hello(name, incarnation, process or ProcessId.here())


@pytest.fixture
def other() -> Iterator[processes.Process]:
    reader, writer = os.pipe()
    started = processes.start("process_target:run", b"import os; os.read(fds[0], 1)", [reader])
    try:
        yield started
    finally:
        started.signal(signal.SIGKILL)
        assert started.ended(PATIENCE) is not None
        started.close()
        os.close(reader)
        os.close(writer)


# -- hello ------------------------------------------------------------------------------------


def test_a_hello_arrives_as_it_was_said() -> None:
    said = Hello("worker-0 ü", os.urandom(16), ProcessId.here(), "tcp://[::1]:80")
    assert Hello.unpack(said.pack()) == said


def test_too_long_a_name_is_refused_before_it_is_sent() -> None:
    with pytest.raises(RefusedError, match="a member's name has 2000 bytes: at most"):
        hello("m" * 2000).pack()


@settings(max_examples=50)
@given(st.data())
def test_other_bytes_are_refused(data: st.DataObject) -> None:
    said = bytearray(hello("m").pack())
    cut = said[: data.draw(st.integers(0, len(said) - 1))]
    for each in (cut, data.draw(st.binary(max_size=2 * LONGEST))):
        with pytest.raises(RefusedError):
            Hello.unpack(each)
    said[data.draw(st.integers(0, len(said) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(RefusedError):  # it may say something else
        Hello.unpack(said)


@pytest.mark.parametrize(
    ("module", "name", "value", "why"),
    [
        (sys, "version_info", (3, 99, 0, "final", 0), r"Python 3\.99 and this one Python 3\."),
        (hello_module, "WIRE", 99, r"pparallel .* \(protocol 99\) and this one"),
        (hello_module, "_release", lambda: b"9.9", r"pparallel 9\.9 and this one pparallel"),
    ],
)
def test_other_versions_are_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str, value: object, why: str
) -> None:
    with monkeypatch.context() as changed:
        changed.setattr(module, name, value)
        said = hello("m").pack()
    with pytest.raises(RefusedError, match=f"member 'm' runs {why}"):
        Hello.unpack(said)


# -- the watch --------------------------------------------------------------------------------


@pytest.fixture
def ends() -> list[tuple[str, str]]:
    return []


@pytest.fixture
def watch(ends: list[tuple[str, str]]) -> Iterator[Watch]:
    made = Watch(BOUND, lambda name, reason: ends.append((name, reason)))
    yield made
    made.close()


@pytest.mark.parametrize("lives", [False, True], ids=["it has ended", "its number is used again"])
def test_one_that_has_ended_before_is_reported_at_once(
    watch: Watch, ends: list[tuple[str, str]], other: processes.Process, lives: bool
) -> None:
    process = ProcessId.of(other.pid)
    if lives:
        process = process._replace(started=process.started - 1)
    else:
        other.signal(signal.SIGKILL)
        assert other.ended(PATIENCE) is not None
    watch.add("m", process, judged=False)
    assert ends == [("m", f"has died (process {other.pid})")]


def test_a_look_without_descriptors_is_made_again(
    other: processes.Process, ends: list[tuple[str, str]], watch: Watch
) -> None:
    watch.add("other", ProcessId.of(other.pid), judged=True)
    other.signal(signal.SIGSTOP)
    with no_descriptors():
        threading.Event().wait(BOUND)  # some looks fail
        assert any(each.name == "pparallel-watch" for each in threading.enumerate())
    until(lambda: len(ends) == 1, "the stopped process was not reported")
    assert "was stopped by a signal" in ends[0][1]


def test_the_only_member_added_without_descriptors_is_watched_later(
    other: processes.Process, ends: list[tuple[str, str]], watch: Watch
) -> None:
    process = ProcessId.of(other.pid)
    with no_descriptors():
        watch.add("other", process, judged=False)
    other.signal(signal.SIGKILL)
    until(lambda: len(ends) == 1, "the end was not reported")


def test_who_is_admitted_while_no_thread_starts_is_watched_once_all_are_here(
    other: processes.Process, ends: list[tuple[str, str]]
) -> None:
    members = Membership("a", ["a", "b"], BOUND, lambda *each: ends.append(each))
    try:
        with no_threads():
            members.admit(hello("b", ProcessId.of(other.pid)))
            with pytest.raises(ResourceExhaustedError):
                members.wait_for_all(PATIENCE)
        members.wait_for_all(PATIENCE)
        other.signal(signal.SIGKILL)
        until(lambda: len(ends) == 1, "the end was not reported")
    finally:
        members.close()


def test_one_that_the_thread_looks_at_as_it_is_added_has_one_descriptor(
    other: processes.Process, watch: Watch
) -> None:
    watch.add("m", ProcessId.of(other.pid), judged=True)
    before = len(os.listdir("/proc/self/fd"))
    [watched] = watch._watched.values()
    watch._open(watched)  # as the thread does where it finds none
    assert len(os.listdir("/proc/self/fd")) == before


def test_this_process_and_those_of_other_machines_are_not_watched(
    watch: Watch, ends: list[tuple[str, str]]
) -> None:
    here = ProcessId.here()
    for each in (here, here._replace(host_id=bytes(16), pid=1)):
        assert not each.watchable
        watch.add("m", each, judged=True)
    watch.close()
    assert ends == []


# -- membership -------------------------------------------------------------------------------


@pytest.fixture
def members(ends: list[tuple[str, str]]) -> Iterator[Membership]:
    made = Membership("a", ["a", "b", "c"], BOUND, lambda *each: ends.append(each))
    yield made
    made.close()


def test_who_is_missing_is_named_with_why(members: Membership) -> None:
    members.admit(hello("b"))
    members.refused("c", "member 'c' runs Python 3.99")
    expected = r"the arrival of c \(refused: member 'c' runs Python 3\.99\) was not answered"
    with pytest.raises(CallTimeoutError, match=expected):
        members.wait_for_all(0.01)


def test_waiting_ends_when_one_is_lost_or_this_one_closes(members: Membership) -> None:
    members.lose("b", "has left")
    with pytest.raises(PeerLostError, match="member 'b' has left before all had arrived"):
        members.wait_for_all(PATIENCE)
    members.close()
    with pytest.raises(ClosedError):
        members.wait_for_all(PATIENCE)


def test_an_end_is_told_once_whoever_sees_it(
    members: Membership, ends: list[tuple[str, str]]
) -> None:
    for name in "bc":
        members.admit(hello(name))
    in_threads(8, lambda n: members.lose("b", f"was seen by {n}"))
    assert [name for name, _ in ends] == ["b"]
    assert members.names() == ["a", "c"]
    with pytest.raises(PeerLostError, match="was seen by"):
        members.check("b")
    members.close()
    members.lose("c", "has left")
    assert len(ends) == 1


def test_an_end_that_nobody_explains_does_not_outlast_the_time_out(members: Membership) -> None:
    began = time.monotonic()
    assert "dropped the call" in str(members.why_ended("b", began + 0.1))
    assert time.monotonic() - began < 0.5  # and not a second


def test_an_end_that_cannot_be_reported_spoils_nothing(
    members: Membership, ends: list[tuple[str, str]], caplog: pytest.LogCaptureFixture
) -> None:
    members._report = lambda *_: [][0]
    members.lose("b", "has left")
    assert "could not be reported" in caplog.text
    members._report = lambda *each: ends.append(each)
    members.lose("c", "has left")
    assert ends == [("c", "has left")]


# -- two members ------------------------------------------------------------------------------


both = pytest.mark.parametrize(
    "config", [IpcTransportConfig(), ZmqTransportConfig()], ids=lambda config: config.backend
)


@both
def test_who_leaves_says_so_after_what_it_has_sent(config: TransportConfig) -> None:
    with pair(config) as there:
        there.at_b.gate.clear()
        for number in range(100):
            there.a.send("b", [b"%d" % number, bytes(30_000)])
        in_threads(2, lambda n: there.at_b.gate.set() if n else there.a.close())
        until(lambda: bool(there.at_b.lost), "the end is not reported")
        assert there.at_b.lost == [("a", "has left")]
        assert [int(bytes(frames[0])) for _, frames in there.at_b.messages] == [*range(100)]


@both
def test_a_forked_childs_copy_is_closed(config: TransportConfig) -> None:
    with pair(config) as there:
        ask(there, b"before")
        child = os.fork()
        if not child:
            ended = 1
            try:
                with pytest.raises(ClosedError, match="of which this one is a fork"):
                    there.a.send("b", [b"?"])
                there.a.close()
                ended = 7
            finally:
                os._exit(ended)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert ask(there, b"after") == [b"after"]


def call_itself(rt: Runtime) -> list[str]:
    """Have a function of the other member call that member again and again."""
    group, there = rt.group(), rt.members[1 - rt.rank]
    group.barrier(PATIENCE)
    found = group.rpc_sync(there, bounce, args=(there, 3, b""))
    group.barrier(PATIENCE)
    return found


@both
def test_a_function_calls_the_member_that_it_runs_in(config: TransportConfig) -> None:
    job = {"members": ["a", "b"], "transport": config, "reducer": {"backend": "local"}}
    assert pparallel.launch(job, call_itself) == [["b"] * 4, ["a"] * 4]
