"""What this process and its workers hold after many large tensors: it must not grow.

Each reading is of a new pool through which tensors were sent and came back as they are. Pages that
several processes share are counted once, in shares.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from benchmarks.harness import Aim, Contest, Making, Samples, Setting
from benchmarks.harness.processes import descendants, memory
from benchmarks.ours import our_pool
from benchmarks.tasks import echo

GROWTH = 1.05  #: what the pages of the interpreter itself may come to


@contextmanager
def echoes(setting: Setting) -> Iterator[Contest]:
    """Compare a tenth of the calls with all of them."""
    import torch

    calls, megabytes = setting.count(1000, 10), setting.count(64, 1)
    base = torch.arange(megabytes << 18, dtype=torch.float32)

    @cache
    def readings(_round: int) -> tuple[Samples, Samples]:
        argument, found = base.clone(), []
        with our_pool(setting.backend, "torch") as pool:
            for number in range(1, calls + 1):
                argument += 1  # in place: a fresh one each time would cost ten times the call
                result = pool.apply(echo, (argument,))
                last = number in (calls // 10, calls)
                if result[-1] != argument[-1] or (last and not torch.equal(result, argument)):
                    raise ValueError(f"call {number} has a wrong result")
                if last:
                    del result
                    found.append(held())
        return found[0], found[1]

    early, late = f"after {calls // 10} calls", f"after {calls} calls"
    metrics = ("memory", "memory of this process", "memory of those below")
    yield Contest(
        contenders={
            late: lambda number: readings(number)[1],
            early: lambda number: readings(number)[0],
        },
        aims=[Aim(early, 1 / GROWTH, each) for each in metrics],
        rounds=1,
        warm_up=False,
    )


def held() -> Samples:
    """Return what is held now."""
    gc.collect()
    here, below = memory(os.getpid()), sum(map(memory, descendants()))
    return {"memory": here + below, "memory of this process": here, "memory of those below": below}


CONTESTS: dict[str, Making] = {"echoes of 64 MB": echoes}
