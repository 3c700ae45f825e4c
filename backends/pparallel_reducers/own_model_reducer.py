"""What the reducers have in common whose members each step a model of their own."""

from __future__ import annotations

import logging
from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from pparallel.errors import ClosedError
from pparallel.interfaces.reducer import Counters, Reducer
from pparallel.runtime.events import Events
from pparallel.runtime.member import Member
from pparallel_reducers.layout import ModelTensors, warn_of_max_norm
from pparallel_reducers.own_model import OwnModel, Pulled
from pparallel_reducers.tally import Tally

if TYPE_CHECKING:
    from torch.nn import Module
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from pparallel_reducers.layout import Layout

logger = logging.getLogger(__name__)

LEFT_WITHOUT_STOP = (
    "%s: the program has ended without stop(), and the other members wait for it in their steps or"
    " in stop(): call start() and stop() in all members"
)


class OwnModelReducer(Reducer):
    """Every member manages a model, and steps it itself; what it pulls into others is noted.

    A reducer fills in :meth:`begin`, :meth:`push`, :meth:`pull` and :meth:`stop`.
    """

    _writes: ClassVar[bool] = True  #: whether it copies into models

    def __init__(self, member: Member, events: Events, name: str) -> None:
        self._member = member
        self._tally = Tally(events, name)
        self._own = OwnModel(member.name, self._tally)
        self._pulled = Pulled(self._own, self._tally)
        self._open = False

    @abstractmethod
    def begin(self, layout: Layout, model: Module) -> None:
        """Begin a run with *model*, the managed one, which has *layout*; involves all members."""

    @property
    @override
    def manages(self) -> bool:
        return True

    @override
    def open(self) -> None:
        self._open = True

    @override
    def close(self) -> None:
        self._open = False
        self._own.end()

    @override
    def depart(self) -> None:
        if self._own.running and self._writes and self._member.world_size > 1:
            logger.warning(LEFT_WITHOUT_STOP, self._member.name)

    @override
    def manage_model(
        self, model: Module, optimizer: Optimizer, lr_scheduler: LRScheduler | None = None
    ) -> None:
        self._own.manage(model, optimizer, lr_scheduler)

    @override
    def start(self) -> None:
        if not self._open:
            raise ClosedError("the reducer", "is not open")
        if self._own.running:
            return
        model = self._own.model
        tensors = ModelTensors(model, written=self._writes)
        self._pulled.clear()
        self.begin(tensors.layout, model)
        self._own.begin(tensors)
        if self._writes and self._member.world_size > 1:
            self._own.managed.note_others()
            if self._member.rank == 0:
                warn_of_max_norm(model, logger)

    @override
    def step(self, model: Module) -> bool:
        before = self._pulled.count
        accepted = self.push(model)
        # A push that is refused may take the newest parameters itself.
        return self.pull(model) or accepted or self._pulled.count > before

    @override
    def counters(self) -> Counters:
        return self._tally.counters()

    def _refused_as_not_finite(self) -> bool:
        """Refuse the gradients, where ``refuse_nan`` is set, if something in them is not finite."""
        if (reason := self._own.not_finite()) is None:
            return False
        self._refuse_not_finite(reason)
        return True

    def _refuse_not_finite(self, reason: str) -> None:
        """Clear the gradients, which ``refuse_nan`` refuses for *reason*."""
        self._own.clear()
        self._tally.refused(1, self._member.name, reason)
        logger.warning("%s: a step is refused (refuse_nan): %s", self._member.name, reason)

    def _warn_of_other_parameters(self) -> None:
        """Say that parameters of the optimizer alone are not shared, if there are any."""
        others = [name for name, _ in self._own.managed.others()]
        if others and self._member.world_size > 1:
            logger.warning(
                "%s: %s is not a parameter of the model: each member trains its own, on its own"
                " gradients. Register it in the model to have all members train one",
                self._member.name,
                others[0],
            )
