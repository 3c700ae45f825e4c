"""Train alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from pparallel.runtime.events import Events
from pparallel.runtime.member import Member
from pparallel_reducers.config import LocalReducerConfig
from pparallel_reducers.gradients import outside_inference_mode
from pparallel_reducers.layout import Layout
from pparallel_reducers.own_model_reducer import OwnModelReducer

if TYPE_CHECKING:
    from torch.nn import Module


class LocalReducer(OwnModelReducer):
    """Steps this member's own optimizer; nobody else takes part."""

    _writes = False

    def __init__(
        self, config: LocalReducerConfig, *, member: Member, events: Events, name: str
    ) -> None:
        super().__init__(member, events, name)
        self._config = config
        self._steps = 0

    @override
    def begin(self, layout: Layout, model: Module) -> None:
        """There is nobody to begin with."""

    @override
    @outside_inference_mode
    def push(self, model: Module) -> bool:
        self._own.check(model)
        if self._config.refuse_nan and self._refused_as_not_finite():
            return False
        outcome = self._own.step()
        self._own.clear()
        self._steps += 1
        self._tally.pushed()
        self._tally.reduced(1, 0, self._steps)
        if outcome.error is not None:
            raise outcome.error
        return True

    @override
    def pull(self, model: Module) -> bool:
        layout = self._own.pulled_into(model)
        return not self._own.is_managed(model) and self._pulled.copy(layout, model, self._steps)

    @override
    def stop(self) -> None:
        if not self._own.running:
            return
        self._own.end()
        if (last := self._pulled.last) is not None:
            self.pull(last)
