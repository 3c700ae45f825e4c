"""Groups: references, names, barriers, and groups of some members."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from pparallel.errors import CallTimeoutError, ClosedError, DirectoryError
from pparallel.runtime.rpc import RpcGroup
from pparallel.testing.patience import PATIENCE, until
from pparallel.testing.threads import in_threads
from pparallel.testing.transport.base import Run, TransportTests, first_member
from pparallel.testing.transport.called import (
    Holder,
    add,
    bound_group,
    kept_values,
    note,
    noted,
    read_ref,
)

if TYPE_CHECKING:
    from pparallel.builder import Runtime


@first_member
def references(group: RpcGroup) -> None:
    ref = group.remote(1, Holder, args=(5,))
    assert (ref.owner_name(), ref.owner(), ref.is_owner()) == ("m1", 1, False)
    assert ref.rpc_sync().add(2) == 7
    assert ref.rpc_async().add(2).wait() == 9
    assert ref.remote().add(2).to_here() == 11
    assert ref.to_here().value == 11
    assert ref.confirmed_by_owner()
    with pytest.raises(RuntimeError, match="to_here"):
        ref.local_value()
    assert group.rpc_sync(2, read_ref, args=(ref,)).value == 11
    assert group.rpc_sync(1, read_ref, args=(ref,)).value == 11
    passed = group.remote(2, read_ref, args=(group.remote(1, add, args=(20, 3)),))
    assert passed.to_here() == 23
    del ref, passed
    until(lambda: group.rpc_sync(1, kept_values) == 0, "a value nobody holds was kept")


def pairs_and_services(rt: Runtime) -> None:
    group = rt.group()
    group.barrier(PATIENCE)
    if rt.rank == 1:
        group.pair("holder", Holder(1))
        group.register("add", add)
    group.barrier(PATIENCE)
    if rt.rank == 0:
        assert group.is_paired("holder")
        assert group.get_paired("holder").to_here().value == 1
        refused: list[tuple[str, Callable[[], object]]] = [
            ("already paired to Group", lambda: group.pair("holder", 2)),
            ("not paired to", lambda: group.unpair("holder")),
            ("not found on Group", lambda: group.get_paired("nothing")),
            ("already registered in Group", lambda: group.register("add", add)),
            ("not registered in", lambda: group.deregister("add")),
        ]
        for message, act in refused:
            with pytest.raises(DirectoryError, match=message):
                act()
        assert group.registered_sync("add", args=(1, 2)) == 3
        assert group.registered_async("add", kwargs={"a": 1, "b": 4}).wait() == 5
        assert group.registered_remote("add", args=(3, 4)).to_here() == 7
    group.barrier(PATIENCE)
    if rt.rank == 1:
        group.unpair("holder")
        group.deregister("add")
    group.barrier(PATIENCE)
    if rt.rank == 2:
        group.register("add", max)
    group.barrier(PATIENCE)
    if rt.rank == 0:  # it remembers where the service was
        assert not group.is_paired("holder")
        assert group.registered_async("add", args=(1, 2)).wait() == 2
        assert group.registered_sync("add", args=(1, 2)) == 2
    group.barrier(PATIENCE)


def groups(rt: Runtime) -> str | None:
    if rt.rank == 2:
        with pytest.raises(ValueError, match="is not in group"):
            rt.group("pair", rt.members[:2])
        rt.group().barrier(PATIENCE)
        return None
    pair = rt.group("pair", rt.members[:2])
    assert pair.get_group_members() == sorted(rt.members[:2])
    assert (pair.size(), pair.is_member(), pair.is_member(rt.members[2])) == (2, True, False)
    assert rt.group("pair") is pair
    pair.barrier(PATIENCE)
    pair.register(f"from {rt.rank}", add)
    assert not rt.group().is_registered(f"from {rt.rank}")
    received: RpcGroup = pair.rpc_sync(rt.members[1 - rt.rank], bound_group, args=(pair,))
    assert received.get_cur_name() == rt.name
    pair.barrier(PATIENCE)
    pair.destroy()
    with pytest.raises(ClosedError, match="destroyed"):
        pair.rpc_sync(0, add, args=(1, 1))
    rt.group().barrier(PATIENCE)
    again = rt.group("pair", rt.members[:2])
    assert not again.is_registered(f"from {rt.rank}")
    again.barrier(PATIENCE)
    return again.get_group_name()


def barriers(rt: Runtime, rounds: int) -> None:
    group = rt.group()
    if rt.rank == 0:
        with pytest.raises(CallTimeoutError):
            group.barrier(timeout=0.02)
        group.register("go", add)
    until(lambda: group.is_registered("go"), "the first member did not go on")
    for n in range(rounds):
        note(n)
        group.barrier(PATIENCE)
        for name in rt.members:
            assert len(group.rpc_sync(name, noted)) == n + 1, "a barrier let a member pass"
        group.barrier(PATIENCE)

    def meet(_: int) -> None:
        for _ in range(rounds):
            group.barrier(PATIENCE)

    in_threads(3, meet)


class GroupTests(TransportTests):
    """Tests of what members do together."""

    def test_references(self, run: Run) -> None:
        run(references, members=3)

    def test_pairs_and_services(self, run: Run) -> None:
        run(pairs_and_services, members=3)

    def test_groups(self, run: Run) -> None:
        assert run(groups, members=3) == ["pair", "pair", None]

    def test_barriers(self, run: Run) -> None:
        run(barriers, 20, members=3)
