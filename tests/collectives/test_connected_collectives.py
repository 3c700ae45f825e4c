"""What collectives of several processes stand on, alone: all operations over messages."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest
import torch
from selected_tests import only
from typing_extensions import override

import pparallel
import pparallel_local.collective
from pparallel.builder import Runtime
from pparallel.errors import ClosedError, PeerLostError, SerializationError
from pparallel.interfaces.collective import CollectiveConfig
from pparallel.runtime.collectives import ConnectedCollective, Mailbox
from pparallel.runtime.collectives.channels import Channel
from pparallel.runtime.member import Member
from pparallel.runtime.rpc import Request
from pparallel.testing import CollectiveSuite
from pparallel.testing.patience import PATIENCE
from pparallel_local import LocalCollectiveConfig


class OverMessages(ConnectedCollective):
    """Has no operations of its own."""

    @override
    def join(self) -> None:
        """There is nothing to set up."""

    @override
    def leave(self) -> None:
        """Nor to give back."""

    @override
    def member_left(self, rank: int, error: BaseException) -> None:
        """Nor to wake."""


@pytest.fixture(autouse=True)
def instead_of_local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pparallel_local.collective, "LocalCollective", OverMessages)


@only(
    "test_operations",
    "test_barrier",
    "test_operations_overlap",
    "test_messages",
    "test_tags_are_not_mixed",
    "test_any_source",
    "test_many_threads",
    "test_groups",
    "test_a_group_that_was_destroyed",
    "test_what_does_not_fit",
    "test_a_lost_member",
    "test_nobody_is_left",
    "test_close_wakes",
)
class TestOverMessages(CollectiveSuite):
    sizes: ClassVar[Sequence[int]] = (3,)

    @pytest.fixture
    @override
    def config(self) -> CollectiveConfig:
        return LocalCollectiveConfig()


# -- the mailbox alone ----------------------------------------------------------------------------


class Wire:
    """A group of two members whose requests are answered when the test says."""

    def __init__(self) -> None:
        self.services: dict[str, Callable[[Request], Any]] = {}
        self.posted: list[Request] = []
        self.refuses = False

    def mailbox(self, rank: int) -> Mailbox:
        names = ("a", "b")
        member = Member(names[rank], rank, rank, 2, names)
        end: Any = _End(self, names[rank])
        mailbox = Mailbox(end, member, range(2), "pair", PATIENCE)
        mailbox.open()
        mailbox.join((), lambda *_: None)
        return mailbox

    def deliver(self, index: int = 0) -> None:
        request = self.posted.pop(index)
        self.services["b" if request.sender == "a" else "a"](request)


class _Memory(bytearray):
    """Bytes that a weak reference may follow."""


class _End:
    def __init__(self, wire: Wire, name: str) -> None:
        self._wire, self._name = wire, name

    def serve(self, _: str, service: Callable[[Request], Any]) -> None:
        self._wire.services[self._name] = service

    def ask_async(self, _: str, __: str, body: Any, buffers: Sequence[Any] = ()) -> None:
        if self._wire.refuses and buffers:
            raise SerializationError("a value", "it is too large")
        self._wire.posted.append(Request(self._name, body, list(buffers)))

    def memory(self, nbytes: int) -> memoryview:
        return memoryview(_Memory(nbytes))

    def publish(self, memory: memoryview) -> None:
        """All is seen by all."""

    def when_lost(self, callback: Callable[..., None]) -> None:
        self.lost = callback

    def when_closed(self, callback: Callable[..., None]) -> None:
        self.closed = callback


def test_messages_that_overtake_one_another_keep_their_order() -> None:
    wire = Wire()
    a, b = wire.mailbox(0), wire.mailbox(1)
    for value in range(3):
        a.send(torch.tensor([value]), 1, 0, ())
    into = [torch.zeros(1, dtype=torch.int64) for _ in range(3)]
    works = [b.receive(each, 0, 0, ()) for each in into]
    wire.deliver(2)
    wire.deliver(1)
    assert not any(each.is_completed() for each in works)
    wire.deliver()
    assert [each.wait(PATIENCE) for each in works] == [0, 0, 0]
    assert [each.item() for each in into] == [0, 1, 2]


def test_a_message_that_cannot_be_sent_holds_up_no_other() -> None:
    wire = Wire()
    a, b = wire.mailbox(0), wire.mailbox(1)
    wire.refuses = True
    with pytest.raises(SerializationError, match="too large"):
        a.send(torch.zeros(3), 1, 0, ())
    wire.refuses = False
    a.send(torch.ones(3), 1, 0, ())
    wire.deliver()
    wire.deliver()
    into = torch.zeros(3)
    assert b.receive(into, 0, 0, ()).wait(PATIENCE) == 0
    assert into.tolist() == [1, 1, 1]


def test_what_came_before_its_sender_left_is_received() -> None:
    wire = Wire()
    a, b = wire.mailbox(0), wire.mailbox(1)
    a.send(torch.ones(1), 1, 7, ())
    assert a.leave(())
    assert not a.leave(()), "it has left"
    while wire.posted:
        wire.deliver()
    into = torch.zeros(1)
    assert b.receive(into, 0, 7, ()).wait(PATIENCE) == 0
    with pytest.raises(PeerLostError, match="has left the collective 'pair'"):
        b.receive(into, 0, 7, ()).wait(PATIENCE)
    with pytest.raises(PeerLostError):
        b.send(into, 0, 0, ())
    with pytest.raises(ClosedError):
        a.send(into, 1, 0, ())


def test_nobody_is_told_who_leaves_when_all_are_done() -> None:
    wire = Wire()
    a = wire.mailbox(0)
    a.depart()
    assert a.leave(())
    assert not wire.posted
    with pytest.raises(ClosedError):
        a.send(torch.ones(1), 1, 0, ())


def test_a_group_that_was_left_takes_nothing_more() -> None:
    """Late messages of the group, and of groups made of it, are dropped; all others arrive."""
    wire = Wire()
    a, b = wire.mailbox(0), wire.mailbox(1)
    first, second = (((0, 1), 1),), (((0, 1), 2),)
    inner = (*first, ((0, 1), 1))
    for each in (a, b):
        each.join(first, lambda *_: None)
    late = torch.zeros(1000)
    a.send(late, 1, 0, first)
    a.send(late, 1, 0, inner)
    assert b.leave(first)
    assert not b.leave(first), "it has left"
    a.send(torch.ones(3), 1, 0, second)  # which b has not made yet
    views = [memoryview(each.buffers[0]) for each in wire.posted if each.buffers]
    held = [weakref.ref(each.obj) for each in views]
    del views
    while wire.posted:
        wire.deliver()
    assert [each() is not None for each in held] == [False, False, True]
    with pytest.raises(ClosedError):
        b.receive(late, 0, 0, first)
    with pytest.raises(ClosedError):
        b.send(late, 0, 0, inner)
    b.join(second, lambda *_: None)
    into = torch.zeros(3)
    assert b.receive(into, 0, 0, second).wait(PATIENCE) == 0
    assert into.tolist() == [1, 1, 1]


def make_groups(rt: Runtime, count: int) -> int:
    """Make, use and destroy groups; return how many of their channels are left in the process."""
    world = rt.collective
    with world.new_group([0, 1]) as parent:
        for at in range(count):
            group = (world, parent)[at % 2].new_group([0, 1])
            group.barrier()
            group.destroy()
    world.barrier()
    gc.collect()
    return sum(issubclass(type(each), Channel) for each in gc.get_objects())


def test_groups_that_were_destroyed_leave_nothing() -> None:
    left = pparallel.launch({"members": 2}, make_groups, [300])
    assert max(left) <= 2, "more than the channel of all members, of each of two"


# -- the end of a job -----------------------------------------------------------------------------


def use(rt: Runtime) -> float:
    tensor = torch.ones(2)
    rt.collective.all_reduce(tensor)
    return tensor[0].item()


def use_groups(rt: Runtime) -> float:
    group = rt.collective.new_group(rt.collective.ranks)
    group.barrier()
    group.destroy()  # as the last thing: who is told may be closing
    return float(group.size())


@pytest.mark.parametrize("program", [use, use_groups])
def test_members_that_end_together_are_no_strangers(
    program: Callable[[Runtime], float],
    caplog: pytest.LogCaptureFixture,
) -> None:
    config: Any = {"members": 5, "transport": {"backend": "ipc"}}
    for _ in range(3):
        assert pparallel.launch(config, program) == [5.0] * 5
    assert "did not let in" not in caplog.text
