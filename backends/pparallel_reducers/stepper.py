"""Step a user's optimizer on parameters that the user's threads do not touch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor
from torch.nn import Module, Parameter

from pparallel_reducers.layout import Flats, Layout
from pparallel_reducers.sums import Sum

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler


class Stepper:
    """Steps copies of the managed model's parameters.

    The optimizer is made to point at the copies: the user may train with the managed model itself
    while the reducing thread steps, and autograd refuses parameters that change in between.
    """

    def __init__(
        self, model: Module, optimizer: Optimizer, scheduler: LRScheduler | None, device: str
    ) -> None:
        self.model = model
        self._optimizer = optimizer
        self._scheduler = scheduler
        self._device = device
        self._parameters: dict[str, Parameter] = {}
        self._buffers: dict[str, Tensor] = {}
        self.layout = Layout(())

    def attach(self) -> None:
        """Copy the model's tensors and take the optimizer over."""
        self.layout = Layout.of(self.model)
        for name, parameter in self.model.named_parameters():
            copy = parameter.detach().to(self._device, copy=True)
            self._parameters[name] = Parameter(copy, requires_grad=parameter.requires_grad)
        for name, buffer in self.model.named_buffers():
            self._buffers[name] = buffer.detach().to(self._device, copy=True)
        self._point({each: self._parameters[name] for name, each in self._of_model()})

    def detach(self) -> None:
        """Hand the optimizer back, pointing at the model's parameters as before."""
        self._point({self._parameters[name]: each for name, each in self._of_model()})
        self._parameters.clear()
        self._buffers.clear()

    def step(self, batch: Sum) -> None:
        """Step once on the gradients of *batch*."""
        for name, view in self.layout.gradients.views(batch.gradients):
            self._parameters[name].grad = view
        self._optimizer.step()
        if self._scheduler is not None:
            self._scheduler.step()
        for parameter in self._parameters.values():
            parameter.grad = None
        for name, view in self.layout.buffers.views(batch.buffers):
            self._buffers[name].copy_(view)

    def state(self) -> Flats:
        """Return the parameters and buffers as they are now."""
        tensors = {**self._parameters, **self._buffers}
        return self.layout.state.pack(tensors.__getitem__)

    def _of_model(self) -> list[tuple[str, Parameter]]:
        return [each for each in self.model.named_parameters() if each[0] in self._parameters]

    def _point(self, to: Mapping[Tensor, Tensor]) -> None:
        optimizer = self._optimizer
        for group in optimizer.param_groups:
            group["params"] = [to.get(each, each) for each in group["params"]]
        held = dict(optimizer.state)
        optimizer.state.clear()
        for old, state in held.items():
            new = to.get(old, old)
            optimizer.state[new] = {key: _beside(value, old, new) for key, value in state.items()}


def _beside(value: object, old: object, new: Tensor) -> object:
    """Move what lay on the parameter's device with it; step counters stay where they are."""
    moves = isinstance(value, Tensor) and isinstance(old, Tensor) and value.device == old.device
    return value.to(new.device) if moves and isinstance(value, Tensor) else value
