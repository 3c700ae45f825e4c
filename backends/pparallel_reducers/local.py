"""Train alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from pparallel.errors import ClosedError
from pparallel.interfaces.reducer import Counters, Reducer
from pparallel.runtime.member import Member
from pparallel_reducers.config import LocalReducerConfig
from pparallel_reducers.gradients import clear, gradient

if TYPE_CHECKING:
    from torch.nn import Module
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler


class LocalReducer(Reducer):
    """Steps this member's own optimizer; nobody else takes part."""

    def __init__(self, config: LocalReducerConfig, *, member: Member) -> None:
        self._config = config
        self._member = member
        self._managed: tuple[Module, Optimizer, LRScheduler | None] | None = None
        self._started = False
        self._counters = Counters()

    @property
    @override
    def manages(self) -> bool:
        return True

    @override
    def open(self) -> None:
        pass

    @override
    def close(self) -> None:
        self._started = False

    @override
    def manage_model(
        self, model: Module, optimizer: Optimizer, lr_scheduler: LRScheduler | None = None
    ) -> None:
        if self._started:
            message = "manage_model() comes before start(), or after stop()"
            raise RuntimeError(message)
        self._managed = (model, optimizer, lr_scheduler)

    @override
    def start(self) -> None:
        if self._managed is None:
            message = f"member {self._member.name!r} must call manage_model() before start()"
            raise RuntimeError(message)
        self._started = True

    @override
    def push(self, model: Module) -> bool:
        if not self._started or self._managed is None:
            raise ClosedError("the reducer", "is not started: call start() first")
        managed, optimizer, scheduler = self._managed
        if model is not managed:
            message = "this is not the model that was given to manage_model()"
            raise ValueError(message)
        trainable = [each for each in model.named_parameters() if each[1].requires_grad]
        for name, parameter in trainable:
            gradient(name, parameter)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        clear(parameter for _, parameter in trainable)
        done = self._counters.reduced + 1
        self._counters = self._counters._replace(pushed=done, reduced=done)
        return True

    @override
    def pull(self, model: Module) -> bool:
        if self._managed is None:
            raise ClosedError("the reducer", "is not started: call start() first")
        return False

    @override
    def step(self, model: Module) -> bool:
        return self.push(model)

    @override
    def stop(self) -> None:
        self._started = False

    @override
    def counters(self) -> Counters:
        return self._counters
