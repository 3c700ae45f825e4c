"""The interface: what every placer does, and what a backend fills in."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from typing_extensions import override

from pparallel.interfaces.placer.device import Device
from pparallel.interfaces.placer.placement import Placement
from pparallel.interfaces.placer.problem import Problem, Solution
from pparallel.interfaces.placer.stating import Amounts, state
from pparallel.interfaces.resource import Resource

if TYPE_CHECKING:
    import torch
    from torch import nn

    from pparallel.interfaces.placer.config import PlacerConfig


class Placer(Resource):
    """Assigns models to devices, so that what talks is near and work goes where power is.

    For n models and m devices, with a_i the device of model i, c_ij how much models i and j
    exchange, and d the distance between devices (0 on one device, ``gpu_gpu_distance`` between
    two GPUs, ``cpu_gpu_distance`` between the CPU and a GPU, unless ``distances`` says another or
    ``measure_distances`` asks for another)::

        cost = connection_weight
                   * mean over all n * n ordered pairs (i, j) of
                     c_ij / sum of c  *  d(a_i, a_j) / max of d
             + complexity_match_weight
                   * mean over the m devices of
                     (share of the models' total size on it - its share of total power) squared

    A term whose sum is 0 (no connections, one device, no power) is 0. ``cpu_weight`` is the power
    of the CPU where devices do not say theirs.

    A backend fills in :meth:`solve`. It is given numbers that have been checked, and what it
    answers is checked.

    Guarantees:
        - No placement is returned whose models, their sizes times ``model_size_multiplier``, need
          more than a device's memory times ``max_mem_ratio``
          (``PlacerSuite.test_memory_is_never_exceeded``). If there is none, the error says
          how many MB are needed and how many are allowed
          (``PlacerSuite.test_more_than_all_devices_allow``,
          ``test_more_than_any_device_allows``, ``test_what_cannot_be_divided``).
        - The cost and the terms of a placement are those of the formula, whatever the backend
          minimised to find it (``PlacerSuite.test_the_cost_is_as_defined``).
        - The same call gives the same placement (``PlacerSuite.test_the_same_call_again``).
        - What is placed is not moved (``PlacerSuite.test_nothing_is_moved``).

    Features:
        - ``proven``: ``bound`` is given, so that the gap is known, and no placement costs less
          (``PlacerSuite.test_the_bound_holds``). Where models and devices are few, the placement
          is the best there is (``test_few_models_are_placed_best``).

    Args:
        config: the options.
        member: who we are in the job, of which placing asks nothing.
    """

    def __init__(self, config: PlacerConfig, *, member: object = None) -> None:
        self._config = config

    @override
    def open(self) -> None:
        """Acquire nothing: placing needs nothing that lives longer than the call."""

    @override
    def close(self) -> None:
        """Release nothing."""

    def place(
        self,
        models: Mapping[str, nn.Module | float] | Sequence[nn.Module | float],
        connections: Amounts,
        devices: Sequence[str | Device | torch.device] | None = None,
    ) -> Placement:
        """Return where each model is to go; moves nothing.

        Args:
            models: models, or their sizes in MB (2**20 bytes), by name; those of a sequence are
                named by their index. A name that is no text is taken as ``str(name)``.
            connections: how much two models exchange, by pairs of names or indices; those of both
                directions add up. What ``measure_connections`` returns is taken as it is.
            devices: names or devices to choose from; ``None``: all GPUs, and the CPU. A device
                whose memory is said need not be there.

        Raises:
            PlacementError: no placement respects the memory limits; the message says how many MB
                are needed and how many allowed.
            ValueError: there are no models or no devices; two models have one name; a device is
                not there, or named twice; a size, an amount, a memory or a power is negative or not
                finite; a connection names a model that is not there, or joins a model with itself.
            TypeError: a model is neither a module nor a number.
        """
        statement = state(models, connections, devices, self._config)
        problem = statement.problem
        problem.refuse_the_impossible()
        solution = self.solve(problem)
        _refuse_what_breaks_the_limits(problem, solution, type(self).__name__)
        return Placement(
            models=problem.models,
            assignment=tuple(problem.devices[at].name for at in solution.assignment),
            sizes_mb=problem.sizes_mb,
            devices=problem.devices,
            cost=problem.cost(solution.assignment),
            terms=problem.terms(solution.assignment),
            bound=solution.bound,
            connections=statement.exchanges,
            compute=statement.compute,
            modules=statement.modules,
        )

    @abstractmethod
    def solve(self, problem: Problem) -> Solution:
        """Return an assignment that fits, of low cost; a bound if one is proven.

        Any thread may call it. It keeps nothing of *problem*, and answers the same to the same.

        Raises:
            PlacementError: none was found: ``raise problem.no_room(proven=...)``.
        """


def _refuse_what_breaks_the_limits(problem: Problem, solution: Solution, who: str) -> None:
    assignment = solution.assignment
    count = len(problem.devices)
    known = all(isinstance(at, int) and 0 <= at < count for at in assignment)
    if len(assignment) != len(problem.models) or not known:
        message = (
            f"{who}.solve answered {assignment!r}; it is to give, for each of"
            f" {len(problem.models)} models, the index of one of {count} devices"
        )
        raise RuntimeError(message)
    if not problem.fits(assignment):
        over = ", ".join(
            f"{device.name} needs {used:.1f} MB and allows {limit:.1f} MB"
            for device, used, limit in zip(
                problem.devices, problem.used_mb(assignment), problem.limits_mb, strict=True
            )
            if used > limit
        )
        message = f"{who}.solve broke the memory limit ({over}); this is a fault of that backend"
        raise RuntimeError(message)
