"""The reducer ``grad_server`` whose members do not start together: servers and clients."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
from reducer_models import Odd, check_a_step, numbers, one_weight, values, weight

import pparallel
from pparallel.errors import ClosedError, ConfigError
from pparallel.interfaces.reducer import Reducer
from pparallel.testing.patience import PATIENCE, until
from pparallel_reducers import GradServerReducerConfig
from pparallel_reducers.grad_server.level import Level
from pparallel_reducers.grad_server.reducer import GradServerReducer

if TYPE_CHECKING:
    from pparallel.builder import Runtime


def launch(members: list[Any], target: Any, *args: Any) -> list[Any]:
    return pparallel.launch({"members": members, "reducer": {"backend": "local"}}, target, args)


def part(rt: Runtime, role: Any, **options: Any) -> Reducer:
    """Return this member's part in a server, open."""
    config = GradServerReducerConfig(primary="ps", role=role, **options)
    group = rt.group().within("training")
    reducer = pparallel.build(
        config, member=rt.member, group=group, ordered_server=rt.ordered_server
    )
    reducer.open()
    return reducer


def give(model: torch.nn.Module, value: float = 1.0) -> torch.nn.Module:
    for each in model.parameters():
        each.grad = torch.full_like(each, value)
    return model


def managed(reducer: Reducer, model: torch.nn.Module) -> None:
    reducer.manage_model(model, torch.optim.SGD(model.parameters(), lr=1.0))
    reducer.start()


# -- what each may do -----------------------------------------------------------------------------


def tell_roles(rt: Runtime) -> Any:
    reducer = part(rt, "server" if rt.name in ("ps", "s") else "client", secondaries=("s",))
    told = reducer.manages, reducer.trains, reducer.hosting
    model = one_weight()
    rt.group().barrier()
    if rt.name == "ps":
        managed(reducer, model)
    if rt.name == "s":
        with pytest.raises(ClosedError, match="is not started"):
            reducer.push(give(one_weight()))
    elif rt.name == "a":
        with pytest.raises(RuntimeError, match="does not manage the model"):
            reducer.manage_model(model, torch.optim.SGD(model.parameters()))
        reducer.start()
        reducer.stop()
        assert reducer.push(give(model))  # it waits for the start
    rt.group().barrier()
    reducer.close()
    if rt.name == "a":
        for act in (reducer.push, reducer.pull):
            with pytest.raises(ClosedError, match="is not"):
                act(give(model))
    return told


def test_roles() -> None:
    assert launch(["ps", "s", "a"], tell_roles) == [
        (True, False, True),
        (False, False, True),
        (False, True, False),
    ]


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"role": "client", "max_staleness": 1}, "role"),
        ({"role": "server", "primaries": ("ps", "a")}, "role"),
    ],
)
def test_what_does_not_go_together(options: dict[str, Any], path: str) -> None:
    config = GradServerReducerConfig(**options)
    with pytest.raises(ConfigError, match=rf"\.{path}"):
        pparallel.launch(
            pparallel.RuntimeConfig(members=["ps", "a"], reducer=config), lambda rt: rt.reducer
        )


# -- secondaries that come at any time ------------------------------------------------------------


def come_in_order(rt: Runtime, order: str) -> float | None:
    """The secondary is made before the primary, before it starts, or after."""
    reducer: Reducer | None = None
    model = one_weight()
    for when in ("before", "made", "started"):
        if rt.name == "s" and order == when:
            reducer = part(rt, "server", secondaries=("s",))
        rt.group().barrier()
        if rt.name == "ps" and when == "before":
            reducer = part(rt, "server", secondaries=("s",))
        if rt.name == "ps" and when == "made":
            assert reducer is not None
            managed(reducer, model)
        rt.group().barrier()
    if rt.name == "a":
        reducer = part(rt, "client", secondaries=("s",))
        for _ in range(2):
            assert reducer.push(give(model))
    rt.group().barrier()
    assert reducer is not None
    reducer.stop()
    rt.group().barrier()
    if rt.name == "a":
        assert reducer.pull(model)
        assert reducer.pull(model), "it is taken, new or not"
    rt.group().barrier()
    reducer.close()
    return weight(model)


@pytest.mark.parametrize("order", ["before", "made", "started"])
def test_a_secondary_begins_whenever_it_comes(order: str) -> None:
    ps, _, a = launch(["ps", "s", "a"], come_in_order, order)
    assert ps == a == -2.0


# -- clients that come and go ---------------------------------------------------------------------


def come_and_go(rt: Runtime, secondaries: tuple[str, ...]) -> int:
    """Return how much this member still knows of clients, once many of them have left."""
    options = {"secondaries": secondaries, "reduce_batch_size": 2}
    reducer = None if rt.name == "a" else part(rt, "server", **options)
    if rt.name == "ps":
        assert reducer is not None
        managed(reducer, one_weight())
    rt.group().barrier()
    for _ in range(21 if rt.name == "a" else 0):
        with part(rt, "client", **options) as client:
            assert client.push(give(one_weight()))
    rt.group().barrier()
    if rt.name == "ps":
        assert reducer is not None
        reducer.stop()  # the last client has left with a gradient in a batch that was not full
    rt.group().barrier()
    if not isinstance(reducer, GradServerReducer):
        return 0
    levels = list(reducer._roles.levels())
    until(lambda: not any(map(senders, levels)), "clients that left were not forgotten")
    reducer.close()
    return sum(map(senders, levels))


def senders(level: Level) -> int:
    return sum(len(seen._last) + len(seen._count) for seen in level._seen.values())


@pytest.mark.parametrize("secondaries", [("ps",), ("s",)])
def test_nothing_is_kept_of_a_client_that_left(secondaries: tuple[str, ...]) -> None:
    assert launch(["ps", "s", "a"], come_and_go, secondaries) == [0, 0, 0]


# -- the managed model ----------------------------------------------------------------------------


def step_in_place(rt: Runtime) -> list[float] | None:
    """The managed model is the newest as soon as it is published, and so is one of many dtypes."""
    model = numbers()
    if rt.name == "ps":
        reducer = part(rt, "server", key="mine", reduce_method="sum")
        managed(reducer, model)
    rt.group().barrier()
    found = rt.ordered_server.pull("mine")
    assert found is not None
    if rt.name == "a":
        with part(rt, "client", key="mine") as client:
            assert client.push(give(model))
            rt.ordered_server.wait("mine", found[1], PATIENCE)
    rt.group().barrier()
    if rt.name == "ps":
        now = values(model)
        reducer.stop()
        reducer.close()
        return now
    return None


def test_in_place() -> None:
    assert launch(["ps", "a"], step_in_place)[0] == [-1.0] * 3


def step_odd(rt: Runtime) -> None:
    model = Odd()
    config = rt.config.reducer
    assert isinstance(config, GradServerReducerConfig)
    if rt.reducer.manages:
        rt.reducer.manage_model(model, torch.optim.SGD(model.parameters(), lr=1.0))
    rt.reducer.start()
    if rt.reducer.trains:
        model.pass_over(rt.rank)
        rt.reducer.step(model)
    rt.reducer.stop()
    check_a_step(model.state(), rt.rank if rt.reducer.trains else 0, 1.5)


def test_in_place_in_members_that_start_together() -> None:
    config = GradServerReducerConfig(reduce_batch_size=2)
    pparallel.launch(pparallel.RuntimeConfig(members=["ps", "a", "b"], reducer=config), step_odd)


# -- groups ---------------------------------------------------------------------------------------


def serve_twice(rt: Runtime) -> list[Any]:
    from pparallel.runtime.rpc import Reply

    group = rt.group()
    inner = group.within("inner")
    assert inner.get_group_name() == "world/inner"
    assert inner.get_group_members() == group.get_group_members()
    group.serve("who", lambda asked: Reply(("outer", asked.body)))
    inner.serve("who", lambda asked: Reply(("inner", asked.body)))
    group.barrier()
    found = [each.ask("a", "who", rt.rank).body for each in (group, inner)]
    group.barrier()
    return [*found, group.default_timeout]


def test_a_group_within_a_group() -> None:
    transport = {"backend": "local", "timeout": 7.0}
    config = {"members": ["a", "b"], "transport": transport, "reducer": {"backend": "local"}}
    assert pparallel.launch(config, serve_twice) == [
        [("outer", rank), ("inner", rank), 7.0] for rank in range(2)
    ]


# -- threads --------------------------------------------------------------------------------------


def push_while_it_starts(rt: Runtime) -> float | None:
    """Clients push while the secondaries, one by one, learn that the primary has started."""
    secondaries = ("s", "t")
    model = one_weight()
    if rt.name in ("ps", *secondaries):
        reducer = part(rt, "server", secondaries=secondaries, reduce_method="sum")
    rt.group().barrier()
    if rt.name == "ps":
        managed(reducer, model)
    elif rt.name not in secondaries:
        client = part(rt, "client", secondaries=secondaries)

        def push() -> None:
            mine = one_weight()
            for _ in range(5):
                assert client.push(give(mine))

        threads = [threading.Thread(target=push) for _ in range(2)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        client.close()
    rt.group().barrier()
    if rt.name == "ps":
        reducer.stop()
        assert reducer.counters().reduced == 20
        return weight(model)
    return None


def test_pushes_while_the_secondaries_begin() -> None:
    assert launch(["ps", "s", "t", "a", "b"], push_while_it_starts)[0] == -20.0
