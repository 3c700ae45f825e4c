"""The default algorithms of collectives, over the messages of the local one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
import torch
from selected_tests import only
from torch import Tensor
from typing_extensions import override

import pparallel
from pparallel.errors import SerializationError
from pparallel.interfaces.collective import Collective, CollectiveConfig, Operation, Work, is_plain
from pparallel.testing import CollectiveSuite
from pparallel_local import LocalCollectiveConfig
from pparallel_local.collective import LocalCollective

if TYPE_CHECKING:
    from pparallel.builder import Runtime


@pytest.fixture(autouse=True)
def _default_algorithms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalCollective, "operation", Collective.operation)
    for each in ("encode_object", "decode_object"):
        monkeypatch.setattr(LocalCollective, each, getattr(Collective, each))


@only(
    "test_operations",
    "test_multigpu_forms",
    "test_strides",
    "test_views",
    "test_unusual_forms",
    "test_unusual_dtypes",
    "test_tensors_that_cannot_be_sent",
    "test_means_of_large_values",
    "test_large_tensors",
    "test_all_reduce_is_the_same_everywhere",
    "test_barrier",
    "test_what_arrives_is_its_own",
    "test_operations_overlap",
    "test_a_handle_is_not_done_before_its_operation",
    "test_objects",
    "test_an_object_that_cannot_be_sent",
    "test_an_operation_that_does_not_fit",
)
class TestDefaultAlgorithms(CollectiveSuite):
    @pytest.fixture
    @override
    def config(self) -> CollectiveConfig:
        return LocalCollectiveConfig()


#: How many messages an operation of eight members sends, at most, from one of them.
MOST_SENT: dict[str, tuple[int, Callable[[Collective], object]]] = {
    "broadcast": (3, lambda group: group.broadcast(torch.zeros(3, 4).T, 5)),
    "reduce": (1, lambda group: group.reduce(torch.zeros(3, 4).T, 5)),
    "all_reduce": (3, lambda group: group.all_reduce(torch.zeros(3, dtype=torch.complex64).conj())),
    "barrier": (3, lambda group: group.barrier()),
    "gather": (1, lambda group: group.gather(torch.zeros(3), _room(group, 5), 5)),
    "all_gather": (7, lambda group: group.all_gather(list(torch.zeros(8, 3)), torch.zeros(3))),
}


def _room(group: Collective, root: int) -> list[Tensor] | None:
    return [torch.zeros(3) for _ in range(8)] if group.rank == root else None


class Watched(Operation):
    """Counts what it sends and looks at it."""

    sent: Counter[int]

    @override
    def send(self, tensor: Tensor, to: int) -> Work[None]:
        self.sent[self.me] += 1
        return super().send(tensor, to)


def run(rt: Runtime, name: str) -> None:
    MOST_SENT[name][1](rt.collective)


@pytest.mark.parametrize("name", MOST_SENT)
def test_messages_are_few_and_plain(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend is given plain tensors only, and members share the sending."""
    sent: Counter[int] = Counter()
    monkeypatch.setattr(Watched, "sent", sent, raising=False)

    def operation(group: LocalCollective, tag: int) -> Operation:
        return Watched(group, tag, group.ranks, group.rank)

    def plain_only(method: Callable[..., Work[object]]) -> Callable[..., Work[object]]:
        def call(group: Collective, tensor: Tensor, rank: int, tag: int = 0) -> Work[object]:
            assert is_plain(tensor)
            return method(group, tensor, rank, tag)

        return call

    monkeypatch.setattr(LocalCollective, "operation", operation)
    for method in ("isend", "irecv"):
        monkeypatch.setattr(LocalCollective, method, plain_only(getattr(LocalCollective, method)))
    pparallel.launch({"members": 8}, run, [name])
    assert max(sent.values()) == MOST_SENT[name][0]
    assert sum(sent.values()) == {"all_gather": 56, "all_reduce": 14, "barrier": 24}.get(name, 7)


def test_an_object_that_cannot_be_rebuilt() -> None:
    with pparallel.build(LocalCollectiveConfig()) as group:
        with pytest.raises(SerializationError, match="a received object cannot be read"):
            group.decode_object(b"nonsense")
        assert group.decode_object(group.encode_object([1])) == [1]
