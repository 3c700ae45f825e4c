"""What a placer answers: which model goes where, and how good that is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Self

from typing_extensions import override

from pparallel.interfaces.placer.device import Device
from pparallel.interfaces.placer.table import explained

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import nn

Exchange = tuple[str, str, float]


@dataclass(frozen=True, slots=True)
class Placement:
    """Which model goes where, and how good that is.

    Attributes:
        models: the models' names, in the order given.
        assignment: the device of each model.
        sizes_mb: what each model needs, in units of 2**20 bytes: its size times
            ``model_size_multiplier``.
        devices: what there was to choose from.
        cost: the sum of the terms.
        terms: each term of the cost, weighted, by name.
        bound: no placement costs less; ``None`` if the backend proves nothing.
        connections: how much two models exchange: a name, another, and the amount.
        compute: how much each model computes, by name, where that was measured.
        modules: the models themselves, which :meth:`apply` moves; neither compared nor kept by
            :meth:`to_dict` and pickle.
    """

    models: tuple[str, ...]
    assignment: tuple[str, ...]
    sizes_mb: tuple[float, ...]
    devices: tuple[Device, ...]
    cost: float
    terms: Mapping[str, float] = field(default_factory=dict)
    bound: float | None = None
    connections: tuple[Exchange, ...] = ()
    compute: Mapping[str, float] = field(default_factory=dict)
    modules: Mapping[str, nn.Module] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not len(self.models) == len(self.assignment) == len(self.sizes_mb):
            message = (
                f"{len(self.models)} models, {len(self.assignment)} devices assigned and"
                f" {len(self.sizes_mb)} sizes do not fit together"
            )
            raise ValueError(message)
        if twins := [name for name, count in Counter(self.models).items() if count > 1]:
            message = f"model {twins[0]!r} is there twice; rename one"
            raise ValueError(message)
        unknown = set(self.assignment) - {each.name for each in self.devices}
        if unknown:
            message = f"assigned to {', '.join(sorted(unknown))}, not among the devices"
            raise ValueError(message)
        strangers = {name for first, second, _ in self.connections for name in (first, second)}
        if strangers := (strangers | set(self.compute)) - set(self.models):
            message = f"{', '.join(sorted(strangers))} exchange or compute, not among the models"
            raise ValueError(message)

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_dict, (self.to_dict(),)

    @property
    def gap(self) -> float | None:
        """How far the cost may be above the best, as a share of it; 0 is proven best."""
        if self.bound is None:
            return None
        above = max(0.0, self.cost - self.bound)
        return above / abs(self.cost) if above else 0.0

    def apply(
        self, models: Mapping[str, nn.Module] | Sequence[nn.Module] | None = None
    ) -> dict[str, nn.Module]:
        """Move each model to its device; return them by name.

        Args:
            models: what to move, by name or in the order of ``models``; ``None``: the models that
                the placement was made for.

        Raises:
            ValueError: *models* are others than the placement is for, or two have one name; there
                are none to move, as sizes were placed or the placement was read; two that go to
                different devices share a tensor; one has no data (device ``meta``); or a device is
                not there.
        """
        from pparallel.interfaces.placer.moving import moved

        return moved(self, models)

    def explain(self) -> str:
        """Return a table of the devices with what is on them, and what the cost consists of."""
        return explained(self)

    def plot(self) -> Figure:
        """Draw the devices with what is on them, and what they exchange; show nothing.

        ``figure.savefig(path)`` writes it.

        Raises:
            MissingDependencyError: matplotlib is not installed.
        """
        from pparallel.interfaces.placer.drawing import drawn

        return drawn(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the placement as plain data that JSON can hold."""
        return {
            **{key: list(getattr(self, key)) for key in ("models", "assignment", "sizes_mb")},
            "devices": [asdict(each) for each in self.devices],
            "cost": self.cost,
            "terms": dict(self.terms),
            "bound": self.bound,
            "connections": [list(each) for each in self.connections],
            "compute": dict(self.compute),
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
            connections=tuple((one, other, much) for one, other, much in data["connections"]),
            compute=dict(data["compute"]),
        )
