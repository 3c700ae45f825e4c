"""Placer: assign models to devices."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import Field
from typing_extensions import override

from pparallel.config import BackendConfig
from pparallel.interfaces.resource import Resource

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, slots=True)
class Device:
    """Somewhere a model can be.

    Attributes:
        name: as torch writes it: ``cpu``, ``cuda:0``.
        memory_mb: its free memory in units of 2**20 bytes; ``None``: ask the device.
        power: how much it computes compared with the others; 0: it is to have nothing, if that
            can be.
    """

    name: str
    memory_mb: float | None = None
    power: float = 1.0

    @property
    def is_cpu(self) -> bool:
        """Whether it is the CPU."""
        return self.name.partition(":")[0] == "cpu"


@dataclass(frozen=True, slots=True)
class Placement:
    """Which model goes where, and how good that is.

    Attributes:
        models: the models' names, in the order given.
        assignment: the device of each model.
        sizes_mb: each model's estimated size in units of 2**20 bytes.
        devices: what there was to choose from.
        cost: the sum of the terms.
        terms: each term of the cost, weighted, by name.
        bound: no placement costs less; ``None`` if the backend proves nothing.
    """

    models: tuple[str, ...]
    assignment: tuple[str, ...]
    sizes_mb: tuple[float, ...]
    devices: tuple[Device, ...]
    cost: float
    terms: Mapping[str, float] = field(default_factory=dict)
    bound: float | None = None

    def __post_init__(self) -> None:
        if not len(self.models) == len(self.assignment) == len(self.sizes_mb):
            message = (
                f"{len(self.models)} models, {len(self.assignment)} devices assigned and"
                f" {len(self.sizes_mb)} sizes do not fit together"
            )
            raise ValueError(message)
        unknown = set(self.assignment) - {each.name for each in self.devices}
        if unknown:
            message = f"assigned to {', '.join(sorted(unknown))}, not among the devices"
            raise ValueError(message)

    @property
    def gap(self) -> float | None:
        """How far the cost may be above the best, as a share of it; 0 is proven best."""
        if self.bound is None:
            return None
        above = max(0.0, self.cost - self.bound)
        return above / abs(self.cost) if above else 0.0

    def explain(self) -> str:
        """Return a table of the devices with what is on them, and what the cost consists of."""
        rows = [("device", "models", "MB", "of MB", "power")]
        for device in self.devices:
            here = [at for at, name in enumerate(self.assignment) if name == device.name]
            rows.append(
                (
                    device.name,
                    ", ".join(self.models[at] for at in here) or "-",
                    f"{sum(self.sizes_mb[at] for at in here):.1f}",
                    "?" if device.memory_mb is None else f"{device.memory_mb:.1f}",
                    f"{device.power:g}",
                )
            )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        terms = " + ".join(f"{value:.6g} ({name})" for name, value in self.terms.items())
        lines.append(f"cost {self.cost:.6g}" + (f" = {terms}" if terms else ""))
        if self.bound is not None:
            lines.append(f"no placement costs less than {self.bound:.6g} (gap {self.gap:.2%})")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return the placement as plain data that JSON can hold."""
        return {
            **{key: list(getattr(self, key)) for key in ("models", "assignment", "sizes_mb")},
            "devices": [asdict(each) for each in self.devices],
            "cost": self.cost,
            "terms": dict(self.terms),
            "bound": self.bound,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the placement that :meth:`to_dict` wrote.

        Raises:
            KeyError: an entry is missing.
            TypeError: a device has an entry that devices do not have.
            ValueError: the entries do not fit together.
        """
        return cls(
            models=tuple(data["models"]),
            assignment=tuple(data["assignment"]),
            sizes_mb=tuple(data["sizes_mb"]),
            devices=tuple(Device(**each) for each in data["devices"]),
            cost=data["cost"],
            terms=dict(data["terms"]),
            bound=data["bound"],
        )


class Placer(Resource):
    """Assigns models to devices, so that what talks is near and work goes where power is.

    For n models and m devices, with a_i the device of model i, c_ij how much models i and j
    exchange, and d the distance between devices (0 on one device, ``gpu_gpu_distance`` between
    two GPUs, ``cpu_gpu_distance`` between the CPU and a GPU)::

        cost = connection_weight
                   * mean over all n * n ordered pairs (i, j) of
                     c_ij / sum of c  *  d(a_i, a_j) / max of d
             + complexity_match_weight
                   * mean over the m devices of
                     (share of the models' total size on it - its share of total power) squared

    A term whose sum is 0 (no connections, one device, no power) is 0. ``cpu_weight`` is the power
    of the CPU where devices do not say theirs.

    Guarantees:
        - No placement is returned whose models, their sizes times ``model_size_multiplier``, need
          more than a device's memory times ``max_mem_ratio``; if there is none, the error says
          how many MB are needed and how many are allowed.
        - The cost and the terms of a placement are those of the formula, whatever the backend
          minimised to find it.
        - The same call gives the same placement.

    Features:
        - ``proven``: ``bound`` is given, so that the gap is known.
    """

    @override
    def open(self) -> None:
        """Acquire nothing: placing needs nothing that lives longer than the call."""

    @override
    def close(self) -> None:
        """Release nothing."""

    @abstractmethod
    def place(
        self,
        models: Mapping[str, nn.Module | float] | Sequence[nn.Module | float],
        connections: Mapping[tuple[str | int, str | int], float],
        devices: Sequence[str | Device] | None = None,
    ) -> Placement:
        """Return where each model is to go; moves nothing.

        Args:
            models: models, or their sizes in MB (2**20 bytes), by name; those of a sequence are
                named by their index.
            connections: how much two models exchange, by pairs of names or indices.
            devices: names or devices to choose from; ``None``: all GPUs, and the CPU.

        Raises:
            PlacementError: no placement respects the memory limits.
            ValueError: a connection names a model that is not there, or is negative.
        """


class PlacerConfig(BackendConfig[Placer], frozen=True):
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
    """

    interface: ClassVar[str] = "placer"
    model_size_multiplier: float = Field(default=2, gt=0)
    max_mem_ratio: float = Field(default=0.5, gt=0, le=1)
    cpu_weight: float = Field(default=0, ge=0)
    connection_weight: float = Field(default=2, ge=0)
    complexity_match_weight: float = Field(default=1, ge=0)
    gpu_gpu_distance: float = Field(default=1, ge=0)
    cpu_gpu_distance: float = Field(default=10, ge=0)
