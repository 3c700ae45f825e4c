"""What members do whose transport has faults."""

from __future__ import annotations

from typing import Any

import numpy

import pparallel


def half(value: float) -> float:
    return value / 2


def raised(array: numpy.ndarray[Any, Any]) -> numpy.ndarray[Any, Any]:
    return array + 1


def use(rt: pparallel.Runtime) -> dict[str, Any]:
    """Make calls that are sent again when they are lost."""
    group = rt.group()
    told: dict[str, Any] = {"class": type(rt.transport).__name__, "members": rt.transport.members()}
    if rt.rank == 0:
        told["sync"] = [group.rpc_sync(1, half, args=(n,), idempotent=True) for n in range(30)]
        calls = [group.rpc_async(1, half, args=(n,), idempotent=True) for n in range(30)]
        told["async"] = [each.wait() for each in calls]
        large = numpy.zeros(500_000)
        told["large"] = float(group.rpc_sync(1, raised, args=(large,), idempotent=True).sum())
    group.barrier()
    return told
