"""Gradient descent on the cost where each model is on all devices at once, with probabilities.

All descents of a problem are made side by side, in arrays [n, r, m]: models, restarts, devices. The
gradient is written out for numpy: of arrays this small torch's threads spend their time meeting,
which is long where other processes use the cores as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pparallel.interfaces.placer import Problem
from pparallel_placers.config import GradientPlacerConfig

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

#: How far from equal the probabilities are at the start: as normal numbers of this deviation make.
#: Of 0.1, 0.5 and 1, measured on random instances, 0.1 let too many descents end alike.
_UNEQUAL = 0.5
#: How often on its way a descent is looked at: it may pass by what is better than its end.
_LOOKS = 10
#: What a weight, or a step, may be at most: sums of squares are to stay numbers.
_HEAVIEST = 1e6
#: How quickly Adam forgets gradients and their squares, and what it adds to their roots.
_BETAS, _EPSILON = (0.9, 0.999), 1e-8


def descend(problem: Problem, config: GradientPlacerConfig) -> list[tuple[int, ...]]:
    """Return where the descents come by and end, each once; these assignments need not fit.

    Each model is taken to be on its likeliest device.
    """
    found: dict[tuple[int, ...], None] = {}
    rate = min(config.update_rate, _HEAVIEST)
    relaxation = Relaxation(problem, config)
    shape = (len(problem.models), config.restarts, len(problem.devices))
    logits: Array = _UNEQUAL * np.random.default_rng(config.seed).standard_normal(shape)
    mean, square = np.zeros(shape), np.zeros(shape)
    for step in range(config.iterations):
        # Certainty comes late: at first it would keep whatever a start happens to prefer.
        gradient = relaxation.gradient(logits, certainty=step / config.iterations)
        mean += (1 - _BETAS[0]) * (gradient - mean)
        square += (1 - _BETAS[1]) * (gradient * gradient - square)
        unbiased = [1 - beta ** (step + 1) for beta in _BETAS]
        root = np.sqrt(square / unbiased[1]) + _EPSILON
        logits -= rate / unbiased[0] * mean / root
        if (config.iterations - step - 1) % (config.iterations // _LOOKS or 1) == 0:
            found.update(dict.fromkeys(map(tuple, logits.argmax(-1).T.tolist())))
    return list(found)


class Relaxation:
    """What is minimised, for logits whose softmax over the devices are the probabilities.

    It is::

        cost / what it is at most, about
        + size_match_weight * mean over the devices of the MB above the limit
        + certainty * entropy_weight * mean over the models of the entropy

    Args:
        problem: in numbers.
        config: the weights that are no part of the cost.
    """

    def __init__(self, problem: Problem, config: GradientPlacerConfig) -> None:
        most = sum(map(sum, problem.traffic)) / 2 + problem.imbalance_weight or 1.0
        total_mb = sum(problem.sizes_mb)
        self._traffic: Array = np.array(problem.traffic) / most
        self._spans: Array = np.array(problem.spans)
        self._shares: Array = np.array(problem.shares)
        self._power_shares: Array = np.array(problem.power_shares)
        self._imbalance = problem.imbalance_weight / most
        self._limits: Array = np.array(
            [min(each / total_mb, 1.0) if total_mb else 1.0 for each in problem.limits_mb]
        )
        self._size_match = min(config.size_match_weight * total_mb, _HEAVIEST)
        self._entropy = min(config.entropy_weight, _HEAVIEST)

    def gradient(self, logits: Array, certainty: float) -> Array:
        """Return [n, r, m] the gradient by *logits* [n, r, m]; *certainty* goes from 0 to 1."""
        models, _, devices = logits.shape
        log = logits - logits.max(-1, keepdims=True)
        log -= np.log(np.exp(log).sum(-1, keepdims=True))
        likely = np.exp(log)
        flat = likely.reshape(models, -1)
        by_likely: Array = self._traffic @ flat
        by_likely = (by_likely.reshape(-1, devices) @ self._spans).reshape(logits.shape)
        loads = (self._shares @ flat).reshape(-1, devices)
        pressure = 2 * self._imbalance * (loads - self._power_shares)
        pressure += self._size_match / devices * (loads > self._limits)
        by_likely += self._shares[:, None, None] * pressure
        by_likely -= certainty * self._entropy / models * log
        found: Array = likely * (by_likely - (likely * by_likely).sum(-1, keepdims=True))
        return found
