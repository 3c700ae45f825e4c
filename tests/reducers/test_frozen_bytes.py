"""What is frozen is published once, and again where it is written; all members have it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import pytest
import torch
from reducer_models import begun, launch
from torch import nn

import pparallel
from pparallel.interfaces.reducer import ReducerConfig
from pparallel_reducers import (
    AllReduceReducerConfig,
    DilocoReducerConfig,
    GradServerReducerConfig,
    LocalReducerConfig,
    ModelServerReducerConfig,
)
from pparallel_reducers.frozen import SMALL, FrozenParameters, pull_subset

if TYPE_CHECKING:
    from pparallel.builder import Runtime

FROZEN = 4 * 1000 * 1000  #: bytes
TRAINED = 4 * 1000  #: bytes
STEPS = 10


class Adapted(nn.Module):
    """A small trained part on a large frozen one, and a frozen copy of the small one."""

    def __init__(self, value: float = 0.0) -> None:
        super().__init__()
        self.base = nn.Parameter(torch.full((FROZEN // 4,), value), requires_grad=False)
        self.adapter = nn.Parameter(torch.full((TRAINED // 4,), value))
        self.target = nn.Parameter(torch.full((TRAINED // 4,), value), requires_grad=False)

    def state(self) -> list[float]:
        """Return the first number of each parameter, whose numbers are all the same."""
        assert all(torch.equal(each, each[:1].expand_as(each)) for each in self.parameters())
        return [each[0].item() for each in self.parameters()]

    def pass_over(self) -> None:
        """Have a gradient of -1."""
        self.adapter.grad = torch.full_like(self.adapter, -1.0)


LOCK_STEP = GradServerReducerConfig(max_staleness=0)
CONFIGS: dict[str, tuple[Any, ReducerConfig]] = {
    "local": (2, LocalReducerConfig()),
    "all_reduce": (2, AllReduceReducerConfig()),
    "overlap": (2, AllReduceReducerConfig(overlap=True)),
    "diloco": (2, DilocoReducerConfig(inner_steps=1)),
    "grad_server": (2, GradServerReducerConfig(max_staleness=0, dedicated=False)),
    "dedicated": (3, LOCK_STEP),
    "two primaries": (
        ["p", "q", "a", "b"],
        GradServerReducerConfig(max_staleness=0, primaries=("p", "q")),
    ),
    "model_server": (2, ModelServerReducerConfig()),
}
SERVED = [name for name in CONFIGS if name not in ("local", "all_reduce", "overlap", "diloco")]


def sent(rt: Runtime) -> tuple[int, int]:
    """Return the bytes that this member has sent when training began, and those of all steps."""
    model = begun(rt, Adapted())
    rt.reducer.pull(model)
    first = rt.reducer.counters().sent_bytes
    rt.group().barrier()
    for _ in range(STEPS if rt.reducer.trains else 0):
        model.adapter.sum().backward()
        assert rt.reducer.step(model)
    rt.group().barrier()
    steps = rt.reducer.counters().sent_bytes - first
    rt.reducer.stop()
    return first, steps


@pytest.mark.parametrize("name", CONFIGS)
def test_what_is_frozen_is_not_in_the_bytes_of_a_step(name: str) -> None:
    members, config = CONFIGS[name]
    results = launch(members, config, sent)
    first, steps = (sum(each) for each in zip(*results, strict=True))
    assert first == (0 if name == "local" else FROZEN + 2 * TRAINED)
    assert steps / STEPS <= 64 * 1024, f"{name}: {steps // STEPS} bytes per step"


def pull_late(rt: Runtime) -> list[Any]:
    """Copies are filled before the first step, in the middle, and after the end."""
    model, found = begun(rt, Adapted(5.0 if rt.rank == 0 else 7.0)), []
    for _ in range(2):
        copy = Adapted(-1.0).requires_grad_(False)  # which changes nothing that is pulled
        assert rt.reducer.pull(copy)
        found.append(copy.state())
        rt.reducer.pull(model)
        rt.group().barrier()
        if rt.reducer.trains:
            model.pass_over()
            rt.reducer.step(model)
        rt.group().barrier()
    rt.reducer.stop()
    copy = Adapted(-1.0)
    rt.reducer.pull(copy)
    return [*found, copy.state(), model.state()]


@pytest.mark.parametrize("name", SERVED)
def test_who_pulls_late_has_what_is_frozen(name: str) -> None:
    members, config = CONFIGS[name]
    for begins, middle, end, trained in launch(members, config, pull_late):
        assert begins == [5.0, 5.0, 5.0]
        assert middle[::2] == end[::2] == trained[::2] == [5.0, 5.0]
        assert 5.0 < middle[1] < end[1] == trained[1]


def follow(rt: Runtime, by_data: bool) -> tuple[list[Any], int]:
    """A hook of the optimizer has the target follow the adapter, in turns where all have one."""
    model, found = Adapted(5.0), list[Any]()
    optimizer = torch.optim.SGD([model.adapter], lr=1.0)

    def update(*_: object) -> None:
        target = model.target.data if by_data else model.target.detach()
        target.copy_(model.adapter.detach() - 1)

    optimizer.register_step_post_hook(update)
    begun(rt, model, optimizer)
    rt.reducer.pull(model)
    rt.group().barrier()
    for step in range(4):
        if rt.reducer.trains and (rt.reducer.manages is False or step % rt.world_size == rt.rank):
            rt.reducer.pull(model)
            model.pass_over()
            rt.reducer.step(model)
        rt.group().barrier()
        copy = Adapted(-1.0)
        rt.reducer.pull(copy)
        found.append(copy.state())
        rt.group().barrier()
    if rt.reducer.trains:
        rt.reducer.pull(model)
        found.append(model.state())
    rt.reducer.stop()
    return found, rt.reducer.counters().sent_bytes


@pytest.mark.parametrize("by_data", [True, False])
@pytest.mark.parametrize("name", ["dedicated", "model_server"])
def test_what_a_hook_writes_into_frozen_parameters_is_published(name: str, by_data: bool) -> None:
    members, config = CONFIGS[name]
    results = launch(members, config, follow, by_data)
    copies = [[5.0, 5.0 + step, 4.0 + step] for step in range(1, 5)]
    for found, _ in results:
        assert found[:4] == copies
        assert found[4:] in ([], copies[3:])
    assert sum(nbytes for _, nbytes in results) <= FROZEN + 4 * 64 * 1024


def overwrite(rt: Runtime) -> list[Any]:
    """A member writes into what is frozen in a model that it only pulls into."""
    model, found = begun(rt, Adapted(5.0)), []
    rt.reducer.pull(model)
    for _ in range(2):
        rt.group().barrier()
        if rt.reducer.trains:
            model.base.data.fill_(9.0)
            with torch.no_grad():
                model.target.fill_(9.0)
            model.pass_over()
            rt.reducer.step(model)
            found.append(model.state())
        rt.group().barrier()
    model.target.data.fill_(9.0)
    rt.reducer.stop()
    return [*found, model.state()]


def test_what_a_member_writes_into_frozen_parameters_is_gone_with_the_next_version() -> None:
    members, config = CONFIGS["dedicated"]
    _, *others = launch(members, config, overwrite)
    for found in others:
        assert found == [[5.0, 6.0, 5.0], [5.0, 7.0, 5.0], [5.0, 7.0, 5.0]]


def come_second(rt: Runtime) -> list[float]:
    """Both write into what is frozen, and one comes second: its write is gone."""
    model = begun(rt, Adapted(5.0))
    rt.group().barrier()
    with torch.no_grad():
        model.base.fill_(10.0 + rt.rank)
    model.pass_over()
    for rank in range(2):
        if rank == rt.rank:
            assert rt.reducer.push(model)
        rt.group().barrier()
    state = model.state()
    rt.reducer.stop()
    assert model.state() == [10.0, 7.0, 5.0]
    return state


def test_a_step_that_is_put_onto_another_has_what_that_has_frozen() -> None:
    first, second = launch(2, ModelServerReducerConfig(), come_second)
    assert first == [10.0, 6.0, 5.0]
    assert second == [10.0, 7.0, 5.0]


def write_second(rt: Runtime) -> list[float]:
    """One writes into what is frozen, after another has pushed."""
    model = begun(rt, Adapted(5.0))
    rt.group().barrier()
    if rt.rank == 1:
        model.base.data.fill_(9.0)
    model.pass_over()
    for rank in range(2):
        if rank == rt.rank:
            assert rt.reducer.push(model)
        rt.group().barrier()
    state = model.state()
    rt.reducer.stop()
    return [*state, *model.state()]


def test_who_comes_second_takes_what_is_frozen_of_the_first() -> None:
    results = launch(2, ModelServerReducerConfig(), write_second)
    assert results == [[5.0, 6.0, 5.0, 5.0, 7.0, 5.0], [5.0, 7.0, 5.0, 5.0, 7.0, 5.0]]


def change_between(rt: Runtime) -> list[Any]:
    """Between two runs parameters are frozen, unfrozen and changed."""
    model, found = Adapted(5.0 + rt.rank), []
    for run in range(2):
        optimizer = torch.optim.SGD([model.adapter, model.target], lr=1.0)
        begun(rt, model, optimizer)
        rt.reducer.pull(model)
        for _ in range(2 if rt.reducer.trains else 0):
            for each in (model.adapter, model.target):
                each.grad = torch.full_like(each, -1.0) if each.requires_grad else None
            rt.reducer.step(model)
        rt.group().barrier()
        rt.reducer.stop()
        copy = Adapted(-1.0)
        rt.reducer.pull(copy)
        assert copy.state() == model.state()
        found.append(model.state())
        rt.group().barrier()
        if run == 0:
            model.target.requires_grad_(True)
            model.adapter.requires_grad_(False)
            with torch.no_grad():
                model.base.fill_(20.0 + rt.rank)
                model.adapter.fill_(30.0 + rt.rank)
    return found


@pytest.mark.parametrize("name", SERVED)
def test_what_is_unfrozen_between_two_runs_is_trained(name: str) -> None:
    members, config = CONFIGS[name]
    gained = 4.0 if name == "model_server" else 2.0
    for first, second in launch(members, config, change_between):
        assert first == [5.0, 5.0 + gained, 5.0]
        assert second == [20.0, 30.0, 5.0 + gained]


def serve(rt: Runtime) -> list[float] | None:
    """Clients that come at any time find all in the newest version."""
    group, server = rt.group().within("training"), rt.ordered_server

    def part(role: Literal["server", "client"]) -> Any:
        config = GradServerReducerConfig(primary="ps", role=role)
        return pparallel.build(config, member=rt.member, group=group, ordered_server=server)

    model = Adapted(5.0)
    if rt.name == "ps":
        with part("server") as reducer:
            optimizer = torch.optim.SGD([model.adapter], lr=1.0)
            reducer.manage_model(model, optimizer)
            reducer.start()
            rt.group().barrier()
            rt.group().barrier()
            reducer.stop()
            rt.group().barrier()
            rt.group().barrier()
        return None
    rt.group().barrier()
    with part("client") as reducer:
        model.pass_over()
        assert reducer.push(model)
    rt.group().barrier()
    rt.group().barrier()
    copy = Adapted(-1.0).requires_grad_(False)
    with part("client") as reducer:
        assert reducer.pull(copy)
    rt.group().barrier()
    return copy.state()


def test_a_client_finds_what_is_frozen_at_any_time() -> None:
    assert launch(["ps", "a"], LocalReducerConfig(), serve)[1] == [5.0, 6.0, 5.0]


def move_away(rt: Runtime, size: int) -> list[set[str]]:
    """Tell which parameters are as published: on the same device, and on another."""
    model, weight = nn.Module(), torch.zeros(size)
    frozen = FrozenParameters(rt.ordered_server, "key")
    frozen.publish(model, {"weight": weight})
    moved = (weight, weight.to("meta"))
    return [frozen.changed_since_publish(model, {"weight": each}) for each in moved]


@pytest.mark.parametrize("size", [10, SMALL])
def test_what_is_frozen_may_move_to_another_device(size: int) -> None:
    assert launch(1, LocalReducerConfig(), move_away, size) == [[set(), {"weight"}]]


def replace_as_it_is_pulled(rt: Runtime) -> list[float]:
    """Another version comes between a pull that does not fit it and the look at what it has."""
    server, copies = rt.ordered_server, [{"a": torch.zeros(1)}]
    first, second = ({"a": torch.ones(1), "b": torch.ones(1)}, {"a": torch.full((1,), 2.0)})
    server.push("key", first, 0, -1)
    fetch = server.fetch

    def late(*args: Any) -> Any:
        server.push("key", second, 1, 0)
        return fetch(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "fetch", late)
        found = pull_subset(server, "key", {"a"}, {"a", "b"}, lambda _: copies[0])
    assert found == ({"a"}, 1)
    with pytest.raises(ValueError, match="shape"):
        pull_subset(server, "key", {"a"}, {"a"}, lambda _: {"a": torch.zeros(3)})
    return copies[0]["a"].tolist()


def test_a_version_that_comes_as_another_is_pulled_is_pulled() -> None:
    assert launch(1, LocalReducerConfig(), replace_as_it_is_pulled) == [[2.0]]
