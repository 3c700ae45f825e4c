"""Random instances, what an assignment costs by the formula, and the best one by trying all.

Nothing here uses the code that placers use.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pparallel.interfaces.placer import Device

_NEARLY = 1e-9


@dataclass(frozen=True, slots=True)
class Instance:
    """Something to place.

    Attributes:
        sizes: of the models, in MB, by name.
        connections: how much two models exchange.
        devices: what there is to choose from.
        options: of the placer.
    """

    sizes: dict[str, float]
    connections: dict[tuple[str, str], float]
    devices: tuple[Device, ...]
    options: dict[str, float]

    @property
    def needs(self) -> list[float]:
        """What each model needs, in MB."""
        return [each * self.options["model_size_multiplier"] for each in self.sizes.values()]

    @property
    def limits(self) -> list[float]:
        """What each device allows, in MB."""
        ratio = self.options["max_mem_ratio"]
        return [(each.memory_mb or 0.0) * ratio for each in self.devices]

    def overflow(self, assignment: Sequence[int]) -> float:
        """Return by how many MB, at the worst device, *assignment* exceeds what is allowed."""
        used = [0.0] * len(self.devices)
        for need, at in zip(self.needs, assignment, strict=True):
            used[at] += need
        return max(each - limit for each, limit in zip(used, self.limits, strict=True))

    def terms(self, assignment: Sequence[int]) -> dict[str, float]:
        """Return the terms of the cost, as the interface's docstring has them."""
        models, n, m = list(self.sizes), len(self.sizes), len(self.devices)
        farthest = max(self._distance(a, b) for a in range(m) for b in range(m))
        amount = sum(self.connections.values())
        far = 0.0
        for (one, other), much in self.connections.items():
            a, b = assignment[models.index(one)], assignment[models.index(other)]
            if amount and farthest:
                far += much / amount * self._distance(a, b) / farthest
        size, power = sum(self.sizes.values()), sum(each.power or 0.0 for each in self.devices)
        imbalance = 0.0
        if size and power:
            for at, device in enumerate(self.devices):
                here = (self.sizes[models[i]] for i in range(n) if assignment[i] == at)
                imbalance += (sum(here) / size - (device.power or 0.0) / power) ** 2
        return {
            "connection": self.options["connection_weight"] * far / n**2,
            "complexity_match": self.options["complexity_match_weight"] * imbalance / m,
        }

    def cost(self, assignment: Sequence[int]) -> float:
        """Return the sum of the terms."""
        return sum(self.terms(assignment).values())

    def _distance(self, a: int, b: int) -> float:
        if a == b:
            return 0.0
        near = not (self.devices[a].is_cpu or self.devices[b].is_cpu)
        return self.options["gpu_gpu_distance" if near else "cpu_gpu_distance"]


def instances(
    count: int, seed: int, *, models: int = 8, devices: int = 4, tight: float = 1.0
) -> Iterator[Instance]:
    """Yield random instances that have a solution.

    Args:
        count: how many.
        seed: of what is random.
        models: how many at most.
        devices: how many at most.
        tight: the least that the devices may allow, as a multiple of what the models need in total.
    """
    dice = random.Random(seed)
    while count:
        instance = _instance(dice, models, devices, tight)
        if placeable(instance):
            count -= 1
            yield instance


def _instance(dice: random.Random, models: int, devices: int, tight: float) -> Instance:
    names = [f"m{at}" for at in range(dice.randint(1, models))]
    largest = dice.choice([1.0, 30.0, 4000.0])
    sizes = {name: dice.choice([largest, dice.uniform(0, largest)]) for name in names}
    pairs = [pair for pair in itertools.permutations(names, 2) if dice.random() < 0.4]
    options = {
        "model_size_multiplier": dice.choice([1, 2, 2.5]),
        "max_mem_ratio": dice.choice([0.5, 0.7, 1.0]),
        "connection_weight": dice.choice([0, 1, 2, 10]),
        "complexity_match_weight": dice.choice([0, 1, 10]),
        "gpu_gpu_distance": dice.choice([0, 1, 3]),
        "cpu_gpu_distance": dice.choice([1, 10]),
    }
    room = sum(sizes.values()) * options["model_size_multiplier"] * dice.uniform(tight, 2 * tight)
    shares = [dice.uniform(0.2, 1) for _ in range(dice.randint(1, devices))]
    places = [f"cuda:{at}" for at in range(len(shares))]
    if dice.random() < 0.5:
        places[-1] = "cpu"
    memories = [room * share / sum(shares) / options["max_mem_ratio"] for share in shares]
    chosen = [
        Device(name, memory, dice.choice([0.0, 0.1, 1.0, 1.0, dice.random()]))
        for name, memory in zip(places, memories, strict=True)
    ]
    amounts = {pair: dice.choice([0.0, dice.random(), 100 * dice.random()]) for pair in pairs}
    return Instance(sizes, amounts, tuple(chosen), options)


def placeable(instance: Instance) -> bool:
    """Return whether there is an assignment that fits, found by trying."""
    needs, limits = sorted(instance.needs, reverse=True), instance.limits

    def fits(at: int, left: list[float]) -> bool:
        if at == len(needs):
            return True
        tried: set[float] = set()
        for device, room in enumerate(left):
            if room not in tried and needs[at] <= room - _NEARLY * limits[device]:
                tried.add(room)
                rest = [*left[:device], room - needs[at], *left[device + 1 :]]
                if fits(at + 1, rest):
                    return True
        return False

    return fits(0, limits)


def best(instance: Instance) -> float:
    """Return the least that an assignment costs which fits, found by trying all."""
    devices = range(len(instance.devices))
    return min(
        instance.cost(assignment)
        for assignment in itertools.product(devices, repeat=len(instance.sizes))
        if instance.overflow(assignment) <= 0
    )
