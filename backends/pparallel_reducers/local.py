"""Train alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from pparallel.errors import ClosedError
from pparallel.interfaces.reducer import Counters, Reducer
from pparallel.runtime.events import Events
from pparallel.runtime.member import Member
from pparallel_reducers.config import LocalReducerConfig
from pparallel_reducers.gradients import clear, gradient
from pparallel_reducers.tally import Tally

if TYPE_CHECKING:
    from torch.nn import Module
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler


class LocalReducer(Reducer):
    """Steps this member's own optimizer; nobody else takes part."""

    def __init__(
        self, config: LocalReducerConfig, *, member: Member, events: Events, name: str
    ) -> None:
        self._config = config
        self._member = member
        self._tally = Tally(events, name)
        self._managed: tuple[Module, Optimizer, LRScheduler | None] | None = None
        self._open = self._started = self._begun = False
        self._steps = 0

    @property
    @override
    def manages(self) -> bool:
        return True

    @override
    def open(self) -> None:
        self._open = True

    @override
    def close(self) -> None:
        self._open = self._started = False

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
        if not self._open:
            raise ClosedError("the reducer", "is not open")
        if self._managed is None:
            message = f"member {self._member.name!r} must call manage_model() before start()"
            raise RuntimeError(message)
        self._started = self._begun = True

    @override
    def push(self, model: Module) -> bool:
        if not self._started or self._managed is None:
            raise ClosedError("the reducer", "is not started: call start() before push() or step()")
        managed, optimizer, scheduler = self._managed
        if model is not managed:
            message = "this is not the model that was given to manage_model()"
            self._tally.refused(1, self._member.name, message)
            raise ValueError(message)
        trainable = [each for each in model.named_parameters() if each[1].requires_grad]
        for name, parameter in trainable:
            gradient(name, parameter)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        clear(parameter for _, parameter in trainable)
        self._steps += 1
        self._tally.pushed()
        self._tally.reduced(1, 0, self._steps)
        return True

    @override
    def pull(self, model: Module) -> bool:
        if not self._begun:
            raise ClosedError("the reducer", "is not started: call start() before pull()")
        return False

    @override
    def step(self, model: Module) -> bool:
        return self.push(model)

    @override
    def stop(self) -> None:
        self._started = False

    @override
    def counters(self) -> Counters:
        return self._tally.counters()
