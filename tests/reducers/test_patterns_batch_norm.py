"""The example's synchronised batch normalisation is torch's, on the whole batch."""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pparallel import SyncMaster
from pparallel.errors import PeerLostError
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
    ("sizes", "rest", "affine", "dtype"),
    [
        ([4], (6,), True, torch.float32),
        ([3, 3], (), True, torch.float64),
        ([1, 4, 2], (4, 5), True, torch.float32),
        ([5, 0, 2], (2, 3, 2), False, torch.float64),
    ],
    ids=str,
)
def test_it_is_the_whole_batchs(
    sizes: list[int], rest: Shape, affine: bool, dtype: torch.dtype
) -> None:
    shape = (sum(sizes), 3, *rest)
    whole = WHOLE[len(shape)](3, affine=affine, dtype=dtype)
    replicas = Replicas(sizes, 3, affine=affine, dtype=dtype)
    for batch, weights in batches(shape, 3, dtype):
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
    assert affine == bool(list(whole.parameters()))


@pytest.mark.parametrize("options", [{"momentum": 0.3}, {"momentum": None}, {"eps": 0.5}], ids=str)
def test_options(options: dict[str, Any]) -> None:
    whole, replicas = nn.BatchNorm1d(4, **options), Replicas([2, 5], 4, **options)
    for batch, weights in batches((7, 4), 4, torch.float32):
        output, _ = forward_backward(whole, batch, weights)
        found = replicas.each(forward_backward, batch, weights)
        assert close(torch.cat([each[0] for each in found]), output)
    for module in replicas.modules:
        assert close(module.running_mean, whole.running_mean)
        assert close(module.running_var, whole.running_var)
        assert module.num_batches_tracked == 4


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


def test_without_running_statistics() -> None:
    whole = nn.BatchNorm1d(3, track_running_stats=False)
    replicas = Replicas([2, 3], 3, track_running_stats=False)
    for training in (True, False):
        whole.train(training)
        for module in replicas.modules:
            module.train(training)
        for batch, weights in batches((5, 3, 2), 2, torch.float32):
            output, gradient = forward_backward(whole, batch, weights)
            found = replicas.each(forward_backward, batch, weights)
            assert close(torch.cat([each[0] for each in found]), output)
            assert close(torch.cat([each[1] for each in found]), gradient)


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


def test_an_optimizer_step_keeps_the_replicas_together() -> None:
    whole, replicas = nn.BatchNorm1d(3), Replicas([1, 4, 2], 3)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (whole, *replicas.modules)]

    def share(module: Any, part: Tensor, weights: Tensor) -> None:
        forward_backward(module, part, weights)
        for parameter in module.parameters():
            parameter.grad = module.exchange(parameter.grad)

    for batch, weights in batches((7, 3), 5, torch.float32):
        forward_backward(whole, batch, weights)
        replicas.each(share, batch, weights)
        for optimizer in optimizers:
            optimizer.step()
    for module in replicas.modules:
        assert close(module.weight.detach(), whole.weight.detach())
        assert close(module.bias.detach(), whole.bias.detach())


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


def test_a_replica_that_runs_out_of_memory_ends_the_others() -> None:
    master = SyncMaster(example.add_up)
    pipes = [master.register_slave(number) for number in (1, 2)]
    module = example.SyncBatchNorm(3, master.run_master)
    other = example.SyncBatchNorm(3, pipes[0].run_slave)
    errors: list[BaseException] = []

    def replica(module: nn.Module) -> None:
        try:
            module(torch.ones(2, 3))
        except PeerLostError as error:
            errors.append(error)

    threads = [threading.Thread(target=replica, args=(each,)) for each in (module, other)]
    for thread in threads:
        thread.start()
    with pytest.raises(MemoryError), pipes[1]:
        raise MemoryError("no room for the batch")
    for thread in threads:
        thread.join(PATIENCE)
    told = "member '2' failed in round 1: MemoryError: no room for the batch"
    assert [str(error) for error in errors] == [told, told]


def test_second_derivatives_are_refused() -> None:
    (module,) = Replicas([4], 3).modules
    batch = torch.randn(4, 3, requires_grad=True)
    (gradient,) = torch.autograd.grad(module(batch).square().sum(), batch, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()
