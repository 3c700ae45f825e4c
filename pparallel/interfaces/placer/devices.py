"""From what the caller names to devices with memory and power."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pparallel.errors import MissingDependencyError
from pparallel.interfaces.placer.device import Device
from pparallel.machine import gpus, memory
from pparallel.machine.cpus import idle_share

if TYPE_CHECKING:
    import torch

    from pparallel.interfaces.placer.config import PlacerConfig


def resolved(
    devices: Sequence[str | Device | torch.device] | None, config: PlacerConfig
) -> tuple[Device, ...]:
    """Return the devices to choose from, with memory and power filled in; raises as ``place``."""
    if devices is None:
        devices = [*gpus.names(), "cpu"]
    if isinstance(devices, str | Device):
        devices = [devices]
    known = [_checked(each) for each in devices]
    if not known:
        message = "there are no devices to choose from; leave them out to take what is there"
        raise ValueError(message)
    _refuse_twins(known)
    return tuple(_filled_in(each, config) for each in known)


def _checked(given: str | Device | torch.device) -> Device:
    device = given if isinstance(given, Device) else Device(str(given))
    for what, value in (("memory_mb", device.memory_mb), ("power", device.power)):
        if value is not None and not (math.isfinite(value) and value >= 0):
            message = f"device {device.name}: {what} is {value:g}; give a finite number from 0"
            raise ValueError(message)
    return replace(device, name=gpus.canonical(device.name))


def _refuse_twins(devices: Iterable[Device]) -> None:
    seen: set[str] = set()
    for each in devices:
        if each.name in seen:
            message = f"device {each.name} is named twice"
            raise ValueError(message)
        seen.add(each.name)


def _filled_in(device: Device, config: PlacerConfig) -> Device:
    power = device.power
    if power is None:
        power = config.cpu_weight if device.is_cpu else 1.0
    if device.memory_mb is not None:
        return replace(device, power=power)
    free, idle = _looked_up(device)
    if device.power is None:
        power *= idle
    return replace(device, memory_mb=free / 2**20, power=power)


def _looked_up(device: Device) -> tuple[int, float]:
    """Return the free bytes of a device that is there, and the share of it that is idle.

    Raises:
        ValueError: it is not there.
    """
    if device.is_cpu:
        return _available(), idle_share()
    there = gpus.names()
    if device.name not in there:
        message = (
            f"device {device.name} does not exist; there are: {', '.join([*there, 'cpu'])}. To"
            " plan for a machine that has it, say its memory:"
            f" Device({device.name!r}, memory_mb=...)"
        )
        raise ValueError(message)
    return gpus.free_memory(device.name), gpus.idle_share(device.name)


def _available() -> int:
    """Return the bytes of main memory that this process could have."""
    try:
        return memory.available()
    except OSError:  # not Linux
        try:
            import psutil
        except ImportError as error:
            what = "the free memory of this machine"
            raise MissingDependencyError(what, str(error), "pip install psutil") from error
        return int(psutil.virtual_memory().available)
