"""Step a user's optimizer on the model that was given to ``manage_model()``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from pparallel_reducers.grad_server.board import Board
from pparallel_reducers.grad_server.flat import Flat
from pparallel_reducers.grad_server.shares import Share
from pparallel_reducers.gradients import clear
from pparallel_reducers.layout import ModelTensors
from pparallel_reducers.stepping import OptimizerStep

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler


class Stepper:
    """Steps the managed model itself, so that hooks see the parameters that are stepped.

    Gradients that the model has for its member's own purposes are set aside during a step. Where
    several primaries share the parameters, the optimizer sees of a tensor that is cut the part that
    is stepped here, with one dimension, and parameters of other shares have no gradient.
    """

    def __init__(
        self, model: Module, optimizer: Optimizer, scheduler: LRScheduler | None = None
    ) -> None:
        self.managed = OptimizerStep(model, optimizer, scheduler)
        self._recorded: ModelTensors | None = None
        self._share: Share | None = None
        self._cuts: _CutParameters | None = None

    @property
    def model(self) -> Module:
        """The managed model."""
        return self.managed.model

    def attach(self, share: Share) -> None:
        """Take the optimizer over, for the tensors in *share*."""
        self._recorded = ModelTensors(self.model)
        self._share = share
        self.managed.begin()
        self._cuts = _CutParameters(self.managed.optimizer, self._recorded.parameters, share)

    def detach(self) -> None:
        """Hand the optimizer back."""
        self.managed.end()
        if self._cuts is not None:
            self._cuts.undo()
        self._recorded = self._share = self._cuts = None

    def step(self, flat: Flat) -> BaseException | None:
        """Step once on the gradients of *flat*, which lies in one run.

        Returns:
            What was raised after parameters had moved.

        Raises:
            ValueError: the model or the optimizer has other parameters than at the start.
            BaseException: what the optimizer raised before any parameter had moved.
        """
        assert self._recorded is not None
        assert self._cuts is not None
        self._recorded.validate(self.model)
        self.managed.validate_others()
        gradients, buffers = flat.views()
        parameters = self._recorded.parameters
        targets = dict(self._recorded.buffers(self.model)) if buffers else {}
        former = {name: each.clone() for name, each in targets.items()}
        own = [(each, each.grad) for each in parameters.values()]
        clear(parameters.values())
        try:
            # As the forward passes that made them came first: hooks see them, and may write them.
            _copy_to(targets, dict(buffers))
            for name, view in gradients:
                stepped = self._cuts.parts.get(name, parameters[name])
                # Another tensor on the same memory: whoever keeps it is counted.
                stepped.grad = view.detach().to(stepped.device)
            outcome = self.managed.step()
        except BaseException:
            _copy_to(targets, former)
            raise
        finally:
            clear(self._cuts.parts.values())
            for parameter, gradient in own:
                parameter.grad = gradient
        for _, other in self.managed.others():
            other.grad = None
        self._cuts.settle()
        return outcome.error

    def publish(self, board: Board) -> None:
        """Publish the share on *board*."""
        assert self._share is not None
        board.publish(self._share, self.model)


def _copy_to(targets: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, value in values.items():
            targets[name].copy_(value)


class _CutParameters:
    """Has an optimizer step parts of the parameters that are cut between two primaries.

    Attributes:
        parts: the parts, by the names of the parameters.
    """

    def __init__(
        self, optimizer: Optimizer, parameters: Mapping[str, Parameter], share: Share
    ) -> None:
        self._share = share
        self._wholes = {name: each for name, each in parameters.items() if share.cut(name)}
        self.parts = {
            name: Parameter(share.part(name, each.detach())) for name, each in self._wholes.items()
        }
        self._optimizer = optimizer
        self._states: dict[str, dict[str, Any]] = {}
        if self.parts:
            self._replace({self._wholes[name]: part for name, part in self.parts.items()})
        for name, part in self.parts.items():
            whole = self._wholes[name]
            if whole in optimizer.state:
                state = self._states[name] = optimizer.state.pop(whole)
                optimizer.state[part] = {
                    key: self._part_of(name, value) for key, value in state.items()
                }

    def settle(self) -> None:
        """Copy parts back that could not share memory with their parameters."""
        if self.parts:
            self._share.settle(
                {name: each.detach() for name, each in self.parts.items()}, self._wholes
            )

    def undo(self) -> None:
        """Have the optimizer step whole parameters again; what was stepped keeps its state."""
        self._replace({part: self._wholes[name] for name, part in self.parts.items()})
        for name, part in self.parts.items():
            before = self._states.get(name, {})
            state = self._optimizer.state.pop(part, None)
            if state is None:
                continue
            self._optimizer.state[self._wholes[name]] = {
                key: self._whole_of(name, value, before.get(key)) for key, value in state.items()
            }

    def _replace(self, others: Mapping[Parameter, Parameter]) -> None:
        """Put others in the place of parameters, in lists that the optimizer may have kept."""
        for group in self._optimizer.param_groups if others else ():
            group["params"][:] = [others.get(each, each) for each in group["params"]]

    def _part_of(self, name: str, value: object) -> object:
        """Return the part of an optimizer's *value*, such as a moment, for a cut parameter."""
        if not isinstance(value, Tensor) or value.shape != self._wholes[name].shape:
            return value
        return self._share.part(name, value).clone()

    def _whole_of(self, name: str, value: object, before: object) -> object:
        """Return an optimizer's *value* for the whole parameter, of which a part was stepped."""
        whole = self._wholes[name]
        cut = self._share.cut(name)
        if cut is None or not isinstance(value, Tensor) or value.shape != self.parts[name].shape:
            return value
        if isinstance(before, Tensor) and before.shape == whole.shape:
            full = before.contiguous().clone()
        else:
            full = value.new_zeros(whole.shape)
        full.view(-1)[slice(*cut)] = value
        return full
