"""Models to train in tests; torch is imported when the first is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer
    from torch.optim.swa_utils import AveragedModel

    from pparallel.interfaces.reducer import Reducer


def line(seed: int = 0, outputs: int = 1) -> nn.Sequential:
    """Return a small model, the same for the same seed: two layers, three inputs."""
    import torch

    random = torch.Generator().manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, outputs))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.rand(parameter.shape, generator=random) - 0.5)
    return model


def parameters(model: nn.Module) -> list[list[float]]:
    """Return the parameters as plain numbers."""
    return [each.detach().flatten().tolist() for each in model.parameters()]


def fill(model: nn.Module, value: float) -> None:
    """Set all parameters to *value*, in place."""
    for each in model.parameters():
        each.detach().fill_(value)


def backward(model: nn.Module, seed: int, target: float = 0.0) -> Tensor:
    """Compute gradients on a batch, the same for the same seed, and return the loss."""
    import torch

    batch = torch.rand(8, 3, generator=torch.Generator().manual_seed(seed))
    loss: Tensor = (model(batch) - target).square().mean()
    loss.backward()
    return loss


def descent(model: nn.Module, lr: float = 0.1, weight_decay: float = 0.0) -> Optimizer:
    """Return plain gradient descent on the parameters of *model*."""
    import torch

    return torch.optim.SGD(model.parameters(), lr=lr, weight_decay=weight_decay)


def manage(reducer: Reducer, model: nn.Module, lr: float = 0.1) -> None:
    """Let *reducer* step *model* with plain gradient descent, where it manages."""
    if reducer.manages:
        reducer.manage_model(model, descent(model, lr))


def weight() -> nn.Module:
    """Return a model of one parameter of one element, float64."""
    import torch

    return torch.nn.Linear(1, 1, bias=False, dtype=torch.float64)


def set_gradient(model: nn.Module, value: float) -> None:
    """Make *value* the gradient of every element."""
    import torch

    for each in model.parameters():
        each.grad = torch.full_like(each, value)


def recording(model: nn.Module, steps: list[float]) -> Optimizer:
    """Return an optimizer that notes in *steps* the gradient of its first parameter."""
    optimizer = descent(model)

    def note(optimizer: Optimizer, *_: object) -> None:
        (grad,) = optimizer.param_groups[0]["params"][0].grad.flatten().tolist()
        steps.append(grad)

    optimizer.register_step_pre_hook(note)
    return optimizer


def clipping(model: nn.Module, norm: float) -> Callable[..., None]:
    """Return a step hook that clips the gradients of *model* to *norm*."""
    import torch

    def clip(*_: object) -> None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), norm)

    return clip


def averaging(model: nn.Module, average: AveragedModel) -> Callable[..., None]:
    """Return a step hook that takes *model* into *average*."""

    def update(*_: object) -> None:
        average.update_parameters(model)

    return update
