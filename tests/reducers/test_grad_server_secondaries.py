"""The reducer ``grad_server``: secondaries that end, and what is theirs alone."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import pytest
import torch
from reducer_models import begun, launch, one_weight, weight

from pparallel.errors import ClosedError, PeerLostError
from pparallel.interfaces.reducer import Counters
from pparallel.runtime.events import Event, Events, GradientsRefused, ReducerEvent
from pparallel.testing.patience import PATIENCE
from pparallel_reducers import GradServerReducerConfig
from pparallel_reducers.grad_server.flat import Wholes
from pparallel_reducers.grad_server.image import Image
from pparallel_reducers.grad_server.level import Level
from pparallel_reducers.grad_server.pusher import Pusher
from pparallel_reducers.grad_server.sums import Sum
from pparallel_reducers.grad_server.tickets import UnknownTicketError
from pparallel_reducers.layout import Layout
from pparallel_reducers.tally import Tally

if TYPE_CHECKING:
    from pparallel.builder import Runtime


Told = list[dict[str, Any]]


def outlive_secondaries(rt: Runtime) -> tuple[float, Counters, Told] | None:
    reducer, model, group = rt.reducer, one_weight(), rt.group()
    told: Told = []
    rt.events.subscribe(lambda event: told.append(event.to_dict()), ReducerEvent)
    if reducer.manages:
        reducer.manage_model(model, torch.optim.SGD(model.parameters(), lr=1.0))
    reducer.start()
    if rt.name == "a":
        for value in (1.0, 2.0):
            next(iter(model.parameters())).grad = torch.tensor([[value]])
            assert reducer.push(model)
    group.barrier()
    if rt.name.startswith("leaver"):
        return None
    _until_lost(rt, "leaver")
    if rt.name == "a":
        next(iter(model.parameters())).grad = torch.tensor([[4.0]])
        assert reducer.push(model)
    reducer.stop()
    return weight(model), reducer.counters(), told


def _until_lost(rt: Runtime, name: str) -> None:
    lost = threading.Event()
    rt.group().when_lost(lambda member, _: lost.set() if member == name else None)
    assert lost.wait(PATIENCE)


def test_gradients_that_end_with_a_secondary_are_counted_as_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The secondary of ``a`` leaves with two acknowledged gradients; the third goes elsewhere."""
    members = ["ps", "b", {"name": "leaver", "override": {"close_timeout": 0.05}}, "a"]
    config = GradServerReducerConfig(secondaries=("b", "leaver"), reduce_batch_size=10)
    with caplog.at_level(logging.WARNING, "pparallel_reducers"):
        ps, _, _, a = launch(members, config, outlive_secondaries)
    assert [each for each, _, _ in (ps, a)] == [-4.0] * 2
    assert (a[1].pushed, a[1].lost, ps[1].reduced) == (3, 2, 1)
    assert "2 acknowledged gradients are lost: member 'leaver' has left" in caplog.text
    assert "leaver left with 2 acknowledged gradients" in caplog.text
    kinds = [each["kind"] for each in a[2]]
    assert kinds == ["push", "push", "gradients.lost", "push", "pull"]
    assert (a[2][2]["gradients"], a[2][2]["peer"]) == (2, "leaver")
    assert [each["kind"] for each in ps[2]] == ["reduce", "pull"]
    assert (ps[2][0]["gradients"], ps[2][0]["version"], ps[2][0]["staleness"]) == (1, 1, 0)


def push_to_nobody(rt: Runtime) -> str | None:
    reducer, model = rt.reducer, one_weight()
    begun(rt, model)
    if rt.name == "leaver":
        return None
    _until_lost(rt, "leaver")
    model = model if reducer.trains else one_weight()  # a dedicated primary's own is stepped
    next(iter(model.parameters())).grad = torch.ones(1, 1)
    with pytest.raises(PeerLostError, match="no secondary is left") as caught:
        reducer.push(model)
    assert next(iter(model.parameters())).grad is not None
    reducer.stop()
    return caught.value.peer


def test_no_secondary_is_left() -> None:
    members = ["ps", {"name": "leaver", "override": {"close_timeout": 0.05}}, "a"]
    config = GradServerReducerConfig(secondaries=("leaver",))
    assert launch(members, config, push_to_nobody) == ["leaver", None, "leaver"]


class _Books:
    """A primary that knows what came from each secondary."""

    def __init__(self) -> None:
        self.came: dict[str, list[int]] = {"s": [], "t": []}

    def send(self, to: str, number: int) -> bool:
        self.came[to].append(number)
        return True

    def fence(self, secondary: str, number: int | None) -> list[tuple[int, bool]]:
        return [(len(self.came[secondary]), number in self.came[secondary])]


def test_what_was_not_handed_on_is_lost() -> None:
    books, tally = _Books(), Tally(Events("me"), "reducer")
    pusher = Pusher(0, ["s", "t"], tally, books.fence)
    assert all(pusher.push(books.send) for _ in range(3))
    del books.came["s"][1:]  # two of the three ended with the secondary
    pusher.lose("s", "died")
    pusher.lose("s", "died")
    pusher.lose("nobody", "died")
    pusher.account()
    assert tally.counters() == Counters(pushed=3, lost=2)
    pusher.lose("t", "died")
    with pytest.raises(PeerLostError, match="'t' died, and no secondary is left"):
        pusher.push(books.send)


class Desk:
    """One level, with what it took and told."""

    def __init__(self, **options: Any) -> None:
        events = Events("me")
        self.told: list[Event] = []
        events.subscribe(self.told.append)
        self.taken: list[int] = []
        self.tally = Tally(events, "critic")
        config = GradServerReducerConfig(**options)
        self.level = Level("level", config, self.tally, self.take)
        layout = Layout.of(one_weight())
        self.digest, self.wholes = layout.digest, Wholes(Image(layout), "cpu")

    def take(self, batch: Sum) -> None:
        self.taken.append(batch.count)

    def offer(self, source: str, *numbers: int, digest: str | None = None) -> Future[bool]:
        def message() -> Sum:
            flat = self.wholes.take()
            flat.pack(lambda _: torch.ones(1, 1))
            return Sum([[flat]], len(numbers), [0], [("a", number) for number in numbers], [[]])

        return self.level.offer(source, digest or self.digest, len(numbers), message)

    def start(self) -> None:
        self.level.start(self.digest, [self.wholes])


def test_what_comes_twice_is_taken_once() -> None:
    desk = Desk()
    desk.start()
    for number in (0, 0, 1, 0, 1):
        assert desk.offer("a", number).result(PATIENCE)
    assert desk.level.fence("b", "a", 0) == (0, False)
    assert isinstance(desk.offer("b", 2).exception(), PeerLostError)
    assert desk.level.flush() is None
    assert desk.taken == [1, 1]
    assert desk.tally.counters() == Counters(refused=1)


def test_what_is_refused_as_it_arrives_has_not_come() -> None:
    desk = Desk()
    desk.start()
    accept = desk.level.arrived

    def refuse(_: Sum) -> None:
        message = "there is no such ticket"
        raise ValueError(message)

    desk.level.arrived = refuse
    with pytest.raises(ValueError, match="no such ticket"):
        desk.offer("a", 0)
    desk.level.arrived = accept
    assert desk.level.fence("b", "a", 0) == (0, False)
    assert desk.offer("a", 0).result(PATIENCE)
    assert desk.level.flush() is None
    assert desk.taken == [1]


def test_a_ticket_that_is_not_on_its_way_refuses_one_message() -> None:
    desk = Desk()
    desk.start()
    accept = desk.level.arrived

    def refuse(_: Sum) -> None:
        message = "not all are on their way"
        raise UnknownTicketError(message)

    desk.level.arrived = refuse
    assert desk.offer("a", 0).result(PATIENCE) is False
    desk.level.arrived = accept
    assert desk.offer("a", 1).result(PATIENCE)
    assert desk.level.flush() is None
    assert desk.taken == [1]
    assert desk.tally.counters() == Counters(refused=1)


def test_what_is_refused_is_counted_gradient_by_gradient_and_told() -> None:
    desk = Desk()
    assert isinstance(desk.offer("a", 0, 1, 2).exception(), ClosedError)
    desk.start()
    assert desk.offer("a", 3, 4, digest="another").result(PATIENCE) is False
    desk.level.fence("b", "a", None)
    assert isinstance(desk.offer("b", 5).exception(), PeerLostError)
    assert desk.level.flush() is None
    assert isinstance(desk.offer("a", 6).exception(), ClosedError)
    assert desk.tally.counters() == Counters(late=4, refused=3)
    refused = [each for each in desk.told if isinstance(each, GradientsRefused)]
    assert desk.told == refused
    assert [(each.gradients, each.sender, each.late) for each in refused] == [
        (3, "a", True),
        (2, "a", False),
        (1, "b", False),
        (1, "a", True),
    ]
    assert [each.reason for each in refused] == [
        "the reducer is not started, or was stopped",
        "they are of another model",
        "member 'b' was declared lost by a member",
        "the reducer is not started, or was stopped",
    ]
    assert {each.reducer for each in refused} == {"critic"}


def test_what_waits_when_a_level_closes_is_late() -> None:
    held, busy = threading.Event(), threading.Event()
    desk = Desk()

    def hold(batch: Sum) -> None:
        busy.set()
        assert held.wait(PATIENCE)

    desk.level._hand_on = hold
    desk.start()
    taken, queued, waiting = (desk.offer("a", number) for number in range(3))
    assert taken.result(PATIENCE)
    assert busy.wait(PATIENCE)
    assert queued.result(PATIENCE)
    desk.level.close(ClosedError("the reducer"))
    held.set()
    desk.level.join()
    assert isinstance(waiting.exception(PATIENCE), ClosedError)
    assert desk.tally.counters() == Counters(late=1)
    assert desk.level.held == 1, "what was acknowledged and is still in the queue"
