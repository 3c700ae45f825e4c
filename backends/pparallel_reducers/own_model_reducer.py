"""What the reducers have in common whose members each step a model of their own."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from typing_extensions import override

from pparallel.errors import ClosedError
from pparallel.interfaces.reducer import Counters, Reducer
from pparallel.runtime.events import Events
from pparallel.runtime.member import Member
from pparallel_reducers.layout import Layout
from pparallel_reducers.own_model import OwnModel, Pulled
from pparallel_reducers.tally import Tally

if TYPE_CHECKING:
    from torch.nn import Module
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler


class OwnModelReducer(Reducer):
    """Every member manages a model, and steps it itself; what it pulls into others is noted.

    A reducer fills in :meth:`begin`, :meth:`push`, :meth:`pull` and :meth:`stop`.
    """

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
        layout = Layout.of(model)
        self._pulled.clear()
        self.begin(layout, model)
        self._own.begin(layout)

    @override
    def step(self, model: Module) -> bool:
        accepted = self.push(model)
        return self.pull(model) or accepted

    @override
    def counters(self) -> Counters:
        return self._tally.counters()
