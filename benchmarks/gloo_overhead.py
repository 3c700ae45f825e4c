"""The collective `gloo` beside torch.distributed itself, in the same processes.

The figures are of one operation of all members, of those that each turn does one after another. At
4 bytes and one member there is nobody to wait for: what is left is what a call costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from torch import distributed
from typing_extensions import override

import pparallel
from benchmarks.crews import Part, crew
from benchmarks.harness import Aim, Contest, Making, Samples, Setting
from benchmarks.members import meeting, transport_config
from pparallel.runtime.member import Member

OURS, RAW = "gloo", "torch.distributed"
PRELOAD = ("torch._dynamo", "pparallel_torch.collective.gloo")
AT_MOST = 1.03  #: times as long as the raw operation takes
FLOATS = 250_000  #: in a megabyte


class Both(NamedTuple):
    """What one member has: ours, torch's own process group, and tensors for both.

    Both use the same memory, for where tensors happen to lie can make a tenth of a difference.

    Attributes:
        rank: its number.
        size: how many members there are.
        ours: the collective.
        tensor: what the member hands in.
        everyone: room for what all hand in.
    """

    rank: int
    size: int
    ours: Any
    tensor: torch.Tensor
    everyone: list[torch.Tensor]


class Calls(Part):
    """Does one operation many times, by one of the two.

    Args:
        kind: by which.
        operation: its name.
        tasks: how often.
        both: what the member has.
    """

    def __init__(self, kind: str, operation: str, tasks: int, both: Both) -> None:
        self.tasks = tasks
        self._kind, self._operation, self._both = kind, operation, both
        self._call = self._calls()[operation]

    @override
    def prepare(self, number: int) -> None:
        self._both.tensor.fill_(1.0 if self._operation == "all_reduce" else self._both.rank)

    @override
    def run(self) -> Samples:
        for _ in range(self.tasks):
            self._call()
        return {}

    @override
    def check(self) -> bool:
        found: dict[str, list[float]] = {
            "all_reduce": [float(self._both.size) ** self.tasks],
            "broadcast": [0.0],
            "all_gather": [float(rank) for rank in range(self._both.size)],
        }
        gathers = self._operation == "all_gather"
        tensors = self._both.everyone if gathers else [self._both.tensor]
        expected = found[self._operation]
        return all(bool((x == y).all()) for x, y in zip(tensors, expected, strict=True))

    def _calls(self) -> dict[str, Callable[[], object]]:
        tensor, everyone = self._both.tensor, self._both.everyone
        if self._kind == RAW:
            return {
                "all_reduce": lambda: distributed.all_reduce(tensor),
                "broadcast": lambda: distributed.broadcast(tensor, 0),
                "all_gather": lambda: distributed.all_gather(everyone, tensor),
            }
        ours = self._both.ours
        return {
            "all_reduce": lambda: ours.all_reduce(tensor),
            "broadcast": lambda: ours.broadcast(tensor, 0),
            "all_gather": lambda: ours.all_gather(everyone, tensor),
        }


@contextmanager
def opened(
    job: pparallel.RuntimeConfig, member: Member, folder: str, floats: int
) -> Iterator[Both]:
    """Open both in one member, with tensors of so many floats."""
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=member.rank,
        world_size=member.world_size,
    )
    with pparallel.build(job, member=member) as rt:
        tensor, *everyone = (torch.zeros(floats) for _ in range(1 + member.world_size))
        yield Both(member.rank, member.world_size, rt.collective, tensor, everyone)
        distributed.barrier()
    distributed.destroy_process_group()


@contextmanager
def overhead(
    operation: str, size: int, floats: int, tasks: int, rounds: int, setting: Setting
) -> Iterator[Contest]:
    """Have all members do an operation, by ours and by torch itself in turn."""
    floats, tasks = min(floats, setting.count(floats, 1000)), setting.count(tasks, 1)
    names = tuple(f"m{rank}" for rank in range(size))
    config = transport_config("ipc")
    job = pparallel.RuntimeConfig(
        members=list(names),
        launcher={"backend": "process"},  # that is where the members live, whoever starts them
        transport=config,
        collective={"backend": "gloo"},
        reducer={"backend": "local"},
    )
    with TemporaryDirectory() as folder, meeting(config, names) as members:
        clients = [partial(opened, job, each, folder, floats) for each in members]
        with crew(clients, preload=PRELOAD) as found:
            contenders = {
                kind: found.turn(partial(Calls, kind, operation, tasks)) for kind in (OURS, RAW)
            }
            aim = Aim(RAW, None, "cpu") if size == 1 else Aim(RAW, 1 / AT_MOST)
            pins = ("one", "two") if size == 1 else ("two",)
            yield Contest(contenders=contenders, aims=[aim], pins=pins, rounds=rounds)


_OPERATIONS = ("all_reduce", "broadcast", "all_gather")
# One operation takes a third longer than another of its kind: only many rounds tell 3 % apart.
_SIZES = {"1 MB": (FLOATS, 8, 801), "64 MB": (64 * FLOATS, 1, 201)}

CONTESTS: dict[str, Making] = {
    **{
        f"{operation} of 4 B, 1 member": partial(overhead, operation, 1, 1, 4000, 21)
        for operation in _OPERATIONS
    },
    **{
        f"{operation} of {name}, {size} members": partial(overhead, operation, size, *sizes)
        for operation in _OPERATIONS
        for name, sizes in _SIZES.items()
        for size in (2, 4)
    },
}
