from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from typing_extensions import override

import pparallel
from pparallel.errors import ClosedError, ConfigError, PeerLostError
from pparallel.interfaces.reducer import Counters, Reducer, ReducerConfig
from pparallel.runtime.events import Event, Events, GradientsRefused
from pparallel.runtime.events.kinds import ReducerEvent
from pparallel.testing import ReducerSuite
from pparallel.testing.patience import PATIENCE, until
from pparallel.testing.reducer import backward, line, manage, parameters
from pparallel_reducers import GradServerReducerConfig, LocalReducerConfig
from pparallel_reducers.grad_server.flat import Wholes
from pparallel_reducers.grad_server.image import Image
from pparallel_reducers.grad_server.level import Level
from pparallel_reducers.grad_server.pusher import Pusher
from pparallel_reducers.grad_server.sums import Sum
from pparallel_reducers.layout import Layout
from pparallel_reducers.tally import Tally

if TYPE_CHECKING:
    from pparallel.builder import Runtime


class TestLocalReducer(ReducerSuite):
    @pytest.fixture
    @override
    def config(self) -> ReducerConfig:
        return LocalReducerConfig()


GRAD_SERVERS = {
    "default": GradServerReducerConfig(),
    "batches": GradServerReducerConfig(reduce_batch_size=2, max_queue_size=3),
    "two secondaries": GradServerReducerConfig(secondaries=("member-1", "member-2")),
    "bounded": GradServerReducerConfig(
        secondaries=("member-0", "member-2"), reduce_batch_size=2, max_staleness=1000
    ),
    "all take part": GradServerReducerConfig(
        primary="member-1",
        secondaries=("member-0", "member-1", "member-2"),
        dedicated=False,
        reduce_batch_size=2,
    ),
}


class TestGradServerReducer(ReducerSuite):
    @pytest.fixture(params=GRAD_SERVERS)
    @override
    def config(self, request: pytest.FixtureRequest) -> ReducerConfig:
        return GRAD_SERVERS[request.param]

    @pytest.fixture
    @override
    def build(self) -> Callable[..., Any]:
        def build(config: GradServerReducerConfig, **parts: Any) -> Any:
            alone = config.model_copy(update={"primary": None, "secondaries": None})
            reducer: Reducer = pparallel.build(alone, **parts)
            return reducer

        return build


def launch(
    members: list[Any], config: GradServerReducerConfig, target: Callable[..., Any], *args: Any
) -> list[Any]:
    return pparallel.launch(pparallel.RuntimeConfig(members=members, reducer=config), target, args)


# -- what is reduced ------------------------------------------------------------------------------


def one_weight(value: float = 0.0, extra: int = 1) -> nn.Module:
    model = nn.Linear(1, extra, bias=False)
    nn.init.constant_(model.weight, value)
    return model


def weight(model: nn.Module) -> float:
    return parameters(model)[0][0]


def push_values(rt: Runtime, values: dict[str, list[float]]) -> tuple[float, Counters]:
    """Push gradients of given values, and return what the weight becomes under lr = 1."""
    reducer, model = rt.reducer, one_weight()
    if reducer.manages:
        reducer.manage_model(model, torch.optim.SGD(model.parameters(), lr=1.0))
    reducer.start()
    reducer.pull(model)
    for value in values.get(rt.name, []):
        next(iter(model.parameters())).grad = torch.tensor([[value]])
        reducer.push(model)
    reducer.stop()
    return weight(model), reducer.counters()


def test_one_step_over_all_that_two_clients_push_twice() -> None:
    config = GradServerReducerConfig(reduce_batch_size=2)
    values = {"a": [1.0, 3.0], "b": [5.0, 8.0]}
    results = launch(["ps", "a", "b"], config, push_values, values)
    assert [each for each, _ in results] == [-(1.0 + 3.0 + 5.0 + 8.0) / 4] * 3
    assert [counters.reduced for _, counters in results] == [4, 0, 0]
    assert [counters.pushed for _, counters in results] == [0, 2, 2]


@pytest.mark.parametrize(("method", "expected"), [("mean", -18.0 / 4), ("sum", -18.0)])
def test_a_mean_of_means_is_weighted_by_counts(method: Any, expected: float) -> None:
    """One secondary sums three gradients, the other one: the mean is that of all four."""
    config = GradServerReducerConfig(
        secondaries=("s", "t"), reduce_batch_size=10, reduce_method=method
    )
    values = {"s": [8.0], "t": [1.0, 4.0, 5.0]}
    results = launch(["ps", "t", "s"], config, push_values, values)
    assert [each for each, _ in results] == [expected] * 3


def test_a_full_batch_steps_before_the_end() -> None:
    config = GradServerReducerConfig(reduce_batch_size=1)
    results = launch(["ps", "a"], config, push_values, {"a": [1.0] * 5})
    assert results[0][0] == -5.0
    assert results[0][1].reduced == 5
    # The first is computed on the version published at the start, and never pulled again.
    assert results[0][1].staleness == (0 + 1 + 2 + 3 + 4) / 5


class Odd(nn.Module):
    """Parameters and buffers of many dtypes and shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.short = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
        self.imaginary = nn.Parameter(torch.ones(2, 2, dtype=torch.complex64))
        self.long = nn.Parameter(torch.ones((), dtype=torch.float64))
        self.empty = nn.Parameter(torch.ones(0, 4))
        self.turned = nn.Parameter(torch.arange(6.0).view(2, 3).T)
        self.tied = self.long
        self.frozen = nn.Parameter(torch.full((2,), 7.0), requires_grad=False)
        self.mean: torch.Tensor
        self.count: torch.Tensor
        self.cache: torch.Tensor
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("count", torch.zeros(2, dtype=torch.int64))
        self.register_buffer("cache", torch.zeros(1), persistent=False)


def push_odd(rt: Runtime) -> dict[str, torch.Tensor]:
    reducer, model = rt.reducer, Odd()
    if reducer.manages:
        reducer.manage_model(model, torch.optim.SGD(model.parameters(), lr=1.0))
    reducer.start()
    if reducer.trains:
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter) if parameter.requires_grad else None
        model.mean += rt.rank
        model.count += 5
        model.cache += rt.rank
        reducer.push(model)
    reducer.stop()
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def test_every_dtype_and_shape() -> None:
    config = GradServerReducerConfig(reduce_batch_size=2, secondaries=("b",))
    results = launch(["ps", "a", "b"], config, push_odd)
    for rank, state in enumerate(results):
        assert state["short"].tolist() == [0] * 3
        assert state["imaginary"].tolist() == [[0, 0], [0, 0]]
        assert state["long"].item() == 0
        assert state["turned"].tolist() == [[-1, 2], [0, 3], [1, 4]]
        assert state["frozen"].tolist() == [7, 7]
        assert state["mean"].tolist() == [1.5, 1.5], "running means are averaged"
        assert state["count"].tolist() == [5, 5]
        assert state["cache"].item() == rank, "a buffer that is not persistent was touched"


# -- back-pressure, refusals, failures ------------------------------------------------------------


class SlowSGD(torch.optim.SGD):
    """Its steps wait until they are let go, or fail."""

    gate = threading.Event()
    error: Exception | None = None

    @override
    def step(self, closure: Any = None) -> Any:
        assert self.gate.wait(PATIENCE)
        if self.error is not None:
            raise self.error
        return super().step()


@pytest.fixture
def gate() -> Any:
    SlowSGD.gate = threading.Event()
    SlowSGD.error = None
    yield SlowSGD.gate
    SlowSGD.gate.set()


def push_until_held_back(rt: Runtime, count: int, full: int) -> tuple[float, Counters, int]:
    reducer, model = rt.reducer, one_weight()
    held_back_at: list[int] = []
    if reducer.manages:
        reducer.manage_model(model, SlowSGD(model.parameters(), lr=1.0))
    reducer.start()

    def open_gate() -> None:
        until(lambda: reducer.counters().pushed >= full, "the queues were not filled")
        threading.Event().wait(0.1)  # one push more would have been acknowledged by now
        held_back_at.append(reducer.counters().pushed)
        SlowSGD.gate.set()

    if reducer.trains:
        opener = threading.Thread(target=open_gate)
        opener.start()
        for _ in range(count):
            next(iter(model.parameters())).grad = torch.ones(1, 1)
            reducer.push(model)
        opener.join()
    reducer.stop()
    return weight(model), reducer.counters(), sum(held_back_at)


@pytest.mark.parametrize("queue", [1, 4])
def test_a_full_queue_holds_back_and_drops_nothing(gate: threading.Event, queue: int) -> None:
    config = GradServerReducerConfig(max_queue_size=queue)
    full = 2 * (queue + 1)  # each level holds its queue, and one message in its thread's hands
    results = launch(["ps", "a"], config, push_until_held_back, 20, full)
    assert [each for each, _, _ in results] == [-20.0] * 2
    assert results[0][1].reduced == 20
    assert results[1][2] == full


def push_another_model(rt: Runtime) -> int:
    reducer, model = rt.reducer, line()
    manage(reducer, model)
    reducer.start()
    if rt.name == "wide":
        other = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
        backward(other, 1)
        with pytest.raises(ValueError, match=r"it has trainable '1\.weight' of shape \(2, 4\).*"):
            reducer.push(other)
        assert other[1].weight.grad is not None
        with pytest.raises(ValueError, match=r"the managed has trainable '1\.weight'.*\(1, 4\)"):
            reducer.pull(other)
    if rt.name == "short":
        other = nn.Sequential(nn.Linear(3, 4))
        backward(other, 1)
        with pytest.raises(ValueError, match="it has nothing more"):
            reducer.push(other)
    if rt.name == "looks on":
        model.requires_grad_(False)
        assert reducer.pull(model)
    reducer.stop()
    return reducer.counters().refused


def test_a_model_that_does_not_match_is_refused() -> None:
    members = ["ps", "wide", "short", "looks on"]
    assert launch(members, GradServerReducerConfig(), push_another_model) == [2, 0, 0, 0]


def push_to_a_failing_optimizer(rt: Runtime) -> list[str]:
    reducer, model = rt.reducer, one_weight()
    if reducer.manages:
        reducer.manage_model(model, SlowSGD(model.parameters(), lr=1.0))
    reducer.start()
    errors = []
    if reducer.trains:
        for _ in range(50):
            next(iter(model.parameters())).grad = torch.ones(1, 1)
            try:
                reducer.push(model)
            except ArithmeticError as error:
                errors.append(f"push: {error}")
                break
    rt.group().barrier()
    try:
        reducer.watch()
    except ArithmeticError as error:
        errors.append(f"watch: {error}")
    try:
        reducer.stop()
    except ArithmeticError as error:
        errors.append(f"stop: {error}")
    return errors


@pytest.mark.parametrize("secondary", ["ps", "b"])
def test_a_reducing_thread_that_fails(gate: threading.Event, secondary: str) -> None:
    SlowSGD.error = ArithmeticError("too steep")
    gate.set()
    config = GradServerReducerConfig(secondaries=(secondary,))
    servers, a, b = launch(["ps", "a", "b"], config, push_to_a_failing_optimizer)
    assert servers == ["watch: too steep", "stop: too steep"]
    assert a == ["push: too steep", "stop: too steep"]
    watched = ["watch: too steep"] if secondary == "b" else []
    assert b == ["push: too steep", *watched, "stop: too steep"]


def push_to_a_taken_key(rt: Runtime) -> None:
    reducer, model = rt.reducer, one_weight()
    reducer.manage_model(model, torch.optim.SGD(model.parameters(), lr=1.0))
    reducer.start()
    (key,) = rt.ordered_server.keys()
    assert rt.ordered_server.push(key, "mine", 7, rt.ordered_server.versions(key)[-1])
    next(iter(model.parameters())).grad = torch.ones(1, 1)
    reducer.push(model)
    with pytest.raises(RuntimeError, match=r"refused version 1.*somebody else"):
        reducer.stop()


def test_a_refused_publication_is_an_error() -> None:
    with pparallel.build() as rt:
        push_to_a_taken_key(rt)
        assert rt.reducer.counters().reduced == 0


def fail_while_training(rt: Runtime) -> None:
    reducer, model = rt.reducer, one_weight()
    if reducer.manages:
        reducer.manage_model(model, SlowSGD(model.parameters(), lr=1.0))
    reducer.start()
    if rt.name == "a":
        next(iter(model.parameters())).grad = torch.ones(1, 1)
        reducer.push(model)
        SlowSGD.gate.set()
        message = "in the middle"
        raise KeyError(message)
    reducer.stop()


def test_a_member_that_fails_ends_the_reducing(gate: threading.Event) -> None:
    with pytest.raises(KeyError, match="in the middle"):
        launch(["ps", "a", "b"], GradServerReducerConfig(secondaries=("b",)), fail_while_training)


# -- secondaries that end -------------------------------------------------------------------------


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
    if reducer.manages:
        reducer.manage_model(model, torch.optim.SGD(model.parameters(), lr=1.0))
    reducer.start()
    if rt.name == "leaver":
        return None
    _until_lost(rt, "leaver")
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
        self.ends: dict[tuple[str, int], bool] = {}  # (secondary, number) -> handed on before?
        self.asked: list[str] = []

    def send(self, to: str, number: int) -> bool:
        if (to, number) in self.ends:
            if self.ends[to, number]:
                self.came[to].append(number)
            raise PeerLostError(to, "died")
        self.came[to].append(number)
        return True

    def fence(self, secondary: str, number: int | None) -> list[tuple[int, bool]]:
        self.asked.append(secondary)
        return [(len(self.came[secondary]), number in self.came[secondary])]


@pytest.mark.parametrize("handed_on", [True, False])
def test_a_gradient_in_doubt_is_reduced_once(handed_on: bool) -> None:
    books, tally = _Books(), Tally(Events("me"), "reducer")
    pusher = Pusher(0, ["s", "t"], tally, books.fence)
    books.ends["s", 1] = handed_on
    assert [pusher.push(books.send) for _ in range(3)] == [True] * 3
    assert books.came == ({"s": [0, 1], "t": [2]} if handed_on else {"s": [0], "t": [2, 3]})
    assert tally.counters() == Counters(pushed=3)
    assert books.asked == ["s"]


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


def test_a_loss_may_be_heard_of_at_any_time() -> None:
    tally = Tally(Events("me"), "reducer")

    def fence(secondary: str, number: int | None) -> list[tuple[int, bool]]:
        pusher.lose(secondary, "died again")
        return [(0, False)]

    def send(to: str, number: int) -> bool:
        if to == "s":
            raise PeerLostError("s", "died")
        return True

    pusher = Pusher(0, ["s", "t"], tally, fence)
    assert all(pusher.push(send) for _ in range(3))
    assert tally.counters() == Counters(pushed=3)


# -- the managed model ----------------------------------------------------------------------------


def test_leaving_without_stop_is_said(caplog: pytest.LogCaptureFixture) -> None:
    config: Any = GradServerReducerConfig(reduce_batch_size=10)
    with pparallel.build(pparallel.RuntimeConfig(reducer=config)) as rt:
        model = one_weight()
        manage_here(rt, model)
        rt.reducer.start()
        for _ in range(3):
            next(iter(model.parameters())).grad = torch.ones(1, 1)
            rt.reducer.push(model)
    assert "left with 3 acknowledged gradients: they are not reduced, for stop()" in caplog.text


def test_a_start_that_fails_hands_the_optimizer_back(monkeypatch: pytest.MonkeyPatch) -> None:
    with pparallel.build() as rt:
        model = one_weight()
        manage_here(rt, model, lr=1.0)
        with monkeypatch.context() as patched:
            patched.setattr(rt.ordered_server, "push", lambda *_: False)
            with pytest.raises(RuntimeError, match="refused version 0"):
                rt.reducer.start()
        rt.reducer.start()
        next(iter(model.parameters())).grad = torch.ones(1, 1)
        rt.reducer.push(model)
        rt.reducer.stop()
        assert weight(model) == -1.0


def test_a_member_may_train_another_copy_than_it_manages() -> None:
    with pparallel.build() as rt:
        managed, trained = one_weight(), one_weight()
        manage_here(rt, managed, lr=1.0)
        rt.reducer.start()
        next(iter(trained.parameters())).grad = torch.ones(1, 1)
        rt.reducer.push(trained)
        rt.reducer.stop()
        assert weight(managed) == weight(trained) == -1.0


def test_a_second_start_is_not_behind() -> None:
    with pparallel.build() as rt:
        model = one_weight()
        manage_here(rt, model)
        for _ in range(2):
            rt.reducer.start()
            next(iter(model.parameters())).grad = torch.ones(1, 1)
            rt.reducer.push(model)
            rt.reducer.stop()
        assert rt.reducer.counters() == Counters(pushed=2, reduced=2)


# -- bad input ------------------------------------------------------------------------------------


def enter(rt: Runtime) -> bool:
    return rt.reducer.manages


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"primary": "pss"}, r"reducer\.primary: 'pss' is no member.*Did you mean 'ps'"),
        ({"secondaries": ("ps", "worker")}, r"reducer\.secondaries: 'worker' is no member"),
    ],
)
def test_members_that_do_not_exist(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        launch(["ps", "a"], GradServerReducerConfig(**options), enter)


def roles(rt: Runtime) -> tuple[bool, bool]:
    model = line()
    if not rt.reducer.manages:
        with pytest.raises(RuntimeError, match="'b' does not manage the model, 'a' does"):
            manage_here(rt, model)
    return rt.reducer.manages, rt.reducer.trains


def manage_here(rt: Runtime, model: nn.Module, lr: float = 0.1) -> None:
    rt.reducer.manage_model(model, torch.optim.SGD(model.parameters(), lr=lr))


def test_who_manages_and_who_trains() -> None:
    assert launch(["a", "b"], GradServerReducerConfig(), roles) == [(True, False), (False, True)]
    shares = GradServerReducerConfig(dedicated=False)
    assert launch(["a", "b"], shares, roles) == [(True, True), (False, True)]
    assert launch(["a"], GradServerReducerConfig(), roles) == [(True, True)]


def test_managing_twice_and_late() -> None:
    with pparallel.build() as rt:
        manage_here(rt, line())
        manage_here(rt, line(1))
        rt.reducer.start()
        with pytest.raises(RuntimeError, match="comes before start"):
            manage_here(rt, line())
        rt.reducer.stop()


def test_a_reducer_with_a_server_of_its_own() -> None:
    config = pparallel.load(
        {"reducer": {"backend": "grad_server", "ordered_server": {"backend": "hosted"}}}
    )
    with pparallel.build(config) as rt:
        model = line()
        manage(rt.reducer, model)
        rt.reducer.start()
        backward(model, 1)
        rt.reducer.step(model)
        rt.reducer.stop()
        assert parameters(model) != parameters(line())
        assert rt.ordered_server.keys() == []
