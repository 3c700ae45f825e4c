"""``pparallel.compat.machin.server``: the server that reduces gradients."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from typing import TYPE_CHECKING, Any

import pytest
import torch
from compat_server_programs import Chain, Shelf, Subtract, give, managed, repeat, run, version
from reducer_models import Odd, check_a_step, one_weight, weight
from torch import nn

from pparallel.compat.machin.server import (
    OrderedServerSimpleImpl,
    PushPullGradServer,
    PushPullGradServerImpl,
)
from pparallel.errors import CallTimeoutError, ConfigError, PeerLostError
from pparallel.testing.patience import PATIENCE, until

if TYPE_CHECKING:
    from pparallel.builder import Runtime


# -- the example of the documentation -------------------------------------------------------------


def train(rt: Runtime, method: str, theirs: bool) -> list[float]:
    """Two clients push twice; one secondary, which is the primary too, with batches of two."""
    group = rt.group("group", rt.members)
    model = Chain()
    if rt.name == "ps":
        server = PushPullGradServerImpl(
            "server",
            group,
            primary_reducer="ps",
            secondary_reducers=["ps"],
            reduce_method=method,
            reduce_batch_size=2,
        )
        sgd = torch.optim.SGD(model.parameters(), lr=1.0)
        server.manage_model(model, Subtract(model.parameters()) if theirs else sgd)
        server.start()
        assert server.started
    group.barrier()
    if rt.name != "ps":
        accessor = group.get_paired("server").to_here()
        for _ in range(2):
            model(torch.ones(1, 1)).backward()
            assert accessor.push(model)
            assert all(each.grad is None for each in model.parameters())
    group.barrier()
    if rt.name == "ps":
        until(lambda: version(model) == 1, "no step was made")
        server.watch()
        found = server.o_server.pull("model")
        assert found is not None
        assert found[1] == 1
        server.stop()
        assert version(model) == 1, "four gradients made one step"
    group.barrier()
    if rt.name != "ps":
        give(model)
        assert accessor.pull(model)
        assert all(each.grad is None for each in model.parameters())
    group.barrier()
    return model.values()


@pytest.mark.parametrize("theirs", [False, True], ids=["torch's", "one's own"])
@pytest.mark.parametrize(("method", "left"), [("sum", [-23, -10, -5]), ("mean", [-5, -1, 1])])
def test_two_pushes_of_two_clients_make_one_step(
    method: str, left: list[float], theirs: bool
) -> None:
    assert run(train, method, theirs) == [left] * 3


# -- defaults -------------------------------------------------------------------------------------


def use_defaults(rt: Runtime) -> Any:
    """All are secondaries, with batches of four, and the first by name is the primary."""
    group = rt.group("group", rt.members)
    server = PushPullGradServerImpl("server", group)
    model = one_weight()
    if rt.name == "a":
        server.manage_model(model, torch.optim.SGD(model.parameters(), lr=1.0))
    server.start()
    group.barrier()
    accessor = group.get_paired("server").to_here()
    mine = one_weight()
    for _ in range(8):
        assert accessor.push(give(mine))
    group.barrier()
    server.stop()
    group.barrier()
    assert accessor.pull(mine)
    roles = server.primary_reducer, server.secondary_reducers
    assert (server.REDUCE_MASTER, server.REDUCE_SLAVE) == (0, 1)
    return weight(mine), roles


def test_defaults() -> None:
    assert run(use_defaults) == [(-24.0, ("a", ["a", "b", "ps"]))] * 3


@pytest.mark.parametrize("device", ["cpu:0", torch.device("cpu", 0)], ids=["str", "torch.device"])
def test_sums_are_made_where_the_option_says(device: Any) -> None:
    assert run(reduce_on, device, members=["ps"]) == [-2.0]


def reduce_on(rt: Runtime, device: Any) -> float:
    group = rt.group("group", rt.members)
    server, model = managed(group, reduce_device=device, reduce_batch_size=1)
    accessor = group.get_paired("server").to_here()
    for _ in range(2):
        assert accessor.push(give(one_weight()))
    server.stop()
    return weight(model)


def poll(rt: Runtime) -> Any:
    """A client polls for the first parameters that were reduced, of four gradients."""
    group = rt.group("group", rt.members)
    if rt.name == "ps":
        server, _ = managed(
            group, primary_reducer="ps", secondary_reducers=["ps"], reduce_batch_size=2
        )
    group.barrier()
    pulled = []
    if rt.name == "a":
        accessor = group.get_paired("server").to_here()
        mine = one_weight()
        nn.init.constant_(next(mine.parameters()), 7.0)
        pulled.append((accessor.pull(give(mine)), weight(mine)))
        assert next(mine.parameters()).grad is None
        for _ in range(3):
            assert accessor.push(give(mine)), "it was taken, though nothing is reduced yet"
            pulled.append((accessor.pull(mine), weight(mine)))
        assert accessor.o_server.pull("model") is None
        assert accessor.push(give(mine))
        until(lambda: accessor.pull(mine), "what was reduced was not published")
        pulled.append((True, weight(mine)))
        assert accessor.o_server.pull("model")[1] == 1
    group.barrier()
    if rt.name == "ps":
        server.stop()
    return pulled


def test_nothing_is_pulled_before_something_was_reduced() -> None:
    assert run(poll)[1] == [(False, 7.0)] * 4 + [(True, -4.0)]


def stop_before_a_step(rt: Runtime) -> Any:
    """A client pulls once the server has started, and once it has stopped."""
    group = rt.group("group", rt.members)
    found: list[Any] = []
    if rt.name == "ps":
        model = one_weight()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        server = PushPullGradServerImpl(
            "server", group, primary_reducer="ps", secondary_reducers=["ps"]
        )
        server.manage_model(model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5))
        server.start()
    group.barrier()
    for _ in range(2):
        if rt.name == "a":
            accessor = group.get_paired("server").to_here()
            found += [accessor.pull(one_weight()), accessor.o_server.pull("model")]
        group.barrier()
        if rt.name == "ps":
            server.stop()
            found = [optimizer.param_groups[0]["lr"]]
        group.barrier()
    return found


def test_a_server_that_stopped_before_a_step_publishes_nothing() -> None:
    assert run(stop_before_a_step)[:2] == [[1.0], [False, None] * 2]


def step_all(rt: Runtime) -> None:
    """Buffers, many dtypes, what is frozen, and a scheduler."""
    group = rt.group("group", rt.members)
    model = Odd()
    if rt.name == "ps":
        server = PushPullGradServerImpl(
            "server", group, primary_reducer="ps", secondary_reducers=["ps"], reduce_method="mean"
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        server.manage_model(model, optimizer, scheduler)
        server.start()
    group.barrier()
    if rt.name != "ps":
        model.pass_over(rt.rank)
        assert group.get_paired("server").to_here().push(model)
    group.barrier()
    if rt.name == "ps":
        server.stop()
        check_a_step(model.state(), 0, 1.5)
        assert optimizer.param_groups[0]["lr"] == 0.5
        assert all(each.grad is None for each in model.parameters())
    group.barrier()


def test_all_of_a_model_is_stepped() -> None:
    run(step_all)


# -- when who comes -------------------------------------------------------------------------------


def come_early(rt: Runtime) -> Any:
    """A client pulls, and pushes, before the server has started."""
    group = rt.group("group", rt.members)
    if rt.name == "ps":
        server = PushPullGradServerImpl(
            "server", group, primary_reducer="ps", secondary_reducers=["ps"], reduce_batch_size=1
        )
        with pytest.raises(RuntimeError, match=r"must call manage_model\(\) before start\(\)"):
            server.start()
    group.barrier()
    model = one_weight()
    if rt.name == "a":
        accessor = group.get_paired("server").to_here()
        assert not accessor.pull(give(model)), "nothing is published yet"
        assert next(model.parameters()).grad is None
        thread = threading.Thread(target=lambda: accessor.push(give(model)))
        thread.start()
    group.barrier()
    if rt.name == "a":
        thread.join(0.05)
        assert thread.is_alive(), "it does not wait for the start"
    group.barrier()
    if rt.name == "ps":
        server.manage_model(model, torch.optim.SGD(model.parameters(), lr=1.0))
        server.start()
    elif rt.name == "a":
        thread.join(PATIENCE)
        assert not thread.is_alive()
    group.barrier()
    if rt.name == "ps":
        server.stop()
        server.stop()
        with pytest.raises(RuntimeError, match="starts once only: make another"):
            server.start()
    return weight(model) if rt.name == "ps" else None


def test_a_push_waits_for_the_start() -> None:
    assert run(come_early)[0] == -1.0


def wait_in_vain(rt: Runtime) -> None:
    group = rt.group("group", rt.members)
    if rt.name == "ps":
        PushPullGradServerImpl("server", group, secondary_reducers=["ps"], primary_reducer="ps")
    group.barrier()
    if rt.name == "a":
        message = r"the start of the reducer: 'ps' is to manage a model and start\(\)"
        with pytest.raises(CallTimeoutError, match=message):
            group.get_paired("server").to_here().push(give(one_weight()))


def test_a_server_that_is_never_started() -> None:
    import pparallel

    transport = {"backend": "local", "timeout": 0.1}
    config = {"members": ["ps", "a"], "transport": transport, "reducer": {"backend": "local"}}
    pparallel.launch(config, wait_in_vain)


def come_often(rt: Runtime) -> Any:
    """Accessors come and go; each counts its gradients by itself, and none is taken for another."""
    group = rt.group("group", rt.members)
    if rt.name == "ps":
        server, model = managed(
            group, primary_reducer="ps", secondary_reducers=["ps"], reduce_batch_size=1
        )
    group.barrier()
    mine = one_weight()
    accessors = [group.get_paired("server").to_here() for _ in range(3)]
    for _ in range(2):
        for each in accessors:
            assert each.push(give(mine))
    accessors = [PushPullGradServer("server", group, "model", ["ps"], each.o_server)]
    assert accessors[0].push(give(mine))
    ends = [weakref.ref(each._reducer()) for each in accessors]
    del accessors, each
    until(lambda: gc.collect() >= 0 and ends[0]() is None, "what an accessor used stays")
    group.barrier()
    if rt.name == "ps":
        server.stop()
        return weight(model), version(model)
    return None


def test_accessors_come_and_go() -> None:
    assert run(come_often)[0] == (-21.0, 21)


def push_from_threads(rt: Runtime) -> Any:
    group = rt.group("group", rt.members)
    if rt.name == "ps":
        server, model = managed(group, primary_reducer="ps", secondary_reducers=["ps"])
    group.barrier()
    if rt.name == "a":
        accessor = group.get_paired("server").to_here()
        models = [one_weight() for _ in range(4)]

        def push(mine: nn.Module) -> None:
            for _ in range(5):
                assert accessor.push(give(mine))

        threads = [threading.Thread(target=push, args=(each,)) for each in models]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    group.barrier()
    if rt.name == "ps":
        server.stop()
        return weight(model)
    return None


def test_threads_share_an_accessor() -> None:
    assert run(push_from_threads)[0] == -20.0


# -- when who goes --------------------------------------------------------------------------------


def go_early(rt: Runtime) -> Any:
    """One secondary stops before the others; later the primary does."""
    group = rt.group("group", rt.members)
    options: dict[str, Any] = {"primary_reducer": "ps", "secondary_reducers": ["s", "ps"]}
    if rt.name == "ps":
        server, model = managed(group, **options)
    elif rt.name == "s":
        server = PushPullGradServerImpl("server", group, **options)
        server.start()
    group.barrier()
    taken = []
    if rt.name == "a":
        accessor = group.get_paired("server").to_here()
        mine = one_weight()
    for stops in ("s", "ps", None):
        if rt.name == "a":
            taken += [accessor.push(give(mine)), accessor.push(give(mine))]
        group.barrier()
        if rt.name == stops:
            server.stop()
            server.watch()
        group.barrier()
    if rt.name == "a":
        return taken, weight(mine)
    return weight(model) if rt.name == "ps" else None


def test_who_stops_hands_on_what_it_has(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "pparallel.compat.machin.server"):
        ps, _, (taken, mine) = run(go_early, members=["ps", "s", "a"])
    assert taken == [True, True, True, True, False, False]
    assert ps == mine == -4.0
    assert "was not taken: the reducer was stopped" in caplog.text


def stop_before_it_starts(rt: Runtime) -> Any:
    group = rt.group("group", rt.members)
    options: dict[str, Any] = {"primary_reducer": "ps", "secondary_reducers": ["s", "ps"]}
    if rt.name == "s":
        server = PushPullGradServerImpl("server", group, **options)
        server.stop()
        server.watch()
    group.barrier()
    if rt.name == "ps":
        server, model = managed(group, **options)
    group.barrier()
    if rt.name == "a":
        assert group.get_paired("server").to_here().push(give(one_weight()))
    group.barrier()
    if rt.name == "ps":
        server.stop()
        return weight(model)
    return None


def test_a_secondary_that_stops_before_the_start() -> None:
    assert run(stop_before_it_starts, members=["ps", "s", "a"])[0] == -1.0


def forget_to_stop(rt: Runtime) -> None:
    group = rt.group("group", rt.members)
    if rt.name == "ps":
        managed(group, primary_reducer="ps", secondary_reducers=["ps"])
    group.barrier()
    if rt.name == "a":
        assert group.get_paired("server").to_here().push(give(one_weight()))


def test_gradients_that_nobody_reduces_are_told_of(caplog: pytest.LogCaptureFixture) -> None:
    run(forget_to_stop)
    assert "ps left with 1 acknowledged gradients" in caplog.text


LEAVES = {"close_timeout": 0.05}


def outlive(rt: Runtime, leaver: str) -> Any:
    """A reducer leaves; return what became of a client's pushes and pulls, and of watching."""
    group = rt.group("group", rt.members)
    options: dict[str, Any] = {
        "primary_reducer": "ps",
        "secondary_reducers": ["s"] if leaver == "ps" else ["s", "ps"],
        "reduce_batch_size": 2,
    }
    if rt.name == "ps":
        managed(group, **options)
    elif rt.name == "s":
        server = PushPullGradServerImpl("server", group, **options)
    group.barrier()
    if rt.name == "a":
        accessor = group.get_paired("server").to_here()
        fresh = group.get_paired("server").to_here()
        mine = one_weight()
        assert accessor.push(give(mine))
    group.barrier()
    if rt.name == leaver:
        return None
    left = threading.Event()
    group.when_lost(lambda member, _: left.set() if member == leaver else None)
    assert left.wait(PATIENCE)
    if rt.name == "a" and leaver == "ps":
        peers = []
        for act in (accessor.push, accessor.pull, fresh.push, fresh.pull):
            with pytest.raises(PeerLostError) as caught:
                act(give(mine))
            peers.append(caught.value.peer)
        return peers
    if rt.name == "a":
        assert accessor.push(give(mine))
        return accessor._reducer().counters()
    if rt.name == "s":
        with pytest.raises(PeerLostError, match="ps"):
            repeat(server.watch)
        with pytest.raises(PeerLostError, match="ps"):
            server.stop()
    return None


def test_a_primary_that_is_lost() -> None:
    members = ["first", {"name": "ps", "override": LEAVES}, "s", "a"]
    assert run(outlive, "ps", members=members)[3] == ["ps"] * 4


def test_a_secondary_that_is_lost() -> None:
    members = ["ps", "b", {"name": "s", "override": LEAVES}, "a"]
    counters = run(outlive, "s", members=members)[3]
    assert (counters.pushed, counters.lost) == (2, 1)


# -- what is refused ------------------------------------------------------------------------------


def refuse(rt: Runtime) -> None:
    group = rt.group("group", rt.members)
    if rt.name == "ps":
        server, model = managed(group, primary_reducer="ps", reduce_batch_size=1)
        with pytest.raises(KeyError, match="'server/ps/counters' is already registered"):
            PushPullGradServerImpl("server", group)
    else:
        server, model = PushPullGradServerImpl("server", group, primary_reducer="ps"), one_weight()
        with pytest.raises(RuntimeError, match=f"member '{rt.name}' does not manage the model"):
            server.manage_model(model, torch.optim.SGD(model.parameters()))
    group.barrier()
    accessor = group.get_paired("server").to_here()
    with pytest.raises(ValueError, match="'weight' has no gradient"):
        accessor.push(one_weight())
    with pytest.raises(ValueError, match=r"is not like the managed one.*\(2, 1\)"):
        accessor.push(give(one_weight(extra=2)))
    assert accessor.push(give(one_weight()))
    with pytest.raises(ConfigError, match=r"'nobody' is no member; members: a, b, ps"):
        PushPullGradServerImpl("other", group, primary_reducer="nobody", o_server=Shelf())
    wrong: dict[str, Any]
    for wrong in ({"reduce_method": "max"}, {"reduce_batch_size": 0}, {"max_queue_size": 0}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            PushPullGradServerImpl("other", group, o_server=Shelf(), **wrong)
    group.barrier()
    if rt.name == "ps":
        with pytest.raises(RuntimeError, match="comes before start"):
            server.manage_model(model, torch.optim.SGD(model.parameters()))
        server.stop()
    group.barrier()
    with pytest.raises(ValueError, match=r"has shape \(1, 1\), and 'into' \(2, 1\)"):
        accessor.pull(one_weight(extra=2))


def test_what_is_refused() -> None:
    run(refuse)


def make_one_of_two(rt: Runtime) -> None:
    group = rt.group("group", rt.members)
    if rt.name == "ps":
        managed(group, primary_reducer="ps", secondary_reducers=["s"])
    elif rt.name == "b":
        neither = PushPullGradServerImpl("server", group, "model", "ps", ["s"])
        neither.start()
        neither.stop()
        neither.watch()
    group.barrier()
    if rt.name == "b":
        accessor = group.get_paired("server").to_here()
        message = "PushPullGradServerImpl 'server' is to be made in each of its reducers, s$"
        with pytest.raises(KeyError, match=message):
            accessor.push(give(one_weight()))


def test_a_reducer_that_was_not_made() -> None:
    run(make_one_of_two, members=["ps", "s", "b"])


def test_a_group_is_needed() -> None:
    server = PushPullGradServer("server", object(), "model", ["a"], Shelf())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"is no group: give what World.create_rpc_group\(\)"):
        server.pull(one_weight())


# -- ordered servers ------------------------------------------------------------------------------


def use_ones_own(rt: Runtime, shelf: Shelf) -> Any:
    group = rt.group("group", rt.members)
    server, model = managed(group, model_name="net", o_server=shelf, reduce_batch_size=1)
    accessor = group.get_paired("server").local_value()
    mine = one_weight()
    for _ in range(2):
        assert accessor.push(give(mine))
    server.stop()
    assert accessor.pull(mine)
    return weight(mine), version(model)


def test_a_server_of_ones_own() -> None:
    shelf = Shelf()
    assert run(use_ones_own, shelf, members=["ps"]) == [(-2.0, 2)]
    assert shelf.pushed == [("net", 1, 0), ("net", 2, 1)]


def test_a_chain_of_an_earlier_server_goes_on() -> None:
    shelf = Shelf()
    shelf.held["net"] = ({"weight": torch.ones(1, 1)}, 5)
    assert run(use_ones_own, shelf, members=["ps"]) == [(-2.0, 8)]
    assert shelf.pushed == [("net", 6, 5), ("net", 7, 6), ("net", 8, 7)]


def share_one(rt: Runtime) -> Any:
    """The parameters are on an ordered server of another member, and stay when the primary goes."""
    group = rt.group("group", rt.members)
    if rt.name == "b":
        OrderedServerSimpleImpl("shared", group, version_depth=5)
    group.barrier()
    o_server = group.get_paired("shared").to_here()
    if rt.name == "ps":
        server, _ = managed(
            group,
            primary_reducer="ps",
            secondary_reducers=["ps"],
            o_server=o_server,
            reduce_batch_size=1,
        )
    group.barrier()
    if rt.name == "a":
        assert group.get_paired("server").to_here().push(give(one_weight()))
    group.barrier()
    if rt.name == "ps":
        server.stop()
    group.barrier()
    return o_server.pull("model", 0), o_server.pull("model", 1)[0]["weight"].item()


def test_a_server_of_another_member() -> None:
    assert run(share_one) == [(None, -1.0)] * 3
