"""Step a user's optimizer on parameters that the user's threads do not touch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from typing_extensions import override

from pparallel_reducers.grad_server.flat import Flat
from pparallel_reducers.grad_server.shares import Share
from pparallel_reducers.layout import state_of

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler


class AnyStepper(Protocol):
    """Steps a managed model.

    Attributes:
        model: which.
    """

    model: Module

    def attach(self, share: Share) -> None:
        """Take the optimizer over, for what *share* has of the model's tensors."""

    def detach(self) -> None:
        """Hand the optimizer back."""

    def step(self, flat: Flat) -> None:
        """Step once on the gradients of *flat*, which lies in one run."""

    def state(self) -> Mapping[str, Tensor]:
        """Return the parameters and buffers, which the next step changes."""


class InPlaceStepper(AnyStepper):
    """Steps the managed model itself, which nobody else changes meanwhile."""

    def __init__(self, model: Module, optimizer: Optimizer, scheduler: LRScheduler | None) -> None:
        self.model = model
        self._optimizer = optimizer
        self._scheduler = scheduler
        self._tensors: dict[str, Tensor] = {}

    @override
    def attach(self, share: Share) -> None:
        tensors = state_of(self.model)
        self._tensors = {each.name: tensors[each.name] for each in share.layout.entries}

    @override
    def detach(self) -> None:
        self._tensors = {}

    @override
    def step(self, flat: Flat) -> None:
        gradients, buffers = flat.views()
        for name, view in gradients:
            self._tensors[name].grad = view.to(self._tensors[name].device)
        self._optimizer.step()
        if self._scheduler is not None:
            self._scheduler.step()
        for name, _ in gradients:
            self._tensors[name].grad = None
        with torch.no_grad():
            for name, view in buffers:
                self._tensors[name].copy_(view)

    @override
    def state(self) -> Mapping[str, Tensor]:
        return {name: each.detach().cpu() for name, each in self._tensors.items()}


class Stepper(AnyStepper):
    """Steps copies of the managed model's parameters, which lie in flat memory.

    The optimizer is made to point at the copies: the user may train with the managed model itself
    while the reducing thread steps, and autograd refuses parameters that change in between. Of the
    parameters of other shares the optimizer sees nothing meanwhile.
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
        self._state: dict[str, Tensor] = {}
        self._swap: _Swap | None = None

    @override
    def attach(self, share: Share) -> None:
        tensors = state_of(self.model)
        flats = {each: flat.to(self._device) for each, flat in share.layout.state.empty().items()}
        kinds = {each.name: each.kind for each in share.layout.entries}
        for name, view in share.layout.state.views(flats):
            view.copy_(share.part(name, tensors[name].detach()))
            self._state[name] = view
            if kinds[name] == "buffer":
                self._buffers[name] = view
            else:
                self._parameters[name] = Parameter(view, requires_grad=kinds[name] == "trainable")
        self._swap = _Swap(self._optimizer, self.model, share, self._parameters)

    @override
    def detach(self) -> None:
        swap, self._swap = self._swap, None
        if swap is not None:
            swap.undo()
        self._parameters, self._buffers, self._state = {}, {}, {}

    @override
    def step(self, flat: Flat) -> None:
        gradients, buffers = flat.views()
        for name, view in gradients:
            self._parameters[name].grad = view
        self._optimizer.step()
        if self._scheduler is not None:
            self._scheduler.step()
        for parameter in self._parameters.values():
            parameter.grad = None
        for name, view in buffers:
            self._buffers[name].copy_(view)

    @override
    def state(self) -> Mapping[str, Tensor]:
        return self._state


class _Swap:
    """Has an optimizer point at copies of parameters, or of parts of them."""

    def __init__(
        self, optimizer: Optimizer, model: Module, share: Share, copies: Mapping[str, Parameter]
    ) -> None:
        self._optimizer, self._share = optimizer, share
        self._names: dict[Tensor, str] = {
            parameter: name for name, parameter in model.named_parameters()
        }
        self._copies = copies
        self._params = [list(group["params"]) for group in optimizer.param_groups]
        self._states = dict(optimizer.state)
        optimizer.state.clear()
        for group, params in zip(optimizer.param_groups, self._params, strict=True):
            group["params"] = [new for old in params if (new := self._copy_of(old)) is not None]
        for old, state in self._states.items():
            if (new := self._copy_of(old)) is not None:
                optimizer.state[new] = {key: self._there(old, new, state[key]) for key in state}

    def undo(self) -> None:
        """Point at the parameters again; what was stepped keeps its state."""
        stepped = dict(self._optimizer.state)
        for group, params in zip(self._optimizer.param_groups, self._params, strict=False):
            group["params"] = params
        self._optimizer.state.clear()
        self._optimizer.state.update(self._states)
        olds = {new: old for old in self._all() if (new := self._copy_of(old)) is not None}
        for new, state in stepped.items():
            old = olds.get(new, new)
            before = self._states.get(old, {})
            self._optimizer.state[old] = {
                key: self._back(old, new, state[key], before.get(key)) for key in state
            }

    def _all(self) -> list[Any]:
        return [each for params in self._params for each in params]

    def _copy_of(self, parameter: Any) -> Any:
        """Return what stands for *parameter*: itself if it is not the model's, None if nothing."""
        name = self._names.get(parameter)
        return parameter if name is None else self._copies.get(name)

    def _there(self, old: Tensor, new: Tensor, value: object) -> object:
        """Return the part of an optimizer's *value* that belongs to a copy, beside that."""
        if not isinstance(value, Tensor):
            return value
        name = self._names.get(old)
        if name is not None and self._share.cut(name) and value.shape == old.shape:
            value = self._share.part(name, value).clone()
        return _beside(value, old, new)

    def _back(self, old: Tensor, new: Tensor, value: object, before: object) -> object:
        """Return an optimizer's *value* for the whole of which the copy was a part."""
        cut = self._share.cut(self._names[old]) if old in self._names else None
        if not isinstance(value, Tensor):
            return value
        value = _beside(value, new, old)
        if cut is None or value.shape != new.shape:
            return value
        whole = before if isinstance(before, Tensor) and before.shape == old.shape else None
        full = value.new_zeros(old.shape) if whole is None else whole.contiguous().clone()
        full.view(-1)[slice(*cut)] = value
        return full


def _beside(value: Tensor, old: Tensor, new: Tensor) -> Tensor:
    """Move what lay on the parameter's device with it; step counters stay where they are."""
    return value.to(new.device) if value.device == old.device else value
