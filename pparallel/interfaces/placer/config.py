"""What every placer is told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from pparallel.config import BackendConfig

if TYPE_CHECKING:
    from pparallel.interfaces.placer.placer import Placer  # noqa: F401 - named by its base

Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class PlacerConfig(BackendConfig["Placer"], frozen=True):
    """What every placer is told.

    Attributes:
        model_size_multiplier: how many times its parameters and buffers a model needs; 2 leaves
            room for gradients.
        max_mem_ratio: share of a device's memory that models may use.
        cpu_weight: power of the CPU, where that of a GPU is 1.
        connection_weight: weight of keeping near what exchanges much.
        complexity_match_weight: weight of spreading size as power is spread.
        gpu_gpu_distance: distance between two GPUs.
        cpu_gpu_distance: distance between the CPU and a GPU.
        distances: distance between two devices, by the name of one and then of the other, where it
            is not that of their kinds.
        measure_distances: take as distance how long it takes to copy memory from device to device;
            the devices must be there. What ``distances`` says goes before.
    """

    interface: ClassVar[str] = "placer"
    default_backend: ClassVar[str] = "exact"
    model_size_multiplier: float = Field(default=2, gt=0, allow_inf_nan=False)
    max_mem_ratio: float = Field(default=0.5, gt=0, le=1)
    cpu_weight: Weight = 0
    connection_weight: Weight = 2
    complexity_match_weight: Weight = 1
    gpu_gpu_distance: Weight = 1
    cpu_gpu_distance: Weight = 10
    distances: dict[str, dict[str, Weight]] = Field(default_factory=dict)
    measure_distances: bool = False
