"""``machin.parallel.assigner``: the sizes of models, and which device each goes to."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pparallel.builder import build, load
from pparallel.interfaces.placer import PlacerConfig
from pparallel.interfaces.placer.devices import resolved
from pparallel.machine import gpus
from pparallel.models.sizes import ModelSizeEstimator

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.nn import Module
    from torch.optim import Optimizer

__all__ = ["ModelAssigner", "ModelSizeEstimator"]

logger = logging.getLogger(__name__)


class ModelAssigner:
    """Chooses a device for each model, and moves the models there.

    Models that are connected are kept near one another, work goes where power is, and no device is
    given more than it may hold. It is the placer ``gradient``.

    Args:
        models: the models.
        model_connection: how much two of them exchange, by their indices.
        devices: to choose from; a GPU that is not there is left out. By default all GPUs; where
            none is left, the CPU.
        model_size_multiplier: how many times its parameters and buffers a model needs.
        max_mem_ratio: the share of a device's free memory that may be used.
        cpu_weight: what the CPU computes, where a GPU computes 1.
        connection_weight: weight of keeping near what exchanges much.
        size_match_weight: weight of keeping within memory while searching; what is found keeps
            within it whatever this is.
        complexity_match_weight: weight of giving each device its share of the work.
        entropy_weight: weight of being certain while searching.
        iterations: steps of the search.
        update_rate: how far each of them goes.
        gpu_gpu_distance: between two GPUs.
        cpu_gpu_distance: between the CPU and a GPU.
        move_models: whether the models are moved.

    Raises:
        RuntimeError: the models need more memory than there is.
        ConfigError: an option is out of its range.
        ValueError: there are no models; a connection is negative, or names a model that is not
            there; a device is named twice; two models that go apart share a tensor.
    """

    def __init__(
        self,
        models: Sequence[Module],
        model_connection: Mapping[tuple[int, int], float],
        devices: Sequence[torch.device | str] | None = None,
        model_size_multiplier: float = 2,
        max_mem_ratio: float = 0.5,
        cpu_weight: float = 0,
        connection_weight: float = 2,
        size_match_weight: float = 0.01,
        complexity_match_weight: float = 1,
        entropy_weight: float = 1,
        iterations: int = 500,
        update_rate: float = 0.01,
        gpu_gpu_distance: float = 1,
        cpu_gpu_distance: float = 10,
        move_models: bool = True,
    ) -> None:
        import torch

        options: dict[str, Any] = {
            "backend": "gradient",
            "model_size_multiplier": 1,  # the sizes that are placed have it already
            "max_mem_ratio": max_mem_ratio,
            "cpu_weight": cpu_weight,
            "connection_weight": connection_weight,
            "size_match_weight": size_match_weight,
            "complexity_match_weight": complexity_match_weight,
            "entropy_weight": entropy_weight,
            "iterations": iterations,
            "update_rate": update_rate,
            "gpu_gpu_distance": gpu_gpu_distance,
            "cpu_gpu_distance": cpu_gpu_distance,
        }
        config = load(PlacerConfig, options)
        sizes = [ModelSizeEstimator(each, model_size_multiplier).estimate_size() for each in models]
        found = resolved(_there(devices), config)
        allowed = math.fsum(each.memory_mb or 0.0 for each in found) * max_mem_ratio
        if (needed := math.fsum(sizes)) > allowed:
            message = (
                f"Estimated model will use {needed:.2f} MB, but only have {allowed:.2f} MB allowed"
                " memory in total."
            )
            raise RuntimeError(message)
        # What a model exchanges with itself is there already.
        apart = {pair: much for pair, much in model_connection.items() if pair[0] != pair[1]}
        with build(config) as placer:
            placement = placer.place(sizes, apart, found)
        self._assignment = [torch.device(each) for each in placement.assignment]
        if move_models:
            placement.apply(models)

    @property
    def assignment(self) -> list[torch.device]:
        """The device of each model, in the order in which they were given."""
        return self._assignment

    @staticmethod
    def optimize_placement(
        optimizer: Optimizer,
        placement: Tensor,
        model_size: Tensor,
        size_capacity: Tensor,
        model_complexity: Tensor,
        complexity_capacity: Tensor,
        model_connection: Tensor,
        device_distance: Tensor,
        connection_weight: float,
        size_match_weight: float,
        complexity_match_weight: float,
        entropy_weight: float,
    ) -> None:
        """Make one step of *optimizer* towards a better placement of n models on m devices.

        The softmax of *placement* over the devices is how likely each model is on each of them.
        What is minimised is the cost that :class:`pparallel.Placer` defines, as it is expected
        with these likelihoods, the MB beyond what devices hold, and the entropy. A term whose
        numbers are all 0 is 0. It is computed in float32 at least.

        Args:
            optimizer: of *placement*.
            placement: [n, m] any floating dtype, requires a gradient.
            model_size: [1, n] MB.
            size_capacity: [1, m] MB.
            model_complexity: [1, n] how much each model computes.
            complexity_capacity: [1, m] how much each device computes.
            model_connection: [n, n] how much the models exchange.
            device_distance: [m, m] how far the devices are apart.
            connection_weight: weight of the expected distance of what is exchanged.
            size_match_weight: weight of the MB beyond the capacity, a mean over the devices.
            complexity_match_weight: weight of the squared differences of the shares of work and
                power, a mean over the devices.
            entropy_weight: weight of the entropy, a mean over the models.
        """
        import torch

        exact = placement.to(torch.promote_types(placement.dtype, torch.float32))
        log = torch.log_softmax(exact, dim=-1)
        likely = log.exp()
        apart = 1 - torch.eye(len(likely), dtype=log.dtype, device=log.device)
        distance = likely @ _scaled(device_distance.to(log), longest=True) @ likely.T * apart
        exchanged = _scaled(model_connection.to(log)) * distance
        beyond = torch.relu(model_size.to(log) @ likely - size_capacity.to(log))
        work = _scaled(model_complexity.to(log)) @ likely
        power = _scaled(complexity_capacity.to(log))
        entropy = -(likely * log).sum(dim=-1)
        cost = (
            connection_weight * exchanged.mean()
            + size_match_weight * beyond.mean()
            + complexity_match_weight * (work - power).square().mean()
            + entropy_weight * entropy.mean()
        )
        optimizer.zero_grad()
        cost.backward()
        optimizer.step()


def _there(devices: Iterable[torch.device | str] | None) -> list[str]:
    """Return the names of those *devices* that are there, by default of all GPUs."""
    import torch

    here = gpus.names()
    given = here if devices is None else [str(torch.device(each)) for each in devices]
    names = [gpus.canonical(each) for each in given]
    kept = [each for each in names if not each.startswith("cuda") or each in here]
    if dropped := [each for each in names if each not in kept]:
        logger.warning("Devices that are not here are left out: %s", ", ".join(dropped))
    kept = kept or [gpus.CPU]
    logger.info("Models are assigned to %s", ", ".join(kept))
    return kept


def _scaled(numbers: Tensor, *, longest: bool = False) -> Tensor:
    """Return *numbers* as shares of their sum, or of the longest; 0 where that is 0."""
    import torch

    whole = numbers.amax() if longest else numbers.sum()
    return numbers / whole.clamp_min(torch.finfo(numbers.dtype).tiny)
