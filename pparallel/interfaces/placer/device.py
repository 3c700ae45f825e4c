"""Somewhere a model can be."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Device:
    """Somewhere a model can be; need not be there, where its memory is said.

    Attributes:
        name: as torch writes it: ``cpu``, ``cuda:0``.
        memory_mb: its free memory in units of 2**20 bytes; ``None``: ask the device.
        power: how much it computes compared with the others; 0: it is to have nothing, if that
            can be; ``None``: 1 for a GPU and ``cpu_weight`` for the CPU, times the share of it
            that is idle where its memory is asked for as well.
    """

    name: str
    memory_mb: float | None = None
    power: float | None = None

    @property
    def is_cpu(self) -> bool:
        """Whether it is the CPU."""
        return self.name.partition(":")[0] == "cpu"
