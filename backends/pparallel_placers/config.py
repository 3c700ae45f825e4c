"""What the placers of this package are told."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pparallel.interfaces.placer import PlacerConfig


class ExactPlacerConfig(PlacerConfig, frozen=True):
    """The best placement, with proof; or the best found in time, and how far off it may be.

    Attributes:
        backend: selects this backend.
        solver: ``highs``, with the solver HiGHS; ``python``, by branch and bound, for which nothing
            has to be installed; ``auto``: branch and bound where possibilities are few or HiGHS is
            not installed, else HiGHS.
        time_limit: seconds after which the best found so far is returned.
        seed: where its random choices start.
    """

    backend: Literal["exact"] = "exact"
    solver: Literal["auto", "highs", "python"] = "auto"
    time_limit: float = Field(default=10.0, gt=0)
    seed: int = Field(default=0, ge=0)


class GradientPlacerConfig(PlacerConfig, frozen=True):
    """Gradient descent on the probability of each model for each device.

    Attributes:
        backend: selects this backend.
        size_match_weight: weight of keeping within the memory limits while descending; what is
            returned keeps within them whatever this is.
        entropy_weight: weight of being certain where each model goes.
        iterations: steps of the descent.
        update_rate: how far each step goes.
        restarts: how many descents are made side by side, each from a random start of its own.
        local_search: of what they came by, take as many of the best, and move single models and
            swap pairs for as long as it helps; the best of that is returned.
        seed: where the random starts come from.
    """

    backend: Literal["gradient"] = "gradient"
    size_match_weight: float = Field(default=0.01, ge=0, allow_inf_nan=False)
    entropy_weight: float = Field(default=1, ge=0, allow_inf_nan=False)
    iterations: int = Field(default=500, ge=1)
    update_rate: float = Field(default=0.01, gt=0, allow_inf_nan=False)
    restarts: int = Field(default=8, ge=1)
    local_search: bool = True
    seed: int = Field(default=0, ge=0)


class GreedyPlacerConfig(PlacerConfig, frozen=True):
    """One model after the other to where it costs least; then moves and swaps, while they help.

    Attributes:
        backend: selects this backend.
        starts: how many times this is tried, in other orders and from near the best so far; the
            best placement is returned. Of more than 100 models, fewer times: time grows with the
            square of their number.
        seed: where what is random comes from.
    """

    backend: Literal["greedy"] = "greedy"
    starts: int = Field(default=40, ge=1)
    seed: int = Field(default=0, ge=0)
