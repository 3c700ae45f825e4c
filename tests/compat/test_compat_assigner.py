"""``pparallel.compat.machin.assigner``: sizes, and which device each model goes to."""

from __future__ import annotations

import logging
from typing import Any, Self

import pytest
import torch
from torch import nn
from typing_extensions import override

import pparallel
from pparallel.compat.machin.assigner import ModelAssigner, ModelSizeEstimator
from pparallel.errors import ConfigError, PlacementError
from pparallel.machine import gpus, memory

MB = 2**20

#: what all documented situations have in common
SITUATION: dict[str, Any] = {
    "model_connection": {(0, 1): 1},
    "devices": ["cuda:0", "cuda:1", "cpu"],
    "model_size_multiplier": 1,
    "max_mem_ratio": 0.7,
    "cpu_weight": 0.1,
    "connection_weight": 1,
    "size_match_weight": 1e-2,
    "complexity_match_weight": 10,
    "entropy_weight": 1,
    "iterations": 500,
    "update_rate": 0.01,
    "gpu_gpu_distance": 1,
    "cpu_gpu_distance": 10,
}


class Sized(nn.Module):
    """A model of so many MB, which takes no memory and knows where it was moved."""

    def __init__(self, size_mb: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(
            torch.zeros(1, dtype=torch.uint8).expand(size_mb * MB), requires_grad=False
        )
        self.moved_to: list[str] = []

    @override
    def to(self, *args: Any, **kwargs: Any) -> Self:
        self.moved_to.append(str(args[0]))
        return self


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make up a machine: free MB of each GPU, and of main memory."""

    def make(gpus_mb: list[float], cpu_mb: float) -> None:
        free = {f"cuda:{at}": int(each * MB) for at, each in enumerate(gpus_mb)}
        monkeypatch.setattr(gpus, "names", lambda: list(free))
        monkeypatch.setattr(gpus, "free_memory", free.__getitem__)
        monkeypatch.setattr(gpus, "idle_share", lambda name: 1.0)
        monkeypatch.setattr("pparallel.interfaces.placer.devices.idle_share", lambda: 1.0)
        monkeypatch.setattr(memory, "available", lambda: int(cpu_mb * MB))

    return make


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make models of so many MB; a tensor that is expanded holds less than it has elements."""
    sizes: dict[int, float] = {}

    class Estimator(ModelSizeEstimator):
        @override
        def estimate_size(self, sample: Any = None, **kwargs: Any) -> float:
            return sizes[id(self.model)] * self.size_multiplier

    monkeypatch.setattr("pparallel.compat.machin.assigner.ModelSizeEstimator", Estimator)

    def make(*sizes_mb: float) -> list[Sized]:
        models = [Sized(1) for _ in sizes_mb]
        sizes.update({id(model): size for model, size in zip(models, sizes_mb, strict=True)})
        return models

    return make


def assigned(models: list[Sized], **options: Any) -> list[str]:
    found = ModelAssigner(models, **{**SITUATION, **options})
    assert all(isinstance(each, torch.device) for each in found.assignment)
    return [str(each) for each in found.assignment]


# -- the situations that are documented -----------------------------------------------------------

APART = [["cuda:0", "cuda:1"], ["cuda:1", "cuda:0"]]
TOGETHER = [["cuda:0", "cuda:0"], ["cuda:1", "cuda:1"]]


@pytest.mark.parametrize(
    ("size", "there", "options", "allowed"),
    [
        pytest.param(10, [1000, 1000], {}, APART, id="two free GPUs"),
        pytest.param(
            10,
            [1000, 1000],
            {"connection_weight": 10, "complexity_match_weight": 1},
            TOGETHER,
            id="much is exchanged",
        ),
        pytest.param(600, [1000, 1000], {}, APART, id="each fills a GPU"),
        pytest.param(10, [1000], {}, [["cuda:0"] * 2], id="one GPU"),
        pytest.param(10, [], {}, [["cpu"] * 2], id="no GPU"),
        pytest.param(10, [], {"devices": None}, [["cpu"] * 2], id="no GPU and no devices said"),
    ],
)
def test_situations(
    machine: Any, made: Any, size: int, there: list[float], options: Any, allowed: list[list[str]]
) -> None:
    machine(there, 1000)
    models = made(size, size)
    found = assigned(models, **options)
    assert found in allowed
    assert [each.moved_to for each in models] == [[each] for each in found]


def test_more_than_there_is(machine: Any, made: Any) -> None:
    machine([10], 10)
    with pytest.raises(RuntimeError) as caught:
        assigned(made(100, 100))
    assert str(caught.value) == (
        "Estimated model will use 200.00 MB, but only have 14.00 MB allowed memory in total."
    )


def test_the_defaults(machine: Any) -> None:
    machine([1000, 1000], 1000)
    models = [nn.Linear(2, 2), nn.Linear(2, 2)]
    assigner = ModelAssigner(models, {(0, 1): 1}, move_models=False)
    assert {each.type for each in assigner.assignment} == {"cuda"}, "the CPU is not to compute"


# -- devices --------------------------------------------------------------------------------------


def test_gpus_that_are_not_there_are_left_out(
    machine: Any, made: Any, caplog: pytest.LogCaptureFixture
) -> None:
    machine([1000], 1000)
    with caplog.at_level(logging.INFO, "pparallel.compat.machin.assigner"):
        devices = [torch.device("cuda", 0), "cuda:1", torch.device("cuda:7")]
        assert assigned(made(10), devices=devices, model_connection={}) == ["cuda:0"]
    assert "Devices that are not here are left out: cuda:1, cuda:7" in caplog.text
    assert "Models are assigned to cuda:0" in caplog.text


def test_no_device_is_left(machine: Any, made: Any) -> None:
    machine([], 1000)
    assert assigned(made(10, 10), devices=["cuda:0", "cuda"]) == ["cpu", "cpu"]


def test_models_are_moved_only_if_wanted(machine: Any, made: Any) -> None:
    machine([], 1000)
    models = made(10, 10)
    assert assigned(models, move_models=False) == ["cpu", "cpu"]
    assert [each.moved_to for each in models] == [[], []]


def test_real_models_are_moved() -> None:
    models = [nn.Linear(2, 2), nn.Linear(2, 2)]
    assigner = ModelAssigner(models, {(0, 1): 1}, devices=["cpu"])
    assert assigner.assignment == [torch.device("cpu")] * 2
    assert {each.device.type for model in models for each in model.parameters()} == {"cpu"}


# -- what is refused ------------------------------------------------------------------------------


def test_no_device_has_room_for_one(machine: Any, made: Any) -> None:
    machine([100, 100], 0)
    with pytest.raises(PlacementError, match=r"model '0' needs 100\.0 MB, and no device allows"):
        assigned(made(100, 10))


@pytest.mark.parametrize("option", ["cpu_weight", "gpu_gpu_distance", "connection_weight"])
def test_negative_options(option: str) -> None:
    with pytest.raises(ConfigError, match=option):
        ModelAssigner([nn.Linear(1, 1)], {}, **{option: -1})  # type: ignore[arg-type]


def test_what_a_model_exchanges_with_itself_is_no_matter(machine: Any, made: Any) -> None:
    machine([1000, 1000], 1000)
    assert assigned(made(10, 10), model_connection={(0, 1): 1, (1, 1): 5}) in APART


# -- sizes ----------------------------------------------------------------------------------------


def test_sizes() -> None:
    model = nn.Module()
    for name, dtype in (("a", torch.int8), ("b", torch.int16), ("c", torch.int32)):
        model.register_parameter(
            name, nn.Parameter(torch.zeros(10, dtype=dtype), requires_grad=False)
        )
    model.register_buffer("buffer", torch.zeros(10))
    estimator = ModelSizeEstimator(model, size_multiplier=1)
    assert estimator.get_parameter_sizes() == (10 + 20 + 40) / MB
    assert estimator.get_buffer_sizes() == 40 / MB
    assert estimator.estimate_size() == 110 / MB
    assert ModelSizeEstimator(model).estimate_size() == 220 / MB
    assert ModelSizeEstimator is pparallel.ModelSizeEstimator


# -- one step -------------------------------------------------------------------------------------


def stepped(placement: torch.Tensor, steps: int = 1, **given: Any) -> torch.Tensor:
    """Return the likelihoods after some steps on two models and two devices, unless said."""
    models, devices = placement.shape
    numbers: dict[str, Any] = {
        "model_size": torch.full((1, models), 10.0),
        "size_capacity": torch.full((1, devices), 1000.0),
        "model_complexity": torch.full((1, models), 10.0),
        "complexity_capacity": torch.ones(1, devices),
        "model_connection": 1 - torch.eye(models),
        "device_distance": 1 - torch.eye(devices),
        "connection_weight": 1.0,
        "size_match_weight": 0.01,
        "complexity_match_weight": 1.0,
        "entropy_weight": 0.0,
        **given,
    }
    optimizer = torch.optim.SGD([placement], lr=1.0)
    for _ in range(steps):
        ModelAssigner.optimize_placement(optimizer, placement, **numbers)
    return placement.detach().softmax(-1)


def start(rows: list[list[float]], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(rows, dtype=dtype, requires_grad=True)


def test_a_step_is_down_the_gradient_of_the_cost() -> None:
    """Compared with a difference of the cost of the placer's definition, written out."""
    rows = [[0.3, -0.2], [0.1, 0.4]]

    def cost(logits: list[list[float]]) -> float:
        p = torch.tensor(logits, dtype=torch.float64).softmax(-1)
        far = p[0, 0] * p[1, 1] + p[0, 1] * p[1, 0]
        exchanged = 0.5 * far * 2 / 4
        loads = p.sum(0) / 2
        return float(2 * exchanged + 3 * ((loads - 0.5) ** 2).mean())

    placement = start(rows, torch.float64)
    stepped(placement, connection_weight=2.0, complexity_match_weight=3.0)
    for i in range(2):
        for j in range(2):
            more, less = [list(each) for each in rows], [list(each) for each in rows]
            more[i][j] += 1e-5
            less[i][j] -= 1e-5
            slope = (cost(more) - cost(less)) / 2e-5
            assert placement[i, j].item() == pytest.approx(rows[i][j] - slope, abs=1e-8)


def test_steps_bring_together_what_exchanges_much() -> None:
    found = stepped(start([[0.1, 0.0], [0.0, 0.05]]), 40, connection_weight=50.0)
    assert found[0].argmax() == found[1].argmax()


def test_steps_spread_work() -> None:
    found = stepped(start([[0.1, 0.0], [0.05, 0.0]]), 40, complexity_match_weight=50.0)
    assert found[0].argmax() != found[1].argmax()


def test_steps_keep_within_memory() -> None:
    capacity = torch.tensor([[1.0, 1000.0]])
    found = stepped(
        start([[3.0, 0.0], [3.0, 0.0]]),
        40,
        size_capacity=capacity,
        size_match_weight=1.0,
        complexity_match_weight=0.0,
    )
    assert found.argmax(-1).tolist() == [1, 1]


def test_entropy_makes_certain() -> None:
    before = torch.tensor([[0.2, 0.0], [0.0, 0.2]]).softmax(-1).amax()
    found = stepped(start([[0.2, 0.0], [0.0, 0.2]]), 40, entropy_weight=1.0)
    assert bool((found.amax(-1) > before).all())


# -- faults of machin's assigner that are gone --


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"model_connection": torch.zeros(2, 2)}, id="no connections"),
        pytest.param({"device_distance": torch.zeros(2, 2)}, id="no distance"),
        pytest.param({"complexity_capacity": torch.zeros(1, 2)}, id="no power"),
        pytest.param({"model_complexity": torch.zeros(1, 2)}, id="nothing to compute"),
    ],
)
def test_a_step_where_a_sum_is_0_is_a_number(given: Any, dtype: torch.dtype) -> None:
    """The relaxation divides by sums: 0 makes NaN, and the argmax of NaN means nothing."""
    placement = start([[0.2, 0.1], [0.0, 0.3]], dtype)
    stepped(placement, **given)
    assert bool(placement.isfinite().all())
    assert placement.dtype == dtype


def test_a_step_with_one_device_is_a_number() -> None:
    """One device is at no distance from itself: the sum of the distances is 0."""
    placement = start([[0.2], [0.1]])
    stepped(placement)
    assert bool(placement.isfinite().all())


def test_a_step_from_what_is_nearly_certain_is_a_number() -> None:
    """The entropy of a probability of 0 is 0, and its logarithm is not."""
    placement = start([[1000.0, -1000.0], [0.0, 1000.0]])
    stepped(placement, entropy_weight=1.0)
    assert bool(placement.isfinite().all())


def test_no_connections_place_by_work_alone(machine: Any, made: Any) -> None:
    """No connections give NaN, and all models go to the first device."""
    machine([1000, 1000], 1000)
    found = assigned(made(10, 10, 10, 10), model_connection={})
    assert sorted(found) == ["cuda:0", "cuda:0", "cuda:1", "cuda:1"]


def test_models_of_bfloat16() -> None:
    """A parameter of bfloat16 is an invalid data type to the size estimator."""
    model = nn.Linear(1024, 512, bias=False, dtype=torch.bfloat16)
    assert ModelSizeEstimator(model, 1).estimate_size() == 1.0
    assigner = ModelAssigner([model, nn.Linear(2, 2, dtype=torch.complex64)], {(0, 1): 1}, ["cpu"])
    assert assigner.assignment == [torch.device("cpu")] * 2


def test_memory_is_a_hard_limit(machine: Any, made: Any) -> None:
    """Memory is only a soft penalty: with a small weight, what does not fit is put there anyway."""
    machine([1000, 1000], 0)
    found = assigned(
        made(600, 600, 50),
        model_connection={(0, 1): 100, (1, 2): 1},
        connection_weight=1000,
        size_match_weight=0,
    )
    assert found[0] != found[1], "two models of 600 MB do not fit on one GPU that allows 700"
