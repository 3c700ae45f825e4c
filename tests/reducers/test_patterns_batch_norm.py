"""The example's synchronised batch normalisation is torch's, on the whole batch."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pparallel import SyncMaster
from pparallel.testing.patience import PATIENCE

EXAMPLE = Path(__file__).parents[2] / "examples" / "sync_batch_norm" / "batch_norm.py"


def _imported() -> Any:
    spec = importlib.util.spec_from_file_location("sync_batch_norm_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


example = _imported()

Shape = tuple[int, ...]
WHOLE: dict[int, Callable[..., nn.Module]] = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d}
WHOLE |= {4: nn.BatchNorm2d, 5: nn.BatchNorm3d}


class Replicas:
    """Modules that share each batch, every one in a thread of its own."""

    def __init__(self, sizes: list[int], features: int, **options: Any) -> None:
        self.sizes = sizes
        master = SyncMaster(example.add_up, timeout=PATIENCE)
        pipes = [master.register_slave(number) for number in range(1, len(sizes))]
        exchanges = [master.run_master, *(pipe.run_slave for pipe in pipes)]
        self.modules = [example.SyncBatchNorm(features, each, **options) for each in exchanges]

    def each(self, step: Callable[..., Any], *batches: Tensor) -> list[Any]:
        """Run *step* for each replica with its parts of *batches*; return the results."""
        parts = [batch.split(self.sizes) for batch in batches]
        with ThreadPoolExecutor(len(self.modules)) as threads:
            futures: list[Future[Any]] = [
                threads.submit(step, module, *(part[n] for part in parts))
                for n, module in enumerate(self.modules)
            ]
            return [future.result(PATIENCE) for future in futures]


def forward_backward(module: nn.Module, part: Tensor, weights: Tensor) -> tuple[Tensor, Any]:
    module.zero_grad()
    mine = part.detach().clone().requires_grad_()
    output = module(mine)
    (output * weights).sum().backward()
    return output.detach(), mine.grad


def batches(shape: Shape, steps: int, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    random = torch.Generator().manual_seed(0)
    return [
        (
            torch.randn(shape, generator=random, dtype=dtype) * 3 + 5,
            torch.randn(shape, generator=random, dtype=dtype),
        )
        for _ in range(steps)
    ]


def close(ours: Any, theirs: Any) -> bool:
    """Whether two tensors are equal to the tolerance of their type."""
    tolerance = 1e-10 if theirs.dtype == torch.float64 else 2e-5
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    return True


@pytest.mark.parametrize(
    ("sizes", "rest", "options"),
    [
        ([4], (6,), {"momentum": 0.3}),
        ([3, 3], (), {"dtype": torch.float64, "momentum": None}),
        ([1, 4, 2], (4, 5), {"eps": 0.5}),
        ([5, 0, 2], (2, 3, 2), {"dtype": torch.float64, "affine": False}),
        ([2, 3], (2,), {"track_running_stats": False}),
    ],
    ids=str,
)
def test_it_is_the_whole_batchs(sizes: list[int], rest: Shape, options: dict[str, Any]) -> None:
    shape = (sum(sizes), 3, *rest)
    whole, replicas = WHOLE[len(shape)](3, **options), Replicas(sizes, 3, **options)
    for batch, weights in batches(shape, 3, options.get("dtype", torch.float32)):
        output, gradient = forward_backward(whole, batch, weights)
        found = replicas.each(forward_backward, batch, weights)
        assert close(torch.cat([each[0] for each in found]), output)
        assert close(torch.cat([each[1] for each in found]), gradient)
        for name, parameter in whole.named_parameters():
            shares = [module.get_parameter(name).grad for module in replicas.modules]
            assert close(sum(shares), parameter.grad)
    for module in replicas.modules:
        for name, buffer in whole.named_buffers():
            assert close(module.get_buffer(name), buffer)
    assert bool(list(whole.parameters())) == options.get("affine", True)


def test_in_eval_mode_nobody_is_asked() -> None:
    whole, replicas = nn.BatchNorm2d(3), Replicas([2, 3], 3)
    (batch, weights), (other, _) = batches((5, 3, 4, 4), 2, torch.float32)
    forward_backward(whole, batch, weights)
    replicas.each(forward_backward, batch, weights)
    whole.eval()
    module = replicas.modules[1].eval()
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    assert close(module(other), whole(other))  # alone: an exchange would wait for the others
    ours, theirs = forward_backward(module, other, other), forward_backward(whole, other, other)
    assert close(ours[1], theirs[1])
    for name, buffer in module.named_buffers():
        assert torch.equal(buffer, before[name])


def test_a_small_variance_beside_a_large_mean() -> None:
    whole, replicas = nn.BatchNorm1d(2, dtype=torch.float64), Replicas([30, 70], 2)
    random = torch.Generator().manual_seed(0)
    batch = torch.randn(100, 2, generator=random) * 0.1 + 1000
    output = torch.cat(replicas.each(lambda module, part: module(part).detach(), batch))
    expected = whole(batch.double()).detach()
    torch.testing.assert_close(output.double(), expected, rtol=2e-3, atol=2e-3)


def test_the_state_is_torchs() -> None:
    whole, replicas = nn.BatchNorm2d(3), Replicas([2, 2], 3)
    (batch, weights), (other, _) = batches((4, 3, 2, 2), 2, torch.float32)
    forward_backward(whole, batch, weights)
    module = replicas.modules[0]
    module.load_state_dict(whole.state_dict())
    assert close(module.eval()(other), whole.eval()(other))


# -- failures ---------------------------------------------------------------------------------


def test_too_few_values_are_refused_in_all() -> None:
    replicas = Replicas([1, 0], 3)

    def refused(module: Any, part: Tensor) -> str:
        with pytest.raises(ValueError, match="more than 1 value") as caught:
            module(part)
        return str(caught.value)

    errors = replicas.each(refused, torch.ones(1, 3))
    assert set(errors) == {"needs more than 1 value per feature in training, got 1 in all"}


@pytest.mark.parametrize("shape", [(3,), (2, 4), (2, 4, 3)])
def test_another_shape_is_refused_before_anybody_is_asked(shape: Shape) -> None:
    replicas = Replicas([2, 2], 3)
    with pytest.raises(ValueError, match=r"expected an input of shape \[n, 3, \.\.\.\]"):
        replicas.modules[0](torch.ones(shape))


def test_second_derivatives_are_refused() -> None:
    (module,) = Replicas([4], 3).modules
    batch = torch.randn(4, 3, requires_grad=True)
    (gradient,) = torch.autograd.grad(module(batch).square().sum(), batch, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()
