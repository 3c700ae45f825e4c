"""What goes between a process pool and its workers, and what becomes of it when one dies."""

from __future__ import annotations

import errno
import gc
import logging
import os
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from process_backends import pool_of
from typing_extensions import override

from pparallel.runtime.pools.board import Board, Spot
from pparallel.runtime.pools.messages import CALL, FORWARDED, LOT, REPORT
from pparallel.runtime.pools.values import VALUES, head_and_files
from pparallel.runtime.pools.worker import loop, memory
from pparallel.runtime.pools.worker.loop import Loop
from pparallel.runtime.pools.worker.reports import Reports
from pparallel.runtime.shm import Arena, Parcels
from pparallel.testing.patience import until
from pparallel.testing.pool.tasks import double, note, noted
from pparallel_process.wire.channel import Channel, pair
from pparallel_serializers.config import PickleSerializerConfig
from pparallel_serializers.pickle import PickleSerializer

NOWHERE = Parcels(None, {})  #: without shared memory
Make = Callable[..., Any]


@pytest.fixture
def make() -> Make:
    return partial(pool_of, "process", size=1)


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    """A channel between two ends that have no shared memory."""
    here, there = (Channel(each, NOWHERE) for each in pair())
    with closing(here), closing(there):
        yield here, there


def read(file: int) -> bytes:
    """Return what the file that came along holds, and close it."""
    try:
        return os.pread(file, 100, 0)
    finally:
        os.close(file)


def file_of(content: bytes) -> int:
    file = os.memfd_create("test", os.MFD_CLOEXEC)
    os.write(file, content)
    return file


# -- descriptors ----------------------------------------------------------------------------------


class Interrupted(socket.socket):
    """Calls something before it sends descriptors, as another thread may."""

    before: Callable[[], object]

    @override
    def sendmsg(self, *args: Any) -> int:
        before, self.before = self.before, lambda: None
        before()
        return super().sendmsg(*args)


def interrupted() -> tuple[Interrupted, Channel, Channel]:
    ours, its = pair()
    sock = Interrupted(fileno=ours.detach())
    return sock, Channel(sock, NOWHERE), Channel(its, NOWHERE)


def test_a_channel_that_is_garbage_complains_of_nothing() -> None:
    """Garbage in a circle is finalised in any order: here the sockets, which are older, first."""
    numbers = []
    for sock in pair():
        numbers.append(sock.fileno())
        garbage: dict[str, Any] = {"channel": Channel(sock, NOWHERE)}
        garbage["itself"] = garbage
    del sock, garbage
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        gc.collect()
    assert told == []
    for number in numbers:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(number)


def test_a_message_that_comes_in_between_takes_no_descriptors_away() -> None:
    sock, here, there = interrupted()
    sock.before = lambda: here.try_to_send((FORWARDED, b"between"))
    with closing(here), closing(there), open(file_of(b"content"), "rb") as file:
        here.send((REPORT, 1), [file.fileno()])
        assert there.receive() == ((FORWARDED, b"between"), [])
        message, (came,) = there.receive() or ((), [])
        assert message == (REPORT, 1)
        assert not os.get_inheritable(came)
        assert read(came) == b"content"
        assert there.receive() is None


def test_messages_with_descriptors_may_cross() -> None:
    sock, here, there = interrupted()
    with (
        closing(here),
        closing(there),
        open(file_of(b"first"), "rb") as first,
        open(file_of(b"second"), "rb") as second,
    ):
        sock.before = lambda: here.send((REPORT, 1), [first.fileno()])
        here.send((REPORT, 2), [second.fileno()])
        here.send((REPORT, 3))
        found = [there.receive() or ((), []) for _ in range(3)]
        contents = [(message, [read(each) for each in files]) for message, files in found]
        assert contents == [
            ((REPORT, 1), [b"first"]),
            ((REPORT, 2), [b"second"]),
            ((REPORT, 3), []),
        ]


def test_who_looks_does_not_wait_for_descriptors_that_were_announced() -> None:
    sock, here, there = interrupted()
    seen: list[object] = []
    sock.before = lambda: seen.append(there.receive())
    with closing(here), closing(there), open(file_of(b"content"), "rb") as file:
        here.send((REPORT, 1), [file.fileno()])
        assert seen == [None]
        message, (came,) = there.receive() or ((), [])
        assert (message, read(came)) == ((REPORT, 1), b"content")


TOO_MANY_AT_ONCE = """\
import os, resource, threading
from pparallel.runtime.shm import Parcels
from pparallel_process.wire.channel import Channel, pair
here, there = (Channel(each, Parcels(None, {})) for each in pair())
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
if os.geteuid() == 0:
    os.setuid(65534)  # of root there may be any number on their way
def send():
    for number in range(8):
        here.send((number,), [0] * 20)
sender = threading.Thread(target=send)
sender.start()
for number in range(8):
    message, files = there.receive(0)
    assert (message, len(files)) == ((number,), 20)
    for each in files:
        os.close(each)
sender.join()
"""


def test_descriptors_wait_while_too_many_are_on_their_way() -> None:
    done = subprocess.run([sys.executable, "-c", TOO_MANY_AT_ONCE], stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, b"")


def test_results_that_go_through_files_go_in_parts() -> None:
    here, there = pair()
    reports = Reports(Channel(here, NOWHERE), cast(Spot, None))
    reports.begin(1, 1)
    with closing(here), closing(there):
        for number in range(300):
            reports.add_parcel(b"head", [file_of(b"%d" % number)])
        reports.end(0.0, (0.0, 0))
        channel = Channel(there, NOWHERE)
        contents: list[bytes] = []
        while received := channel.receive():
            (_, _, first, entries, *_), files = received
            assert first == len(contents)
            assert entries == [(b"head", 1)] * len(files)
            contents += [read(each) for each in files]
    assert contents == [b"%d" % number for number in range(300)]


def large(number: int) -> bytearray:
    return bytearray(b"%06d" % number) + bytearray(20_000)


def test_any_number_of_results_may_find_no_room(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # A worker has its pool's budget.
    monkeypatch.setattr("pparallel.runtime.memory.arena.share", lambda: 1 << 20)
    with make() as pool:
        results = pool.map(large, range(600), chunksize=600)
    assert [int(each[:6]) for each in results] == list(range(600))
    assert "no room" in caplog.text


# -- large messages -------------------------------------------------------------------------------


@pytest.fixture
def arena() -> Iterator[Arena]:
    with closing(Arena.create("test", 64 << 20)) as arena:
        yield arena


def blocks(arena: Arena) -> int:
    return arena.usage().blocks


def test_a_large_message_that_nobody_read_is_let_go(arena: Arena) -> None:
    ours, its = pair()
    with closing(Channel(ours, Parcels(arena, {}))) as channel, closing(its):
        for number in range(2):
            channel.send((LOT, number, bytes(100_000)))
        assert blocks(arena) == 2
        its.close()
        channel.drop_unread()
        assert blocks(arena) == 0
        channel.drop_unread()


def test_of_a_large_message_that_was_read_nothing_is_let_go(arena: Arena) -> None:
    ours, its = pair()
    channel = Channel(ours, Parcels(arena, {}))
    with closing(channel), closing(Arena.attach(arena.fd)) as same:
        with closing(Channel(its, Parcels(None, {0: same}))) as there:
            channel.send((LOT, 1, bytes(100_000)))
            assert there.receive() == ((LOT, 1, bytes(100_000)), [])
            assert blocks(arena) == 0
            parcel = Parcels(arena, {}).pack([bytes(100_000)])  # in the block that became free
            assert blocks(arena) == 1
        channel.drop_unread()
        assert blocks(arena) == 1
        Parcels(arena, {}).drop(parcel.head())


def test_a_large_message_that_cannot_be_sent_is_let_go(arena: Arena) -> None:
    ours, its = pair()
    its.close()
    with closing(Channel(ours, Parcels(arena, {}))) as channel:
        with pytest.raises(BrokenPipeError):
            channel.send((LOT, 1, bytes(100_000)))
        assert blocks(arena) == 0


def test_a_message_may_hold_what_marshal_refuses(ends: tuple[Channel, Channel]) -> None:
    """As it does whatever takes 2 GiB, for which this stands."""
    here, there = ends
    message = (REPORT, Path("x" * 100_000))
    here.send(message)
    assert there.receive() == (message, [])


# -- the end --------------------------------------------------------------------------------------


def test_what_was_said_before_an_end_with_unread_messages_is_heard(
    ends: tuple[Channel, Channel],
) -> None:
    here, there = ends
    there.send((REPORT, 1))
    there.send((REPORT, 2))
    here.send((LOT, 3))
    there.close()
    assert here.receive() == ((REPORT, 1), [])
    assert here.receive() == ((REPORT, 2), [])
    with pytest.raises(EOFError):
        here.receive()
    assert here.poll() is None


# -- a worker's start -----------------------------------------------------------------------------


def fail_at_length() -> None:
    raise ValueError("long" * 50_000)


def test_an_initializer_may_fail_at_length(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with make(initializer=fail_at_length) as pool:
        error = pool.submit(double, 1).exception()
    assert isinstance(error, ValueError)
    assert str(error) == "long" * 50_000
    assert caplog.text == ""


# -- a worker's loop ------------------------------------------------------------------------------


def note_when_memory_is_given_back(path: Path) -> None:
    """Have the worker be idle after a moment, and note what it does then."""
    loop._IDLE_MS = 1
    memory.give_back = partial(note, path, "back")  # type: ignore[assignment]


@pytest.mark.parametrize("how", ["map", "apply"])
def test_a_worker_gives_memory_back_after_any_task(make: Make, how: str, tmp_path: Path) -> None:
    path = tmp_path / "noted"
    with make(initializer=note_when_memory_is_given_back, initargs=(path,)) as pool:
        if how == "map":
            assert pool.map(double, range(4)) == [0, 2, 4, 6]
        else:
            assert [pool.apply(double, (1,)) for _ in range(3)] == [2, 2, 2]
        until(lambda: bool(noted(path)), "memory was not given back")


class Words(list[int]):
    """Words of a board, of which it is known in which order they were written."""

    def __init__(self) -> None:
        super().__init__([0] * 4)
        self.written: list[int] = []

    @override
    def __setitem__(self, index: Any, word: Any) -> None:
        self.written.append(index)
        super().__setitem__(index, word)


@pytest.fixture
def switch_interval() -> Iterator[None]:
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("switch_interval")
def test_a_worker_writes_when_a_task_began_before_it_writes_which(
    ends: tuple[Channel, Channel],
) -> None:
    here, there = ends
    serializer, words = PickleSerializer(PickleSerializerConfig()), Words()
    spot = Spot(cast(Board, SimpleNamespace(words=words)), 0)
    function = {1: [bytes(each) for each in serializer.dumps(double)]}
    here.send((LOT, 1, 1, "one", VALUES, [2], function, [], 1, True, True))
    here.send((CALL, 2, 1, (3,), None, True))
    here.finish()
    Loop(there, NOWHERE, serializer, spot, (), idle=int, arena=None, keeps=False).run()
    # between the lot and the call that follows it says that no task runs
    assert words.written == [spot.since, spot.at, spot.since, spot.since, spot.at]
    results = [(here.receive() or ((), []))[0] for _ in range(2)]
    assert (results[0][3], results[1][2]) == ([4], 6)


# -- a worker's reports ---------------------------------------------------------------------------


class Growing(dict[int, Any]):
    """Errors to which another thread adds while somebody goes through all."""

    @override
    def items(self) -> Any:
        for each in super().items():
            self[len(self)] = ()
            yield each


def test_tasks_may_fail_while_failures_are_reported(
    ends: tuple[Channel, Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = ends
    reports = Reports(there, cast(Spot, None))
    reports.begin(1, 1)
    monkeypatch.setattr(reports, "_errors", Growing())
    for number in range(3):
        reports.fail((number,))
    reports.end(0.0, (0.0, 0))
    (*_, entries, _, errors, _), _ = here.receive() or ((), [])
    assert (entries, errors) == ([None] * 3, {number: (number,) for number in range(3)})


def test_the_entries_of_a_lot() -> None:
    assert head_and_files(b"head") == (b"head", 0)
    assert head_and_files((b"head", 1)) == (b"head", 1)


# -- errors of receiving --------------------------------------------------------------------------


class Failing(socket.socket):
    """Fails to receive, with each of some errors in turn."""

    errors: list[int]

    @override
    def recv_into(self, *args: Any) -> int:
        if self.errors:
            number = self.errors.pop(0)
            raise OSError(number, os.strerror(number))
        return super().recv_into(*args)


@pytest.fixture
def failing() -> Iterator[tuple[Failing, Channel, Channel]]:
    ours, its = pair()
    sock = Failing(fileno=ours.detach())
    here, there = Channel(sock, NOWHERE), Channel(its, NOWHERE)
    with closing(here), closing(there):
        yield sock, here, there


def test_only_some_errors_are_the_end(failing: tuple[Failing, Channel, Channel]) -> None:
    sock, here, _ = failing
    sock.errors = [errno.EPIPE]
    with pytest.raises(EOFError):
        here.receive()
    sock.errors = [errno.EIO]
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        here.receive()
    here.close()
    with pytest.raises(EOFError):
        here.receive()
