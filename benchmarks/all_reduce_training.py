"""Synchronous training in four processes: the means of gradients alone, and whole steps.

A turn lasts from the first member's beginning to the last member's end. In the first contest the
optimizer only keeps what it is to step on; in the second all have the same network and optimizer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial

from benchmarks.all_reduce_training_ours import averagers, collectives, trainers
from benchmarks.all_reduce_training_parts import Averages, Steps
from benchmarks.all_reduce_training_peers import averagers as torchs
from benchmarks.all_reduce_training_peers import coalesced, data_parallel, one_by_one
from benchmarks.crews import Crew, Recipe
from benchmarks.harness import Aim, Contest, Making, Setting

SHM, GLOO = "all_reduce on shm", "all_reduce on gloo"
SHM_OVERLAP, GLOO_OVERLAP = f"{SHM}, overlap", f"{GLOO}, overlap"
COALESCED, ONE_BY_ONE = "gloo, coalesced", "gloo, one by one"
DDP = "DistributedDataParallel on gloo"

Openings = Mapping[str, AbstractContextManager[Crew]]


@contextmanager
def means(megabytes: int, setting: Setting) -> Iterator[Contest]:
    """Have four members make the means of 60 gradients."""
    megabytes = setting.count(megabytes, 1)
    openings = {
        SHM: averagers("shm", megabytes),
        GLOO: averagers("gloo", megabytes),
        COALESCED: torchs(coalesced, megabytes),
        ONE_BY_ONE: torchs(one_by_one, megabytes),
    }
    aims = [Aim(COALESCED, 4), Aim(ONE_BY_ONE, 4, ours=GLOO), Aim(COALESCED, 1, ours=GLOO)]
    with _contest(openings, partial(Averages, setting.count(4, 1)), aims) as found:
        yield found


@contextmanager
def steps(layers: int, setting: Setting) -> Iterator[Contest]:
    """Have four members train."""
    layers = setting.count(layers, 1)
    openings = {
        SHM: trainers("shm", False, layers),
        SHM_OVERLAP: trainers("shm", True, layers),
        GLOO: trainers("gloo", False, layers),
        GLOO_OVERLAP: trainers("gloo", True, layers),
        DDP: data_parallel(layers),
    }
    aims = [Aim(DDP, 1 / 1.1, ours=each) for each in openings if each != DDP]
    with _contest(openings, partial(Steps, setting.count(4, 1)), aims) as found:
        yield found


@contextmanager
def _contest(openings: Openings, recipe: Recipe, aims: Sequence[Aim]) -> Iterator[Contest]:
    left_out = {} if "gloo" in collectives() else dict.fromkeys((GLOO, GLOO_OVERLAP), "no gloo")
    with ExitStack() as stack:
        contenders = {
            name: stack.enter_context(opened).turn(recipe)
            for name, opened in openings.items()
            if name not in left_out
        }
        present = [aim for aim in aims if (aim.ours or SHM) in contenders]
        yield Contest(contenders=contenders, aims=present, rounds=11, left_out=left_out)


CONTESTS: dict[str, Making] = {
    "60 gradients of 25 MB": partial(means, 25),
    "a training step of 24 MB": partial(steps, 2),
}
