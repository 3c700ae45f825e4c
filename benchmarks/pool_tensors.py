"""One tensor to a worker and one back, beside torch's pools, pickled arrays and one bare copy.

The argument is made afresh for each call, beside the clock. A call ends when the caller has read
the last element; then the whole result is compared.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Aim, Contest, Making, Setting, timed
from benchmarks.harness.contest import Turn
from benchmarks.ours import our_pool
from benchmarks.peers import stock_pool, torch_pool
from benchmarks.tasks import add_one, echo

if TYPE_CHECKING:
    import torch

FLOOR = "one copy into warm shared memory"
STRATEGIES = ("file_descriptor", "file_system")
Function = Callable[[Any], Any]


@contextmanager
def tensors(
    function: Function, megabytes: int, aims: list[Aim], setting: Setting
) -> Iterator[Contest]:
    """Open all contenders for one function and size."""
    import torch

    pins = ("one", "apart")
    calls = setting.count(16, 2) if megabytes == 1 else 1
    megabytes = setting.count(megabytes, 1)
    base = torch.arange(megabytes << 18, dtype=torch.float32)

    def turn(call: Function, before: Callable[[], None] = lambda: None) -> Turn:
        def prepare(number: int) -> torch.Tensor:
            before()
            return base + number

        def right(argument: torch.Tensor, result: torch.Tensor) -> bool:
            return torch.equal(result, function(argument) if call is not copied else argument)

        return timed(partial(_read, call), prepare, right, calls=calls)

    copied = _copier(base)
    with ExitStack() as stack:
        torch_pools = {each: stack.enter_context(torch_pool(each)) for each in STRATEGIES}
        arrays = stack.enter_context(stock_pool("torch"))
        ours = stack.enter_context(our_pool(setting.backend, "torch"))
        contenders = {"ours": turn(lambda tensor: ours.apply(function, (tensor,)))}
        for strategy, pool in torch_pools.items():
            call = partial(_applied, pool, function)
            set_strategy = partial(torch.multiprocessing.set_sharing_strategy, strategy)
            contenders[f"torch, {strategy}"] = turn(call, set_strategy)
        contenders["numpy, multiprocessing.Pool"] = turn(
            lambda tensor: torch.from_numpy(arrays.apply(function, (tensor.numpy(),)))
        )
        contenders[FLOOR] = turn(copied)
        yield Contest(contenders=contenders, aims=aims, pins=pins, rounds=9)


def _read(call: Function, tensor: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = call(tensor)
    result[-1].item()
    return result


def _applied(pool: Any, function: Function, tensor: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = pool.apply(function, (tensor,))
    return result


def _copier(like: torch.Tensor) -> Function:
    """Return what copies a tensor into shared memory, the same each time, and returns that."""
    import torch

    shared = mmap.mmap(-1, like.nbytes)
    warm = torch.frombuffer(shared, dtype=like.dtype)
    warm.copy_(like)
    return warm.copy_


def _aims(times: float, metric: str, *further: Aim) -> list[Aim]:
    return [*(Aim(f"torch, {each}", times, metric) for each in STRATEGIES), *further]


CONTESTS: dict[str, Making] = {
    "64 MB as it is": partial(tensors, echo, 64, _aims(6, "wall", Aim(FLOOR, 1 / 1.3))),
    "64 MB, x + 1": partial(
        tensors, add_one, 64, _aims(6, "wall", Aim("numpy, multiprocessing.Pool", 30))
    ),
    "1 MB as it is": partial(tensors, echo, 1, _aims(4, "p50")),
    "1 MB, x + 1": partial(tensors, add_one, 1, _aims(4, "p50")),
}
