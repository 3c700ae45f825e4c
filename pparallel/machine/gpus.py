"""The GPUs as this process may use them: names, free memory, load, and how far apart they are."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import re
import time

logger = logging.getLogger(__name__)

CPU = "cpu"
_NAME = re.compile(r"([a-z]+)(?::(\d+))?", re.ASCII)
_COPIES = 5  #: of which the quickest counts: the others were disturbed


def canonical(name: str) -> str:
    """Return a device's only name: ``cpu``, and an index for all else; ``cuda`` is ``cuda:0``.

    Raises:
        ValueError: torch knows no device that is written so.
    """
    if (match := _NAME.fullmatch(name)) is None or match[1] == "meta":
        message = f"{name!r} is no device that holds models; write 'cpu' or, for a GPU, 'cuda:0'"
        raise ValueError(message)
    kind, index = match[1], int(match[2] or 0)
    return CPU if kind == CPU else f"{kind}:{index}"


def names() -> list[str]:
    """Return the GPUs that torch sees; none where torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        return []
    import torch

    return [f"cuda:{at}" for at in range(torch.cuda.device_count())]


def free_memory(name: str) -> int:
    """Return the bytes of GPU *name* that this process could have: free, or cached by torch."""
    import torch

    free, _ = torch.cuda.mem_get_info(name)
    return int(free + torch.cuda.memory_reserved(name) - torch.cuda.memory_allocated(name))


def idle_share(name: str) -> float:
    """Return the share of GPU *name* that did nothing lately; 1 where NVML does not tell.

    NVML is asked by way of torch, which needs the package ``nvidia-ml-py`` for it.
    """
    import torch

    try:
        pynvml = importlib.import_module("pynvml")
    except ImportError:
        return 1.0
    try:
        return 1 - torch.cuda.utilization(name) / 100
    except (ImportError, RuntimeError, pynvml.NVMLError) as error:
        logger.debug("How busy %s is cannot be told: %s", name, error)
        return 1.0


def copy_seconds(one: str, other: str, size: int) -> float:
    """Return how long it takes to copy *size* bytes from a device to another: a mean of both ways.

    Raises:
        ValueError: a device is not there.
    """
    there = [CPU, *names()]
    for name in (one, other):
        if name not in there:
            message = (
                f"how far {name} is cannot be measured, as it is not there; there are:"
                f" {', '.join(there)}"
            )
            raise ValueError(message)
    import torch

    here = torch.zeros(size, dtype=torch.uint8, device=one)
    away = torch.zeros(size, dtype=torch.uint8, device=other)
    devices = [name for name in (one, other) if name != CPU]

    def seconds(target: torch.Tensor, source: torch.Tensor) -> float:
        found = []
        for _ in range(_COPIES + 1):
            for each in devices:
                torch.cuda.synchronize(each)
            start = time.perf_counter()
            target.copy_(source)
            for each in devices:
                torch.cuda.synchronize(each)
            found.append(time.perf_counter() - start)
        return min(found[1:])

    return (seconds(away, here) + seconds(here, away)) / 2
