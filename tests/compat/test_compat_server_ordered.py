"""``pparallel.compat.machin.server``: the ordered server."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest
import torch
from compat_server_programs import Shelf, repeat, run

from pparallel.compat.machin.server import (
    OrderedServerBase,
    OrderedServerSimple,
    OrderedServerSimpleImpl,
)
from pparallel.compat.machin.server.ordered_server import as_native
from pparallel.errors import ConfigError, DirectoryError, PeerLostError

if TYPE_CHECKING:
    from pparallel.builder import Runtime


class Mute:
    """A group that does nothing: a program's stand-in for one."""

    def is_member(self, target: Any = None) -> bool:
        return True

    def pair(self, *_: Any) -> None: ...

    def register(self, *_: Any) -> None: ...


def test_the_services_alone() -> None:
    server: Any = OrderedServerSimpleImpl("server", Mute(), version_depth=2, more=1)  # type: ignore[arg-type]
    assert server._push_service("a", "one", 1, None)
    assert not server._push_service("a", "other", 2, 0)
    assert server._push_service("a", "two", 2, 1)
    assert server._push_service("a", "three", -1, 2)
    assert server._pull_service("a", None) == ("three", -1)
    assert server._pull_service("a", 2) == ("two", 2)
    assert server._pull_service("a", 1) is None
    assert server._pull_service("b") is None


def test_the_base_is_abstract() -> None:
    with pytest.raises(TypeError, match="abstract"):
        OrderedServerBase()  # type: ignore[abstract]
    assert issubclass(OrderedServerSimple, OrderedServerBase)


# -- in a job -------------------------------------------------------------------------------------


def use(rt: Runtime, depth: int) -> list[Any]:
    """Push in one member; return what each of them pulls, the host too."""
    group = rt.group("group", rt.members)
    if rt.name == "ps":
        OrderedServerSimpleImpl("server", group, version_depth=depth)
    group.barrier()
    server = group.get_paired("server").to_here()
    if rt.name == "a":
        value = torch.ones(2)
        assert server.push("key", value, 1, None)
        value += 1  # the server has a copy
        assert not server.push("key", value, 3, 2)
        assert server.push("key", value, 2, 1)
        assert server.push("key", value + 1, 3, 2)
    group.barrier()
    again = group.get_paired("server").to_here()
    pulled = again.pull("key")
    pulled[0].zero_()  # it is this member's own
    group.barrier()
    older = [server.pull("key", version) for version in (3, 2, 1)]
    assert server.pull("other") is None
    return [None if found is None else (found[0].tolist(), found[1]) for found in older]


@pytest.mark.parametrize(
    ("depth", "held"),
    [
        (1, [([3, 3], 3), None, None]),
        (2, [([3, 3], 3), ([2, 2], 2), None]),
        (3, [([3, 3], 3), ([2, 2], 2), ([1, 1], 1)]),
    ],
)
def test_members_push_and_pull(depth: int, held: list[Any]) -> None:
    assert run(use, depth) == [held] * 3


def pull_by(server: Any) -> Any:
    return server.pull("key")


def send_on(rt: Runtime) -> Any:
    group = rt.group("group", rt.members)
    if rt.name == "ps":
        OrderedServerSimpleImpl("server", group)
        OrderedServerSimpleImpl("second", group)
    group.barrier()
    if rt.name != "a":
        group.barrier()
        return None
    server = OrderedServerSimple("server", group)
    assert server.push("key", "value", "v1", None)
    assert OrderedServerSimple("second", group).pull("key") is None, "servers do not mix"
    found = [group.rpc_sync(to, pull_by, args=(server,)) for to in ("ps", "a", "b")]
    found.append(pickle.loads(pickle.dumps(server)).pull("key"))
    found.append(OrderedServerSimple("server", rt.group("group")).pull("key"))
    service = group.registered_sync("server/_pull_service", args=("key",))
    group.barrier()
    return [*found, service]


def test_accessors_are_sent_on_and_made() -> None:
    _, found, _ = run(send_on)
    assert found == [("value", "v1")] * 6


def take_names(rt: Runtime) -> list[str]:
    group = rt.group("group", rt.members)
    if rt.name == "ps":
        first = OrderedServerSimpleImpl("server", group)
        assert first.accessor.push("key", 1, 1, None)
        group.pair("taken", "something else")
    group.barrier()
    refused = []
    for each in rt.members:
        for name in ("server", "taken") if each == rt.name else ():
            with pytest.raises(KeyError) as caught:
                OrderedServerSimpleImpl(name, group)
            refused.append(str(caught.value))
        group.barrier()
    assert not group.is_registered("taken/_push_service")
    assert group.get_paired("server").to_here().pull("key") == (1, 1)
    with pytest.raises(DirectoryError, match="'nobody' is not found on Group"):
        OrderedServerSimple("nobody", group).push("key", 1, 1, None)
    group.barrier()
    return refused


def test_a_name_is_taken_once() -> None:
    for refused in run(take_names):
        assert "'server/_push_service' is already registered in Group [group]" in refused[0]
        assert "'taken' is already paired to Group [group]" in refused[1]


def outlive_the_host(rt: Runtime) -> list[str]:
    group = rt.group("group", rt.members)
    if rt.name == "host":
        OrderedServerSimpleImpl("server", group)
    group.barrier()
    server, fresh = (group.get_paired("server").to_here() for _ in range(2))
    group.barrier()
    if rt.name == "host":
        return []
    told = []
    for act in (
        lambda: server.push("key", 1, 1, None),
        lambda: server.pull("key"),
        lambda: fresh.pull("key"),
    ):
        with pytest.raises(PeerLostError) as caught:
            repeat(act)
        told.append(caught.value.peer)
    return told


def test_a_server_whose_host_has_left_is_not_empty() -> None:
    members = ["first", {"name": "host", "override": {"close_timeout": 0.05}}, "a"]
    first, _, a = run(outlive_the_host, members=members)
    assert first == a == ["host"] * 3


def refuse(rt: Runtime) -> None:
    group = rt.group()
    with pytest.raises(ConfigError, match="version_depth"):
        OrderedServerSimpleImpl("server", group, version_depth=0)
    some = rt.group("some", ["ps"]) if rt.name == "ps" else None
    shared = rt.group().rpc_sync("ps", the_group) if rt.name != "ps" else None
    rt.group().barrier()
    if shared is not None:
        with pytest.raises(ValueError, match=r"'(a|b)' is not in the group: .* members, ps"):
            OrderedServerSimpleImpl("server", shared)
    assert some is None or some.is_member()


def the_group() -> Any:
    from pparallel.runtime.rpc import RpcGroup, context

    return RpcGroup(context.endpoint(), "some", ["ps"])


def test_what_is_refused() -> None:
    run(refuse)


def test_a_server_of_ones_own_is_used_as_pparallel_knows_servers() -> None:
    shelf, value = Shelf(), torch.ones(2)
    server = as_native(shelf)
    assert server.versions("key") == []
    assert server.push("key", {"w": value}, 1, 0)
    value += 1
    assert server.versions("key") == [1]
    found = server.pull("key")
    assert found is not None
    assert found[0]["w"].tolist() == [1, 1], "what is pushed is a snapshot"
    assert server.pull("key", 7) is None
    for what in ("wait", "delete"):
        with pytest.raises(TypeError, match=rf"offers push\(\) and pull\(\), and no {what}\(\)"):
            getattr(server, what)("key")
    with pytest.raises(TypeError, match=r"no keys\(\)"):
        server.keys()
    with pytest.raises(TypeError, match="is no ordered server: it needs push"):
        as_native(object())
    assert as_native(server) is server
