"""The reducer ``diloco``."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from crew import Crew, crew
from torch import nn
from typing_extensions import override

import pparallel
from pparallel.errors import ConfigError, PeerLostError
from pparallel.interfaces.launcher import LauncherConfig
from pparallel.interfaces.reducer import Counters, ReducerConfig
from pparallel.runtime.events import Events, GradientsLost, GradientsRefused
from pparallel.runtime.events.kinds import ReducerEvent
from pparallel.runtime.rpc import Reply
from pparallel.testing import ReducerSuite
from pparallel.testing.patience import PATIENCE
from pparallel.testing.reducer import line, manage, parameters
from pparallel_process import ProcessLauncherConfig
from pparallel_reducers import DilocoReducerConfig
from pparallel_reducers.diloco.desks import RemoteDesk
from pparallel_reducers.diloco.outer import Outer
from pparallel_reducers.diloco.pieces import Draft, cut
from pparallel_reducers.diloco.rounds import Part, Rounds
from pparallel_reducers.diloco.weights import Weights
from pparallel_reducers.layout import Layout
from pparallel_reducers.tally import Tally

if TYPE_CHECKING:
    from pparallel.builder import Runtime

AVERAGE = DilocoReducerConfig(inner_steps=1, outer_lr=1, outer_momentum=0)
DILOCOS = {
    "default": DilocoReducerConfig(),
    "averages each step": AVERAGE,
    "another coordinates": DilocoReducerConfig(
        inner_steps=7, outer_lr=1, outer_momentum=0, coordinator="member-1"
    ),
}


class TestDilocoReducer(ReducerSuite):
    @pytest.fixture(params=DILOCOS)
    @override
    def config(self, request: pytest.FixtureRequest) -> ReducerConfig:
        return DILOCOS[request.param]

    @pytest.fixture
    @override
    def build(self) -> Callable[..., Any]:
        def build(config: DilocoReducerConfig, **parts: Any) -> Any:
            return pparallel.build(config.model_copy(update={"coordinator": None}), **parts)

        return build


@pytest.mark.costly
class TestDilocoReducerAmongProcesses(ReducerSuite):
    @pytest.fixture
    @override
    def config(self) -> ReducerConfig:
        return DilocoReducerConfig(inner_steps=7, outer_lr=1, outer_momentum=0)

    @pytest.fixture
    @override
    def launcher(self) -> LauncherConfig:
        return ProcessLauncherConfig(preload=("torch._dynamo", "pparallel.testing"))


def launch(
    members: Any, config: DilocoReducerConfig, target: Callable[..., Any], *args: Any
) -> list[Any]:
    return pparallel.launch(pparallel.RuntimeConfig(members=members, reducer=config), target, args)


# -- what the outer step is -----------------------------------------------------------------------


def numbers(count: int = 3, value: float = 0.0) -> nn.Module:
    """A model of some float64 numbers."""
    model = nn.Linear(1, count, bias=False, dtype=torch.float64)
    nn.init.constant_(model.weight, value)
    return model


def values(model: nn.Module) -> list[float]:
    return parameters(model)[0]


def draw(rank: int, step: int) -> torch.Tensor:
    """The gradient that a member computes, whatever its parameters."""
    random = torch.Generator().manual_seed(1000 * rank + step)
    return torch.rand(3, 1, generator=random, dtype=torch.float64) - 0.3


def step_on(rt: Runtime, model: nn.Module, gradient: torch.Tensor) -> None:
    next(iter(model.parameters())).grad = gradient.clone()
    assert rt.reducer.step(model)


def begun(rt: Runtime, model: nn.Module, lr: float = 1.0) -> nn.Module:
    rt.reducer.manage_model(model, torch.optim.SGD(model.parameters(), lr=lr))
    rt.reducer.start()
    return model


def step_on_drawn(rt: Runtime, steps: dict[str, int], value: float = 0.5) -> Any:
    """Step on drawn gradients; return the parameters after each step, and at the end."""
    model = begun(rt, numbers(value=value + rt.rank), 0.1)
    found = [values(model)]
    for step in range(steps[rt.name]):
        step_on(rt, model, draw(rt.rank, step))
        found.append(values(model))
    rt.reducer.stop()
    return found, values(model), rt.reducer.counters()


def test_averaging_each_step_is_a_step_on_the_mean_gradient() -> None:
    results = launch(3, AVERAGE, step_on_drawn, {f"member-{rank}": 10 for rank in range(3)})
    expected = torch.full((3, 1), 0.5, dtype=torch.float64)
    for step in range(10):
        expected = expected - 0.1 * sum(draw(rank, step) for rank in range(3)) / 3
        for found, _, _ in results:
            assert found[step + 1] == pytest.approx(expected.flatten().tolist(), rel=1e-12)


@pytest.mark.parametrize("momentum", [0.9, 0.3])
def test_the_outer_step_is_nesterovs(momentum: float) -> None:
    """As torch's optimizer makes it, on how far the members came, four rounds of three steps."""
    config = DilocoReducerConfig(inner_steps=3, outer_momentum=momentum)
    results = launch(3, config, step_on_drawn, {f"member-{rank}": 12 for rank in range(3)})
    outer = nn.Parameter(torch.full((3, 1), 0.5, dtype=torch.float64))
    optimizer = torch.optim.SGD([outer], lr=0.7, momentum=momentum, nesterov=True)
    for first in range(0, 12, 3):
        steps = range(first, first + 3)
        moved = [0.1 * sum(draw(rank, step) for step in steps) for rank in range(3)]
        outer.grad = torch.stack([torch.as_tensor(each) for each in moved]).mean(0)
        optimizer.step()
        for found, _, _ in results:
            assert found[first + 3] == pytest.approx(outer.flatten().tolist(), rel=1e-12)


def test_the_same_steps_give_the_same_bits() -> None:
    """Whoever comes first: the members are averaged in their order."""
    config = DilocoReducerConfig(inner_steps=2)
    steps = {f"member-{rank}": 8 for rank in range(4)}
    first, *others = (launch(4, config, step_on_drawn, steps) for _ in range(3))
    assert all([each[:2] for each in other] == [each[:2] for each in first] for other in others)


def test_the_last_round_takes_the_mean_of_what_was_stepped_since() -> None:
    config = DilocoReducerConfig(inner_steps=4)
    steps = {"a": 6, "b": 5, "c": 4}  # c has made nothing since the first round
    results = launch(list(steps), config, step_on_drawn, steps)
    outer = torch.tensor(results[0][0][4], dtype=torch.float64).view(3, 1)
    a, b = (outer - 0.1 * sum(draw(rank, step) for step in range(4, 6 - rank)) for rank in (0, 1))
    for _, last, counters in results:
        assert last == pytest.approx(((a + b) / 2).flatten().tolist(), rel=1e-12)
        assert counters.lost == 0
    assert [counters.reduced for _, _, counters in results] == [6, 5, 4]


def test_a_member_that_stops_early_holds_nobody_up() -> None:
    config = DilocoReducerConfig(inner_steps=2)
    steps = {"a": 3, "b": 20, "c": 0}
    results = launch(list(steps), config, step_on_drawn, steps)
    assert [last for _, last, _ in results] == [results[0][1]] * 3
    for (_, _, counters), count in zip(results, steps.values(), strict=True):
        assert counters[:5] == (count, count, 0, 0, 0)


def test_half_precision_is_averaged_in_single() -> None:
    """In bfloat16 a sum of so many would be far off."""

    def weights(value: float) -> Weights:
        return Weights({torch.bfloat16: torch.full((4,), value, dtype=torch.bfloat16)}, {})

    outer = Outer(weights(0), 0.7, 0.9)
    outer.step([weights(1)] * 1000, last=True)
    assert outer.weights.trainable[torch.bfloat16].tolist() == [1] * 4


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


def step_odd(rt: Runtime) -> dict[str, torch.Tensor]:
    model = Odd()
    model.frozen.data += rt.rank
    begun(rt, model)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter) if parameter.requires_grad else None
    model.mean += rt.rank
    model.count += 5
    model.cache += rt.rank
    rt.reducer.step(model)
    rt.reducer.stop()
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def test_every_dtype_and_shape() -> None:
    for rank, state in enumerate(launch(3, AVERAGE, step_odd)):
        assert state["short"].tolist() == [0] * 3
        assert state["imaginary"].tolist() == [[0, 0], [0, 0]]
        assert state["long"].item() == 0
        assert state["turned"].tolist() == [[-1, 2], [0, 3], [1, 4]]
        assert state["frozen"].tolist() == [7, 7], "all begin with what the coordinator has frozen"
        assert state["mean"].tolist() == [1, 1], "running means are averaged"
        assert state["count"].tolist() == [5, 5]
        assert state["cache"].item() == rank, "a buffer that is not persistent was touched"


# -- who is waited for ----------------------------------------------------------------------------


class Turns:
    """What members that are threads tell one another."""

    passed = threading.Event()


def be_slow(rt: Runtime) -> Any:
    """The slow member makes its steps when the other has made a round."""
    told: list[ReducerEvent] = []
    rt.events.subscribe(told.append, ReducerEvent)  # type: ignore[arg-type]
    model = begun(rt, numbers())
    if rt.name == "slow":
        assert Turns.passed.wait(PATIENCE)
    for _ in range(2):
        step_on(rt, model, torch.full((3, 1), 1.0 if rt.name == "slow" else 8.0).double())
    after = values(model)
    Turns.passed.set()
    rt.reducer.stop()
    return after, values(model), rt.reducer.counters(), told


@pytest.mark.parametrize("coordinator", ["quick", "slow"])
def test_a_member_that_is_late_takes_what_the_others_made(
    coordinator: str, caplog: pytest.LogCaptureFixture
) -> None:
    Turns.passed = threading.Event()
    config = DilocoReducerConfig(
        inner_steps=2, outer_lr=1, outer_momentum=0, round_timeout=0.05, coordinator=coordinator
    )
    results = launch(["quick", "slow"], config, be_slow)
    for after, last, _, _ in results:
        assert after == last == [-16.0] * 3, "the late steps went in"
    counted = {"quick": Counters(pushed=2, reduced=2), "slow": Counters(pushed=2, lost=2)}
    counted[coordinator] = counted[coordinator]._replace(late=2)
    assert [each[2][:5] for each in results] == [each[:5] for each in counted.values()]
    told = {"quick": results[0][3], "slow": results[1][3]}
    (lost,) = [each for each in told["slow"] if isinstance(each, GradientsLost)]
    assert (lost.gradients, lost.peer) == (2, coordinator)
    (late,) = [each for each in told[coordinator] if isinstance(each, GradientsRefused)]
    assert (late.gradients, late.sender, late.late) == (2, "slow", True)
    assert late.reason == "the round from version 0 was over: the version is 1"
    assert f"{coordinator}-reducer-coordinator goes on without slow" in caplog.text


def part(sender: str, steps: int = 1, *, stops: bool = False) -> Part:
    return Part(sender, 0, steps, stops, None)


def test_one_that_missed_a_round_is_waited_for_once_it_is_back() -> None:
    rounds = Rounds("abc", timeout=5)
    assert rounds.left(now=0) is None
    rounds.note(part("b"), 10, late=False)
    rounds.note(part("a"), 12, late=False)
    assert (rounds.left(now=12), rounds.left(now=20)) == (3, 0)
    assert not rounds.is_full()
    assert rounds.give_up() == ["c"]
    assert rounds.is_full()
    assert [each.sender for each in rounds.take()] == ["a", "b"]
    for name in "ab":
        assert not rounds.is_full()
        rounds.note(part(name), 30, late=False)
    assert rounds.is_full(), "it waits for one that did not come before"
    assert [each.sender for each in rounds.take()] == ["a", "b"]
    rounds.note(part("c"), 40, late=True)
    assert rounds.left(now=40) is None, "a late part is in no round"
    for name in "bac":
        assert not rounds.is_full()
        rounds.note(part(name), 50, late=False)
    assert rounds.is_full()
    assert [each.sender for each in rounds.take()] == ["a", "b", "c"]


def test_the_last_round_is_that_in_which_nobody_goes_on() -> None:
    rounds = Rounds("abcd", timeout=None)
    rounds.note(part("a", stops=True), 0, late=False)
    rounds.note(part("b", 0, stops=True), 0, late=False)
    assert not rounds.is_full()
    rounds.note(part("c"), 0, late=False)
    assert not rounds.is_full()
    rounds.lose("d")
    assert (rounds.is_full(), rounds.is_last()) == (True, False)
    assert [each.sender for each in rounds.take()] == ["a", "c"]
    rounds.note(part("c", stops=True), 0, late=False)
    assert (rounds.is_full(), rounds.is_last()) == (True, True)
    assert [each.sender for each in rounds.take()] == ["c"]
    assert [each.sender for each in rounds.stopped()] == ["a", "b", "c"]


def leave_early(rt: Runtime) -> tuple[list[float], Counters] | None:
    model = begun(rt, numbers())
    for step in range(1 if rt.name == "leaver" else 6):
        step_on(rt, model, draw(rt.rank, step))
    if rt.name == "leaver":
        return None
    rt.reducer.stop()
    return values(model), rt.reducer.counters()


def test_one_that_leaves_without_stop_holds_nobody_up(caplog: pytest.LogCaptureFixture) -> None:
    config = DilocoReducerConfig(inner_steps=2)
    with caplog.at_level(logging.WARNING, "pparallel_reducers"):
        members = ["a", "b", {"name": "leaver", "override": {"close_timeout": 0.05}}]
        a, b, leaver = launch(members, config, leave_early)
    assert leaver is None
    assert a[0] == b[0]
    assert [each.reduced for _, each in (a, b)] == [6, 6]
    assert "leaver left with 1 steps that nobody else has: they are lost, for stop()" in caplog.text


def lose_the_coordinator(rt: Runtime) -> Any:
    model = begun(rt, numbers())
    if rt.name == "b":
        return None
    step_on(rt, model, draw(0, 0))
    next(iter(model.parameters())).grad = draw(0, 1)
    assert rt.reducer.push(model)
    with pytest.raises(PeerLostError, match="'b' has left"):
        rt.reducer.pull(model)
    before = values(model)
    next(iter(model.parameters())).grad = draw(0, 2)
    with pytest.raises(PeerLostError, match="'b' has left"):
        rt.reducer.push(model)
    assert next(iter(model.parameters())).grad is not None, "a push that failed took gradients"
    assert values(model) == before
    with pytest.raises(PeerLostError, match="'b' has left"):
        rt.reducer.stop()
    return rt.reducer.counters()


def test_training_ends_with_the_coordinator() -> None:
    config = DilocoReducerConfig(inner_steps=2, coordinator="b")
    members = ["a", {"name": "b", "override": {"close_timeout": 0.05}}, "c"]
    a, _, c = launch(members, config, lose_the_coordinator)
    assert a[:5] == c[:5] == Counters(pushed=2, lost=2)[:5]


def fail_in_the_outer_step(rt: Runtime) -> list[str]:
    model, errors = begun(rt, numbers()), []

    def note(what: str, call: Callable[[], object]) -> None:
        try:
            call()
        except ArithmeticError as error:
            errors.append(f"{what}: {error}")

    next(iter(model.parameters())).grad = draw(0, 0)
    note("step", lambda: rt.reducer.step(model))
    rt.group().barrier()
    note("watch", rt.reducer.watch)
    note("stop", rt.reducer.stop)
    counters = rt.reducer.counters()
    assert (counters.pushed, counters.reduced, counters.lost) == (1, 0, 1)
    return errors


def test_an_outer_step_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        message = "too steep"
        raise ArithmeticError(message)

    monkeypatch.setattr(Outer, "step", fail)
    a, b, c = launch(["a", "b", "c"], DilocoReducerConfig(inner_steps=1), fail_in_the_outer_step)
    assert a == ["step: too steep", "watch: too steep", "stop: too steep"]
    assert b == c == ["step: too steep", "stop: too steep"]


def start_crew(members: Crew, steps: int, **options: object) -> None:
    program = "diloco_programs:step_with_one_that_dies"
    for name in "abc":
        reducer = {"backend": "diloco", **options}
        members.start(name, program, members.note("steps"), steps, reducer=reducer)


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("backend", ["ipc", pytest.param("zmq", marks=pytest.mark.costly)])
def test_a_killed_member_holds_nobody_up(tmp_path: Path, backend: str, steps: int) -> None:
    """After one step it has handed in nothing; after two, it waits for the round."""
    with crew(tmp_path, {"backend": backend}) as members:
        options: dict[str, Any] = {"inner_steps": 2, "outer_lr": 1, "outer_momentum": 0}
        start_crew(members, steps, **options)
        members.noted("steps")
        members.kill("c")
        members.note("steps over").touch()
        a, b = members.answer("a"), members.answer("b")
        assert not any(members.outcome(name).error for name in "ab")
    # Each step of a is by 1, of b by 2, of c by 3; c may die on the way to the first round.
    assert a[0] == b[0]
    assert a[0] in ([-3 - 3, -4 - 3] if steps == 2 else [-3 - 3])
    assert a[1][:5] == b[1][:5] == [4, 4, 0, 0, 0]


@pytest.mark.costly
def test_a_killed_coordinator_is_named(tmp_path: Path) -> None:
    with crew(tmp_path, {"backend": "ipc"}) as members:
        options = {"inner_steps": 2, "coordinator": "c"}
        start_crew(members, 1, **options)
        members.noted("steps")
        members.kill("c")
        members.note("steps over").touch()
        for name in "ab":
            assert members.answer(name).startswith("PeerLostError: member 'c' has died")


# -- what is refused ------------------------------------------------------------------------------


def diverge(rt: Runtime) -> Any:
    model = begun(rt, numbers())
    for value in (1.0, math.nan if rt.name == "b" else 3.0):
        step_on(rt, model, torch.full((3, 1), value, dtype=torch.float64))
    after = values(model)
    rt.reducer.stop()
    return after, rt.reducer.counters()


def test_what_is_not_finite_is_refused_and_the_others_go_on() -> None:
    config = DilocoReducerConfig(inner_steps=2, outer_lr=1, outer_momentum=0)
    a, b, c = launch(["a", "b", "c"], config, diverge)
    assert a[0] == b[0] == c[0] == [-4.0] * 3
    assert a[1][:5] == Counters(pushed=2, reduced=2, refused=2)[:5]
    assert b[1][:5] == Counters(pushed=2, lost=2)[:5]
    assert c[1][:5] == Counters(pushed=2, reduced=2)[:5]


def all_diverge(rt: Runtime) -> Any:
    model = begun(rt, numbers(value=5.0))
    step_on(rt, model, torch.full((3, 1), math.inf, dtype=torch.float64))
    after = values(model)
    rt.reducer.stop()
    return after


def test_where_nothing_is_finite_all_go_back() -> None:
    assert launch(2, DilocoReducerConfig(inner_steps=1), all_diverge) == [[5.0] * 3] * 2


def start_with_another_model(rt: Runtime) -> None:
    model = line(outputs=2 if rt.name == "b" else 1)
    manage(rt.reducer, model)
    if rt.name == "b":
        with pytest.raises(ValueError, match=r"it has .*'1\.weight'.*\(2, 4\).*the managed has"):
            rt.reducer.start()
        message = "as expected"
        raise KeyError(message)
    rt.reducer.start()


def test_members_with_different_models() -> None:
    with pytest.raises(KeyError, match="as expected"):
        launch(["a", "b"], DilocoReducerConfig(), start_with_another_model)


def push_a_copy(rt: Runtime) -> None:
    begun(rt, numbers())
    copy = numbers()
    next(iter(copy.parameters())).grad = draw(0, 0)
    with pytest.raises(ValueError, match="not the model that was given to manage_model"):
        rt.reducer.push(copy)
    rt.reducer.stop()


def test_only_the_managed_model_is_stepped() -> None:
    launch(2, DilocoReducerConfig(), push_a_copy)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"round_timeout": 0}, "round_timeout.*greater than 0"),
        ({"round_timeout": -1}, "round_timeout.*greater than 0"),
        ({"inner_steps": 0}, "inner_steps.*greater than or equal to 1"),
        ({"outer_lr": 0}, "outer_lr.*greater than 0"),
        ({"outer_lr": math.nan}, "outer_lr"),
        ({"outer_momentum": 1}, "outer_momentum.*less than 1"),
        ({"outer_step": 1}, "unknown key 'outer_step'"),
        ({"coordinator": "memer-1"}, "memer-1"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        pparallel.launch({"members": 2, "reducer": {"backend": "diloco", **options}}, push_a_copy)


def test_a_coordinator_that_does_not_exist() -> None:
    why = r"reducer\.coordinator: 'bb' is no member; members: a, b\. Did you mean 'b'"
    with pytest.raises(ConfigError, match=why):
        launch(["a", "b"], DilocoReducerConfig(coordinator="bb"), push_a_copy)


# -- bytes ----------------------------------------------------------------------------------------


def step_large(rt: Runtime, steps: int, rows: int) -> Any:
    model = nn.Linear(1024, rows, bias=False)
    nn.init.constant_(model.weight, 1.0)
    begun(rt, model)
    ramp = torch.arange(rows * 1024.0).view(rows, 1024) / 1024
    for _ in range(steps):
        model.weight.grad = ramp * (rt.rank + 1)
        rt.reducer.step(model)
    rt.reducer.stop()
    assert torch.allclose(model.weight, 1 - steps * 1.5 * ramp, rtol=1e-4)
    return rt.reducer.counters().sent_bytes


@pytest.mark.parametrize(
    "launcher",
    [{"backend": "thread"}, {"backend": "process", "preload": ["torch._dynamo"]}],
    ids=["threads", "processes"],
)
def test_large_models_go_in_pieces_and_are_counted(launcher: dict[str, Any]) -> None:
    """One of 10.5 MB: the last piece is a part of one, as are rounds and what stop() adds."""
    rows, rounds = 2561, 2
    config = DilocoReducerConfig(inner_steps=2, outer_lr=1, outer_momentum=0)
    job = {"members": 2, "launcher": launcher, "reducer": config}
    sent = pparallel.launch(job, step_large, (2 * rounds - 1, rows))
    size = rows * 1024 * 4
    # Each hands in, or sends, one for each round, and the coordinator what training begins with.
    assert sent == [size * (1 + rounds), size * rounds]


def test_memory_is_cut_and_joined() -> None:
    sizes = [5, 0, 12, 1]
    memory = [
        bytes(range(first, first + size)) for first, size in zip((0, 0, 50, 90), sizes, strict=True)
    ]
    pieces = cut(memory, 4)
    assert [sum(each.nbytes for each in piece) for piece in pieces] == [4, 4, 4, 4, 2]
    assert b"".join(b"".join(piece) for piece in pieces) == b"".join(memory)


def test_pieces_come_in_any_order_and_fit() -> None:
    memory = [bytes(3 * 2**20), b"\1" * 2**22, b"\2" * 7]
    pieces = cut(memory)
    draft = Draft(0, [len(each) for each in memory])
    draft.take(1, pieces[1])
    with pytest.raises(ValueError, match="1 of 2 pieces have not come"):
        draft.whole()
    with pytest.raises(ValueError, match=r"a piece of \[3145735\] bytes arrived, not of"):
        draft.take(0, [bytes(3145735)])
    draft.take(0, pieces[0])
    draft.take(0, pieces[0])
    assert draft.whole() == memory


class Moving:
    """A group whose outer parameters become others while the first pieces are fetched."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def ask_async(self, to: str, key: str, body: tuple[str, int], buffers: object) -> Future[Reply]:
        _, index = body
        version = 4 if len(self.asked) < 2 else 5
        self.asked.append(index)
        reply = Future[Reply]()
        reply.set_result(Reply(version, [bytes([version]) * (2**22 if index < 2 else 4)]))
        return reply


def test_what_is_fetched_is_of_one_version() -> None:
    layout = Layout([("weight", (2**21 + 1,), "float32", "trainable")])
    group: Any = Moving()
    desk = RemoteDesk(group, "a", Tally(Events("me"), "reducer"), None)
    weights, version = desk.weights(layout)
    assert version == 5
    assert group.asked == [0, 1, 2] * 2
    assert set(weights.trainable[torch.float32].view(torch.uint8).tolist()) == {5}


# -- compression ----------------------------------------------------------------------------------


def descend(rt: Runtime, rows: int) -> tuple[float, int, Counters]:
    """Fit a plane to points of it; return the largest error, and the bytes sent for training."""
    plane, norm = nn.Linear(64, rows, bias=False), nn.BatchNorm1d(rows, affine=False)
    nn.init.zeros_(plane.weight)
    model = begun(rt, nn.Sequential(plane, norm), 0.5)
    started = rt.reducer.counters().sent_bytes
    goal = torch.linspace(-1, 1, rows * 64).view(rows, 64)
    for _ in range(120):
        points = torch.randn(32, 64, generator=rt.streams.torch)
        made = plane(points)
        norm(made.detach())
        (made - points @ goal.T).square().mean(0).sum().div(8).backward()
        rt.reducer.step(model)
    rt.reducer.stop()
    counters = rt.reducer.counters()
    error = float((plane.weight.detach() - goal).abs().max())
    assert norm.running_var is not None
    assert abs(float(norm.running_var.mean()) - 21) < 10, "running means are not compressed"
    return error, counters.sent_bytes - started, counters


@pytest.mark.parametrize(
    ("compression", "times"),
    [
        ({"kind": "bf16"}, 1.9),
        ({"kind": "topk", "ratio": 0.1}, 4),
        ({"kind": "powersgd", "rank": 2}, 4),
    ],
    ids=lambda each: each["kind"] if isinstance(each, dict) else "",
)
def test_differences_may_be_compressed(compression: dict[str, Any], times: float) -> None:
    """What is left out is handed in later: the goal is reached all the same, in fewer bytes."""
    raw: dict[str, Any] = {"backend": "diloco", "inner_steps": 2, "outer_momentum": 0}
    job = {"members": 2, "seed": 3, "reducer": {**raw, "compression": compression}}
    results = pparallel.launch(job, descend, (32,))
    _, whole, _ = pparallel.launch({**job, "reducer": raw}, descend, (32,))[1]
    for error, _, counters in results:
        assert error < 0.02
        assert counters[:5] == (120, 120, 0, 0, 0)
    assert whole / results[1][1] > times
    assert whole == 60 * 4 * (32 * 64 + 32 * 2) + 60 * 8
