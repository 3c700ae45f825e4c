from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING

import pytest
import torch
from typing_extensions import override

import pparallel
from pparallel.errors import ClosedError, ConfigError, PeerLostError, SerializationError
from pparallel.interfaces.collective import CollectiveConfig
from pparallel.interfaces.collective.work import FutureWork
from pparallel.testing import CollectiveSuite
from pparallel.testing.patience import PATIENCE
from pparallel_local import LocalCollectiveConfig
from pparallel_local.collective import place
from pparallel_local.collective.place import Room

if TYPE_CHECKING:
    from collections.abc import Callable

    from pparallel.builder import Runtime


class TestLocalCollective(CollectiveSuite):
    @pytest.fixture
    @override
    def config(self) -> CollectiveConfig:
        return LocalCollectiveConfig()


# -- in a runtime ---------------------------------------------------------------------------------


def use(rt: Runtime) -> list[str]:
    return rt.collective.all_gather_object(rt.name)


def test_it_is_the_default_of_threads() -> None:
    assert pparallel.launch({"members": ["a", "b"]}, use) == [["a", "b"]] * 2


def use_of_some(rt: Runtime) -> list[str]:
    if rt.name == "b":
        return []
    config = LocalCollectiveConfig()
    group = rt.group("pair", ["a", "c"])
    with pparallel.build(
        config, member=rt.member, group=group, name="pair", serializer=rt.serializer
    ) as pair:
        assert (pair.rank, pair.size(), list(pair.ranks)) == (rt.rank, 2, [0, 2])
        assert pair.broadcast_object(f"from {rt.name}", src=2) == "from c"
        return pair.all_gather_object(rt.name)


def test_a_collective_of_some_members() -> None:
    """Its members are those of the group that it is built with."""
    found = pparallel.launch({"members": ["a", "b", "c"]}, use_of_some)
    assert found == [["a", "c"], [], ["a", "c"]]


def test_one_member() -> None:
    with pparallel.build() as rt:
        tensor = torch.ones(3)
        rt.collective.all_reduce(tensor)
        rt.collective.barrier()
        assert tensor.tolist() == [1, 1, 1]
        with pytest.raises(ValueError, match="no other member to receive from"):
            rt.collective.recv(tensor)
    with pytest.raises(ClosedError):
        rt.collective.barrier()


def test_built_alone() -> None:
    collective = pparallel.build(LocalCollectiveConfig())
    with pytest.raises(ClosedError, match="is not open"):
        collective.barrier()
    with collective:
        assert collective.all_gather_object("alone") == ["alone"]
    with pytest.raises(ClosedError, match="is closed"):
        collective.barrier()
    with pytest.raises(ClosedError, match="is closed"):
        collective.open()


def use_two(rt: Runtime) -> tuple[float, float]:
    """The one collective begins what the other ends."""
    first, second = rt.collective, rt["second"]
    order = (first, second) if rt.rank else (second, first)
    tensors = {id(each): torch.full((2,), 10.0 * (each is first) + rt.rank) for each in order}
    works = [each.all_reduce(tensors[id(each)], async_op=True) for each in order]
    for each in works:
        assert each is not None
        each.wait(PATIENCE)
    return tensors[id(first)][0].item(), tensors[id(second)][0].item()


def test_two_collectives_of_one_job_do_not_mix() -> None:
    config = {
        "members": 2,
        "extra": {"second": {"interface": "collective", "backend": "local"}},
    }
    assert pparallel.launch(config, use_two) == [(21.0, 1.0)] * 2


def gather_functions(rt: Runtime) -> list[int]:
    outer = [rt.rank, torch.zeros(0, 3), b""]
    return [function()[0] for function in rt.collective.all_gather_object(lambda: outer)]


def test_objects_go_through_the_serializer() -> None:
    assert pparallel.launch({"members": 2}, gather_functions) == [[0, 1]] * 2
    plain = {"backend": "local", "serializer": {"backend": "pickle"}}
    with pytest.raises(SerializationError):
        pparallel.launch({"members": 2, "collective": plain}, gather_functions)


def open_late(rt: Runtime) -> str:
    if rt.rank == 1:
        return "left"
    with pytest.raises(PeerLostError, match="left before it opened 'collective'"):
        rt.collective.barrier()
    return "alone"


def test_a_member_that_never_opens() -> None:
    members = ["a", {"name": "b", "override": {"close_timeout": 0.05}}]
    assert pparallel.launch({"members": members}, open_late) == ["alone", "left"]


def test_members_that_are_not_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "enter", lambda _, __, ranks: Room(ranks))
    with pytest.raises(ConfigError, match="works among threads of one process only"):
        pparallel.launch({"members": 2}, use)


# -- what goes wrong ------------------------------------------------------------------------------


def begin_different_operations(rt: Runtime) -> None:
    tensor = torch.zeros(3)
    if rt.rank == 1:
        rt.collective.broadcast(tensor, 0)
    else:
        rt.collective.all_reduce(tensor)


def test_different_operations_are_found_out() -> None:
    with pytest.raises(
        ValueError, match=r"rank \d began .*: all members of a group begin the same"
    ):
        pparallel.launch({"members": 3}, begin_different_operations)


def test_an_operation_that_is_done_holds_nothing() -> None:
    """What frees the last of a tensor while the program ends would abort it."""
    freed: list[bool] = []

    class Held:
        def __del__(self) -> None:
            freed.append(work.is_completed())

    def operation(held: Held) -> Callable[[], bool]:
        return lambda: held is not None

    work = FutureWork(operation(Held()))
    work.run()
    assert work.wait(PATIENCE)
    assert freed == [False]


def test_an_operation_that_ends_as_its_time_out_does_has_a_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work, result = FutureWork(lambda: 7), Future.result

    def ends_too_late(future: Future[int], timeout: float | None = None) -> int:
        if timeout is None:
            return result(future)
        work.run()
        raise TimeoutError

    with monkeypatch.context() as patched:
        patched.setattr(Future, "result", ends_too_late)
        assert work.wait(0.01) == 7
