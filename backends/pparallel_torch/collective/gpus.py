"""Whether this machine has GPUs, as far as that can be seen without torch."""

from __future__ import annotations

from pathlib import Path

#: What NVIDIA's driver makes for each GPU, WSL's stand-in for all, and what AMD's driver makes.
_SIGNS = ("nvidia[0-9]*", "dxg", "kfd")


def has_gpus(devices: Path = Path("/dev")) -> bool:
    """Return whether a driver offers a GPU; whether torch can use it, only torch knows."""
    return any(any(devices.glob(each)) for each in _SIGNS)
