"""What transports between processes share: hello, membership, the watch."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from exhausted import no_descriptors, no_threads
from hypothesis import given, settings
from hypothesis import strategies as st

from pparallel.errors import CallTimeoutError, ClosedError, PeerLostError, ResourceExhaustedError
from pparallel.runtime import processes
from pparallel.runtime.links import Hello, Membership, ProcessId, RefusedError
from pparallel.runtime.links import hello as hello_module
from pparallel.runtime.links.hello import LONGEST
from pparallel.runtime.links.watch import Watch
from pparallel.testing.patience import PATIENCE, until
from pparallel.testing.threads import in_threads

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


@settings(max_examples=30)
@given(st.binary(max_size=2 * LONGEST))
def test_bytes_that_are_no_hello_are_refused(data: bytes) -> None:
    with pytest.raises(RefusedError):
        Hello.unpack(data)


@settings(max_examples=50)
@given(st.data())
def test_a_hello_that_was_changed_is_read_or_refused(data: st.DataObject) -> None:
    said = bytearray(hello("m", incarnation=b"0123456789abcdef").pack())
    at = data.draw(st.integers(0, len(said) - 1))
    said[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(said)))
    for each in (said, said[:cut]):
        with contextlib.suppress(RefusedError):
            Hello.unpack(each)


def test_other_versions_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as changed:
        changed.setattr(sys, "version_info", (3, 99, 0, "final", 0))
        newer = hello("m").pack()
    with monkeypatch.context() as changed:
        changed.setattr(hello_module, "WIRE", 99)
        later = hello("m").pack()
    with monkeypatch.context() as changed:
        changed.setattr(hello_module, "_release", lambda: b"9.9")
        released = hello("m").pack()
    with pytest.raises(RefusedError, match=r"member 'm' runs Python 3\.99 and this one Python 3\."):
        Hello.unpack(newer)
    with pytest.raises(RefusedError, match=r"'m' runs pparallel .* \(protocol 99\) and this one"):
        Hello.unpack(later)
    with pytest.raises(RefusedError, match=r"'m' runs pparallel 9\.9 and this one pparallel"):
        Hello.unpack(released)


# -- the watch --------------------------------------------------------------------------------


@pytest.fixture
def ends() -> list[tuple[str, str]]:
    return []


@pytest.fixture
def watch(ends: list[tuple[str, str]]) -> Iterator[Watch]:
    made = Watch(BOUND, lambda name, reason: ends.append((name, reason)))
    yield made
    made.close()


def test_the_end_of_a_process_is_reported_once(
    watch: Watch, ends: list[tuple[str, str]], other: processes.Process
) -> None:
    watch.add("m", ProcessId.of(other.pid), judged=True)
    assert ends == []
    other.signal(signal.SIGKILL)
    until(lambda: bool(ends), "its end was not reported")
    watch.close()
    assert ends == [("m", f"has died (process {other.pid})")]


def test_one_that_has_ended_before_is_reported_at_once(
    watch: Watch, ends: list[tuple[str, str]], other: processes.Process
) -> None:
    process = ProcessId.of(other.pid)
    other.signal(signal.SIGKILL)
    assert other.ended(PATIENCE) is not None
    watch.add("m", process, judged=False)
    assert ends == [("m", f"has died (process {other.pid})")]


def test_a_number_that_is_used_again_is_another_process(
    watch: Watch, ends: list[tuple[str, str]], other: processes.Process
) -> None:
    process = ProcessId.of(other.pid)
    watch.add("m", process._replace(started=process.started - 1), judged=False)
    assert ends == [("m", f"has died (process {other.pid})")]


def test_one_that_is_stopped_is_given_up_by_who_judges_it(other: processes.Process) -> None:
    ends: list[tuple[str, str]] = []
    judges = Watch(BOUND, lambda name, reason: ends.append((name, reason)))
    looks_on = Watch(BOUND, lambda name, reason: ends.append((f"not {name}", reason)))
    for each, judged in ((judges, True), (looks_on, False)):
        each.add("m", ProcessId.of(other.pid), judged=judged)
    other.signal(signal.SIGSTOP)
    until(lambda: bool(ends), "it was not given up")
    judges.close()
    looks_on.close()
    assert ends == [("m", f"was stopped by a signal for 0.5 s (process {other.pid})")]


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


def test_a_callback_that_raises_ends_no_watch(
    other: processes.Process, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []

    def fail(name: str, _: str) -> None:
        told.append(name)
        raise ValueError("a callback")

    watch = Watch(BOUND, fail)
    try:
        watch.add("first", ProcessId.of(other.pid), judged=False)
        watch.add("second", ProcessId.of(other.pid), judged=False)
        other.signal(signal.SIGKILL)
        until(lambda: len(told) == 2, "the second end was not reported")
        assert "a callback" in caplog.text
    finally:
        watch.close()


def test_one_that_is_watched_no_more_is_not_reported(
    watch: Watch, ends: list[tuple[str, str]], other: processes.Process
) -> None:
    watch.add("m", ProcessId.of(other.pid), judged=True)
    watch.remove("m")
    other.signal(signal.SIGKILL)
    assert other.ended(PATIENCE) is not None
    watch.close()
    assert ends == []


def test_this_process_and_those_of_other_machines_are_not_watched(
    watch: Watch, ends: list[tuple[str, str]]
) -> None:
    here = ProcessId.here()
    for each in (here, here._replace(place=bytes(16), pid=1)):
        assert not each.watchable
        watch.add("m", each, judged=True)
    watch.close()
    assert ends == []


# -- membership -------------------------------------------------------------------------------


def membership(me: str = "a", **ended: Any) -> tuple[Membership, list[tuple[str, str]]]:
    ends: list[tuple[str, str]] = []
    made = Membership(me, ["a", "b", "c"], BOUND, lambda *each: ends.append(each))
    return made, ends


def test_who_is_missing_is_named_with_why() -> None:
    members, _ = membership()
    members.admit(hello("b"))
    members.refused("c", "member 'c' runs Python 3.99")
    expected = r"the arrival of c \(refused: member 'c' runs Python 3\.99\) was not answered"
    with pytest.raises(CallTimeoutError, match=expected):
        members.wait_for_all(0.01)
    members.close()


def test_waiting_ends_when_all_have_come() -> None:
    members, _ = membership()
    waiting = threading.Thread(target=members.wait_for_all, args=(PATIENCE,))
    waiting.start()
    for name in "bc":
        members.admit(hello(name))
    waiting.join(PATIENCE)
    assert not waiting.is_alive()
    assert members.names() == ["a", "b", "c"]
    members.close()


def test_waiting_ends_when_one_is_lost_or_this_one_closes() -> None:
    members, _ = membership()
    members.lose("b", "has left")
    with pytest.raises(PeerLostError, match="member 'b' has left before all had arrived"):
        members.wait_for_all(PATIENCE)
    members.close()
    with pytest.raises(ClosedError):
        members.wait_for_all(PATIENCE)


def test_an_end_is_told_once_whoever_sees_it() -> None:
    members, ends = membership()
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


def test_strangers_and_those_who_were_here_are_refused() -> None:
    members, _ = membership()
    members.admit(hello("b"))
    members.admit(hello("b"))  # the same, by another connection
    with pytest.raises(RefusedError, match="'d' is no member of this job; its members: a, b, c"):
        members.admit(hello("d"))
    with pytest.raises(RefusedError, match="member 'b' is here already"):
        members.admit(hello("b", incarnation=b"another one!!!!!"))
    with pytest.raises(RefusedError, match="member 'a' is here already"):
        members.admit(hello("a"))
    members.lose("b", "has died")
    with pytest.raises(RefusedError, match="'b' has died and cannot come back"):
        members.admit(hello("b", incarnation=b"another one!!!!!"))
    members.close()


def test_one_that_was_given_up_loses_the_first() -> None:
    members, ends = membership("b")
    members.admit(hello("a"))
    members.lose("b", "was stopped by a signal for 5 s")
    assert ends == [("a", "gave this member up: it was stopped by a signal for 5 s")]
    members.close()


def test_an_end_that_cannot_be_reported_spoils_nothing(caplog: pytest.LogCaptureFixture) -> None:
    told: list[str] = []

    def report(name: str, _: str) -> None:
        told.append(name)
        raise ValueError("a callback")

    members = Membership("a", ["a", "b", "c"], BOUND, report)
    members.lose("b", "has left")
    members.lose("c", "has left")
    members.close()
    assert told == ["b", "c"]
    assert "a callback" in caplog.text
