"""``pparallel.compat.machin.server``: the server of whole models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from compat_server_programs import Chain, Shelf, give, run, version
from reducer_models import Odd, one_weight, weight

from pparallel.compat.machin.server import PushPullModelServer, PushPullModelServerImpl

if TYPE_CHECKING:
    from torch import nn

    from pparallel.builder import Runtime


def add(model: nn.Module) -> None:
    with torch.no_grad():
        for each in model.parameters():
            each.add_(1)


def share(rt: Runtime) -> list[float]:
    """As a program would: one member serves, one pushes ten times, one pulls what came of it."""
    group = rt.group("group", rt.members)
    if rt.name == "ps":
        PushPullModelServerImpl("server", group)
    group.barrier()
    server = group.get_paired("server").to_here()
    model = Chain()
    if rt.name == "a":
        assert not server.pull(model), "there is nothing yet"
        for count in range(10):
            add(model)
            assert server.push(model)
            assert model.pp_version == count + 1
    group.barrier()
    assert server.pull(model)
    assert model.pp_version == 10
    group.barrier()
    return model.values()


def test_members_share_a_model() -> None:
    assert run(share) == [[11, 12, 13]] * 3


def test_who_comes_second_takes_what_came_first() -> None:
    server = PushPullModelServer("model", Shelf())
    first, second = one_weight(1.0), give(one_weight(2.0), 7.0)
    assert server.push(first)
    assert not server.push(second)
    assert (weight(second), version(second)) == (1.0, 1)
    assert next(second.parameters()).grad is not None, "gradients stay"
    add(second)
    assert server.push(second)
    assert (server.pull(first), weight(first), version(first)) == (True, 2.0, 2)


def test_who_comes_second_may_keep_its_own() -> None:
    server = PushPullModelServer("model", Shelf())
    assert server.push(one_weight(1.0))
    second = one_weight(2.0)
    assert not server.push(second, pull_on_fail=False)
    assert (weight(second), version(second)) == (2.0, 0)


def test_a_model_ahead_of_the_server_takes_what_is_there() -> None:
    server, model = PushPullModelServer("model", Shelf()), one_weight(1.0)
    assert server.push(model)
    model.pp_version = 99  # type: ignore[assignment]
    add(model)
    assert server.pull(model)
    assert (weight(model), version(model)) == (1.0, 1)


def test_all_of_a_model_is_shared() -> None:
    server, model, other = PushPullModelServer("odd", Shelf()), Odd(), Odd()
    model.pass_over(3)
    add_to = model.state()
    assert server.push(model)
    assert server.pull(other)
    for name, each in other.state().items():
        if name != "cache":  # which is no part of a model's state
            assert torch.equal(each, add_to[name]), name


def test_no_server_was_given() -> None:
    server = PushPullModelServer("model")
    for act in (server.push, server.pull):
        with pytest.raises(ValueError, match="no ordered server was given"):
            act(one_weight())


def use_ones_own(rt: Runtime, shelf: Shelf) -> Any:
    group = rt.group("group", rt.members)
    server = PushPullModelServerImpl("server", group, "net", shelf)
    accessor = group.get_paired("server").local_value()
    return accessor.push(one_weight(5.0)), server.o_server is shelf


def test_a_server_of_ones_own() -> None:
    shelf = Shelf()
    assert run(use_ones_own, shelf, members=["ps"]) == [(True, True)]
    assert shelf.pushed == [("net", 1, 0)]
