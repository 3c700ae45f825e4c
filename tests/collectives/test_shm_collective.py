"""The collective `shm`: its suite among threads and among processes, and what else it does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar
from unittest.mock import patch

import preloads
import pytest
import shm_collective_programs as programs
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from selected_tests import only
from shm_collective_programs import told
from typing_extensions import override

import pparallel
from pparallel.builder import Runtime
from pparallel.errors import ConfigError
from pparallel.interfaces.collective import CollectiveConfig, ReduceOp
from pparallel.interfaces.launcher import LauncherConfig
from pparallel.testing import CollectiveSuite
from pparallel.testing.patience import PATIENCE
from pparallel_process import ProcessLauncherConfig
from pparallel_shm import ShmCollectiveConfig
from pparallel_shm.meeting import Meeting
from pparallel_shm.memory import Memory

SLOT = 4096  #: bytes: what is larger goes through in pieces


class TestAmongThreads(CollectiveSuite):
    @pytest.fixture
    @override
    def config(self) -> CollectiveConfig:
        return ShmCollectiveConfig()


@only(
    "test_operations",
    "test_large_tensors",
    "test_barrier",
    "test_operations_overlap",
    "test_messages",
    "test_groups",
    "test_objects",
    "test_a_lost_member",
    "test_close_wakes",
)
class TestAmongProcesses(CollectiveSuite):
    sizes: ClassVar[Sequence[int]] = (2, 3)

    @pytest.fixture
    @override
    def config(self) -> CollectiveConfig:
        return ShmCollectiveConfig()

    @pytest.fixture
    @override
    def launcher(self) -> LauncherConfig:
        return ProcessLauncherConfig(preload=preloads.MEMBERS)


def launch(
    size: int, program: Callable[..., Any], *args: Any, process: bool = False, **options: Any
) -> list[Any]:
    """Run *program* in members that are threads, or processes."""
    collective = {"backend": "shm", "slot": SLOT, **options}
    launcher = (
        {"backend": "process", "preload": preloads.MEMBERS} if process else {"backend": "thread"}
    )
    config = {"members": size, "launcher": launcher, "collective": collective}
    return pparallel.launch(config, program, args)


# -- against a reference --------------------------------------------------------------------------

STEPS = st.lists(
    st.builds(
        programs.Step,
        st.sampled_from(programs.NAMES),
        st.one_of(
            st.sampled_from([0, 1, SLOT // 8, SLOT // 4, SLOT // 4 + 1, SLOT, SLOT + 1]),
            st.integers(0, 3 * SLOT),
        ),
        st.sampled_from(programs.DTYPES),
        st.integers(0, 4),
        st.sampled_from(programs.HOWS),
        st.booleans(),
        st.booleans(),
    ),
    max_size=12,
)


@settings(max_examples=20)
@given(size=st.integers(1, 5), steps=STEPS)
def test_any_sequence_of_operations(size: int, steps: list[programs.Step]) -> None:
    assert launch(size, programs.sequences, [steps]) == [None] * size


@settings(max_examples=20)
@given(size=st.integers(2, 5), steps=STEPS)
def test_any_sequence_where_everyone_combines_a_part(size: int, steps: list[programs.Step]) -> None:
    with patch.multiple("pparallel_shm.dividing", _SMALL=0, _SMALL_FOR_PAIR=0):
        assert launch(size, programs.sequences, [steps]) == [None] * size


@settings(max_examples=8)
@given(size=st.integers(2, 5), steps=STEPS)
def test_any_sequence_where_processors_do_not_keep_the_order(
    size: int, steps: list[programs.Step]
) -> None:
    with patch("pparallel.machine.barriers.keeps_order", return_value=False) as asked:
        assert launch(size, programs.sequences, [steps]) == [None] * size
    assert asked.called


@pytest.mark.parametrize(("size", "transport"), [(2, "zmq"), (3, "ipc")])
def test_many_operations_among_processes(size: int, transport: str) -> None:
    config = {
        "members": size,
        "launcher": {"backend": "process", "preload": preloads.MEMBERS},
        "transport": {"backend": transport},
        "collective": {"backend": "shm", "slot": SLOT},
    }
    assert pparallel.launch(config, programs.at_random, (150, SLOT)) == [None] * size


def test_it_is_the_default_of_processes() -> None:
    launcher = {"backend": "process", "preload": preloads.MEMBERS}
    found = pparallel.launch({"members": 2, "launcher": launcher}, programs.groups_come_and_go)
    assert [each[0] for each in found] == [1, 1]


def test_more_members_than_cores() -> None:
    assert launch(6, programs.crowd, 20, process=True, slot="1 MiB") == [300_060.0] * 6


# -- what does not fit ----------------------------------------------------------------------------


def begin_different_things(rt: Runtime) -> list[str]:
    group, mine, last = rt.collective, torch.ones(3), rt.rank == rt.world_size - 1
    other = torch.ones(4) if last else mine
    double = mine.double() if last else mine
    threes = [torch.ones(3) for _ in range(rt.world_size)]
    fours = [torch.ones(4) for _ in range(rt.world_size)]
    lists = fours if last else threes
    found = [
        told(lambda: group.broadcast(mine, 0) if last else group.all_reduce(mine)),
        told(lambda: group.all_reduce(mine, ReduceOp.MAX if last else ReduceOp.SUM)),
        told(lambda: group.broadcast(mine, 1 if last else 0)),
        told(lambda: group.all_reduce(other)),
        told(lambda: group.all_reduce(double)),
        told(lambda: group.all_reduce_coalesced([mine.clone(), other])),
        told(lambda: group.gather(other, threes if rt.rank == 0 else None, 0)),
        told(lambda: group.scatter(other, threes if rt.rank == 0 else None, 0)),
        told(lambda: group.all_to_all(threes, lists)),
        told(lambda: group.all_gather(lists, mine)),
        told(lambda: group.reduce_scatter(mine, lists)),
        told(lambda: group.barrier() if last else group.all_reduce(mine)),
    ]
    mine.fill_(1.0)
    group.all_reduce(mine)
    assert mine.tolist() == [rt.world_size] * 3, "the group did not go on"
    return found


def test_what_does_not_fit_is_found_by_all_and_the_group_goes_on() -> None:
    found = launch(3, begin_different_things)
    assert found == [found[0]] * 3
    began = "all members of a group begin the same operations in the same order"
    four, three = "torch.float32 of shape (4,)", "torch.float32 of shape (3,)"
    assert found[0] == [
        "ValueError: rank 2 began broadcast from rank 0 where others began all_reduce by SUM:"
        f" {began}",
        f"ValueError: rank 2 began all_reduce by MAX where others began all_reduce by SUM: {began}",
        "ValueError: rank 2 began broadcast from rank 1 where others began broadcast from rank 0:"
        f" {began}",
        f"ValueError: all_reduce by SUM: what rank 2 gives, {four}, does not fit what others give,"
        f" {three}",
        "ValueError: all_reduce by SUM: what rank 2 gives, torch.float64 of shape (3,), does not"
        f" fit what others give, {three}",
        f"ValueError: all_reduce_coalesced by SUM: what rank 2 gives, {three}, {four}, does not fit"
        f" what others give, 2 x {three}",
        f"ValueError: gather to rank 0: rank 2 gives {four}, which does not fit into {three} of"
        " rank 0",
        f"ValueError: scatter from rank 0: rank 0 gives {three}, which does not fit into {four} of"
        " rank 2",
        f"ValueError: all_to_all: what rank 2 gives, {four}, which does not fit into {three} of its"
        " own, does not fit what others give, nothing",
        f"ValueError: all_gather: what rank 2 gives, {three}, which does not fit into {four} of its"
        f" own, does not fit what others give, 3 x {three}",
        f"ValueError: reduce_scatter by SUM: what rank 2 gives, {four}, which does not fit into"
        f" {three} of its own, does not fit what others give, 3 x {three}",
        f"ValueError: rank 2 began barrier where others began all_reduce by SUM: {began}",
    ]


def refuse(rt: Runtime) -> list[str]:
    elsewhere, tiny = torch.ones(3, device="meta"), torch.zeros(4, dtype=torch.float8_e5m2)
    group = rt.collective
    found = [told(lambda: group.all_reduce(elsewhere)), told(lambda: group.all_reduce(tiny))]
    group.broadcast(tiny.copy_(torch.ones(4)) if rt.rank else tiny, 1)
    assert tiny.float().tolist() == [1.0] * 4
    return found


def test_what_is_refused_before_anything_is_begun() -> None:
    elsewhere, tiny = launch(2, refuse)[0]
    assert "'shm' takes CPU tensors, not one on meta: choose the collective 'nccl'" in elsewhere
    assert tiny.startswith("ValueError: SUM does not apply to torch.float8_e5m2")


def refuse_alone(rt: Runtime) -> list[str]:
    group, here, there = rt.collective, torch.ones(3), torch.ones(3, device="meta")
    return [
        told(each)
        for each in (
            lambda: group.broadcast(there, 0),
            lambda: group.all_reduce(there),
            lambda: group.all_reduce_coalesced([here, there]),
            lambda: group.reduce(there, 0),
            lambda: group.all_gather([here], there),
            lambda: group.gather(there, [here]),
            lambda: group.scatter(here, [there]),
            lambda: group.all_to_all([there], [here]),
            lambda: group.reduce_scatter(there, [here]),
        )
    ]


def test_a_member_alone_refuses_the_same_tensors() -> None:
    found = launch(1, refuse_alone)[0]
    assert all("'shm' takes CPU tensors, not one on meta" in each for each in found), found


# -- what goes wrong ------------------------------------------------------------------------------


def come_too_late(rt: Runtime) -> list[str]:
    group = rt.collective.new_group(range(rt.world_size))
    tensor = torch.ones(3)
    found = []
    if rt.rank == 0:
        found = [told(lambda: group.all_reduce(tensor)), told(group.barrier)]
    rt.group().barrier(timeout=PATIENCE)
    if rt.rank:
        found = [told(lambda: group.all_reduce(tensor)), told(group.barrier)]
    assert group.new_group(range(rt.world_size)).all_gather_object(rt.rank) == [0, 1, 2]
    return found


def test_a_time_out_names_who_is_missing_and_ends_the_group() -> None:
    first, *late = launch(3, come_too_late, timeout=1.0)
    assert first[0] == (
        "CallTimeoutError: all_reduce by SUM: the arrival of ranks [1, 2] was not answered"
        " within 1 s"
    )
    for again in (first[1], *late[0], *late[1]):
        assert again.startswith(
            "ClosedError: the group of ranks [0, 1, 2] in 'collective' takes no"
        )
        assert "rank 0 broke all_reduce by SUM off (CallTimeoutError: " in again


def run_out_of_memory(rt: Runtime) -> str:
    return told_of_memory(lambda: rt.collective.all_reduce(torch.ones(100_000)))


def told_of_memory(operation: Callable[[], object]) -> str:
    try:
        return told(operation)
    except MemoryError as error:
        return f"MemoryError: {error}"


def test_what_fails_in_one_member_ends_the_wait_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    populate = Memory.populate

    def scarce(memory: Memory, which: int) -> None:
        if which == 1:
            raise MemoryError("there is none")
        populate(memory, which)

    monkeypatch.setattr(Memory, "populate", scarce)
    first, second, third = launch(3, run_out_of_memory)
    assert second == "MemoryError: there is none"
    for each in (first, third):
        # Who comes later begins nothing any more.
        assert each.startswith(
            ("RemoteError: MemoryError: there is none", "ClosedError: the group")
        )
        assert "all_reduce by SUM" in each


@pytest.mark.parametrize(
    ("seen", "why"),
    [({"pid": 2**22 + 1}, "No such file"), ({"descriptor": 0}, "is something else")],
    ids=["another machine's", "another file"],
)
def test_a_member_that_cannot_open_the_memory(
    monkeypatch: pytest.MonkeyPatch, seen: dict[str, int], why: str
) -> None:
    made = Meeting._made

    def elsewhere(*args: Any) -> tuple[Memory | None, dict[str, Any]]:
        memory, told = made(*args)
        return memory, {**told, **seen}

    monkeypatch.setattr(Meeting, "_made", elsewhere)
    with pytest.raises(ConfigError, match=why) as refused:
        launch(3, lambda rt: rt.collective.barrier())
    first, _, second = str(refused.value).partition(" cannot open the memory of member 'member-0'")
    assert first == (
        "collective.backend: 'shm' works among processes of one machine, and member 'member-1'"
    )
    assert "choose 'gloo'" in second


def test_memory_that_is_not_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pparallel_shm.meeting.has_room", lambda _: False)
    with pytest.raises(ConfigError, match="choose a smaller slot"):
        launch(2, lambda rt: rt.collective.barrier())


def test_a_processor_on_which_nothing_keeps_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pparallel.machine.barriers.platform.machine", lambda: "riscv64")
    with pytest.raises(ConfigError, match="no system call membarrier is known on riscv64"):
        launch(2, lambda rt: rt.collective.barrier())


# -- order ----------------------------------------------------------------------------------------


def stand_in_line(rt: Runtime) -> list[float]:
    """What is begun behind what has not been done is done after it, in this thread or another."""
    group = rt.collective
    tensor, gate = torch.ones(1000), threading.Event()
    if rt.rank == 1:
        rt.group().barrier(timeout=PATIENCE)
    works = [group.all_reduce(tensor, async_op=True) for _ in range(5)]
    if rt.rank == 0:
        assert not works[0].is_completed()  # type: ignore[union-attr]
        rt.group().barrier(timeout=PATIENCE)
    group.all_reduce(tensor)
    assert all(each is not None and each.is_completed() for each in works)
    gate.set()
    with torch.inference_mode():
        made = torch.ones(2)
        work = group.all_reduce(made, async_op=True)
        assert work is not None
        work.wait(PATIENCE)
    return [tensor[0].item(), made[0].item()]


def test_operations_are_done_in_the_order_begun() -> None:
    assert launch(2, stand_in_line) == [[64.0, 2.0]] * 2


# -- what is left ---------------------------------------------------------------------------------


def test_memory_goes_with_its_group() -> None:
    for before, within, descriptors in launch(2, programs.groups_come_and_go, process=True):
        assert (before, within) == (1, 3)
        assert descriptors <= 1


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_that_is_forked_does_not_pass_for_its_parent() -> None:
    assert launch(2, programs.fork, process=True) == [0, 0]
