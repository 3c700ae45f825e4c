"""Operations through shared memory beside gloo's, each among processes of one machine.

A round lasts from the first member's beginning to the last member's end. It is of several
operations in a row, for members do not begin at the same moment.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed
from typing_extensions import override

import pparallel
from benchmarks.crews import Crew, Part, crew
from benchmarks.harness import Aim, Contest, Making, Samples, Setting
from benchmarks.members import meeting, transport_config
from pparallel.runtime.member import Member

OURS, GLOO = "shm", "gloo"
TENSORS = 60
START = 2.0**-100  #: sums of sums grow by a power of two each time, a hundred times in a round
_PRELOAD = ("pparallel_shm.collective", "torch.distributed")

Call = Callable[..., Any]


class Calls(NamedTuple):
    """The operations of one of the contenders, with torch's names and arguments."""

    rank: int
    size: int
    all_reduce: Call
    broadcast: Call
    all_gather: Call
    all_reduce_coalesced: Call
    barrier: Call


class Task(NamedTuple):
    """What all members do in a turn.

    Attributes:
        operation: the name of the call.
        nbytes: of a member's tensor, or of all its tensors together.
        times: how often.
    """

    operation: str
    nbytes: int
    times: int


class Repeated(Part):
    """One member's part: it does the same operation several times in a row."""

    def __init__(self, task: Task, calls: Calls) -> None:
        self.tasks = task.times
        self._operation, self._calls = task.operation, calls
        size, count = calls.size, task.nbytes // 4
        several = task.operation == "all_reduce_coalesced"
        self._tensors = [torch.zeros(count // TENSORS) for _ in range(TENSORS if several else 0)]
        self._tensors = self._tensors or [torch.zeros(count)]
        gathers = task.operation == "all_gather"
        self._room = [torch.zeros(count) for _ in range(size if gathers else 0)]
        self._number = 0

    @override
    def prepare(self, number: int) -> None:
        self._number = number % 5 + 1
        for each in self._tensors:
            each.fill_(START * self._number * (self._calls.rank + 1))
        self._calls.barrier()

    @override
    def run(self) -> Samples:
        call = self._call()
        for _ in range(self.tasks):
            call()
        return {}

    @override
    def check(self) -> bool:
        calls, number = self._calls, START * self._number
        if self._operation == "all_gather":
            return all(_is(each, number * (at + 1)) for at, each in enumerate(self._room))
        expected = {
            "broadcast": number,
            "barrier": number * (calls.rank + 1),
        }.get(
            self._operation, number * sum(range(1, calls.size + 1)) * calls.size ** (self.tasks - 1)
        )
        return all(_is(each, expected) for each in self._tensors)

    def _call(self) -> Callable[[], object]:
        calls, tensors = self._calls, self._tensors
        known: dict[str, Callable[[], object]] = {
            "all_reduce": partial(calls.all_reduce, tensors[0]),
            "broadcast": partial(calls.broadcast, tensors[0], 0),
            "all_gather": partial(calls.all_gather, self._room, tensors[0]),
            "all_reduce_coalesced": partial(calls.all_reduce_coalesced, tensors),
            "barrier": calls.barrier,
        }
        return known[self._operation]


def _is(tensor: Tensor, value: float) -> bool:
    return bool((tensor == value).all())


# -- the contenders -------------------------------------------------------------------------------


@contextmanager
def shm(size: int) -> Iterator[Crew]:
    """Give members of a job whose collective is `shm`."""
    config, names = transport_config("ipc"), [f"member-{each}" for each in range(size)]
    raw: dict[str, Any] = {
        "members": names,
        "transport": config,
        "collective": {"backend": "shm"},
        "reducer": {"backend": "local"},
    }
    job = pparallel.RuntimeConfig(**raw)
    with meeting(config, names) as members, ExitStack() as stack:
        opened = [partial(_shm, job, each) for each in members]
        yield stack.enter_context(crew(opened, preload=_PRELOAD))


@contextmanager
def _shm(job: pparallel.RuntimeConfig, member: Member) -> Iterator[Calls]:
    with pparallel.build(job, member=member) as rt:
        group = rt.collective
        yield Calls(
            member.rank,
            member.world_size,
            group.all_reduce,
            group.broadcast,
            group.all_gather,
            group.all_reduce_coalesced,
            group.barrier,
        )


@contextmanager
def gloo(size: int) -> Iterator[Crew]:
    """Give processes that have torch's own process group."""
    with TemporaryDirectory() as folder:
        opened = [partial(_gloo, folder, rank, size) for rank in range(size)]
        with crew(opened, preload=_PRELOAD) as found:
            yield found


@contextmanager
def _gloo(folder: str, rank: int, size: int) -> Iterator[Calls]:
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size
    )
    yield Calls(
        rank,
        size,
        distributed.all_reduce,
        distributed.broadcast,
        distributed.all_gather,
        _coalesced,
        distributed.barrier,
    )
    distributed.barrier()
    distributed.destroy_process_group()


def _coalesced(tensors: Sequence[Tensor]) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.distributed.all_reduce_coalesced`")
        distributed.all_reduce_coalesced(list(tensors))


@contextmanager
def contest(size: int, task: Task, aim: float | None, setting: Setting) -> Iterator[Contest]:
    """Have members of both do the same."""
    least = min(task.nbytes, TENSORS * 400)
    recipe = partial(
        Repeated,
        task._replace(nbytes=setting.count(task.nbytes, least), times=setting.count(task.times, 1)),
    )
    with ExitStack() as stack:
        turns = {
            name: stack.enter_context(opened(size)).turn(recipe)
            for name, opened in {OURS: shm, GLOO: gloo}.items()
        }
        yield Contest(contenders=turns, aims=[Aim(GLOO, aim)], rounds=11)


_MEGABYTE = 1 << 20
_SMALL, _LARGE, _GRADIENTS = _MEGABYTE, 64 * _MEGABYTE, 25 * _MEGABYTE

_PLANNED: Sequence[tuple[str, str, int, int, Sequence[tuple[int, float | None]]]] = (
    ("all_reduce of 4 bytes", "all_reduce", 4, 50, [(2, None), (4, None)]),
    ("all_reduce of 1 MB", "all_reduce", _SMALL, 100, [(2, 8), (4, 8)]),
    ("all_reduce of 64 MB", "all_reduce", _LARGE, 5, [(2, 4), (4, 2.5)]),
    ("broadcast of 64 MB", "broadcast", _LARGE, 5, [(2, 2), (4, 2)]),
    ("all_gather of 64 MB", "all_gather", _LARGE, 3, [(4, 6)]),
    ("60 tensors, 25 MB, coalesced", "all_reduce_coalesced", _GRADIENTS, 8, [(2, None), (4, 4)]),
    ("barrier", "barrier", 4, 300, [(2, None), (4, 12)]),
)

CONTESTS: dict[str, Making] = {
    f"{title}, world {size}": partial(contest, size, Task(operation, nbytes, times), aim)
    for title, operation, nbytes, times, worlds in _PLANNED
    for size, aim in worlds
}
