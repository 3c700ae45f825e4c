"""Synchronous training: all members step on what they have reduced together."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, ref

from typing_extensions import override

from pparallel.errors import ClosedError
from pparallel.interfaces.collective import Collective
from pparallel.interfaces.reducer import Counters, Reducer
from pparallel.runtime.events import Events
from pparallel.runtime.member import Member
from pparallel.runtime.rpc import RpcGroup
from pparallel_reducers.all_reduce.causes import Causes
from pparallel_reducers.all_reduce.roll import Word, count_ready
from pparallel_reducers.all_reduce.run import Run
from pparallel_reducers.config import AllReduceReducerConfig
from pparallel_reducers.layout import Layout, load, state_of
from pparallel_reducers.own_model import OwnModel
from pparallel_reducers.tally import Tally

if TYPE_CHECKING:
    from torch.nn import Module
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

logger = logging.getLogger(__name__)


class AllReduceReducer(Reducer):
    """Every step is one of all members, on the mean or the sum of their gradients.

    Each has an optimizer of its own. As all begin with the same parameters, and step on the same
    gradients, their models stay the same, bit for bit. A member in :meth:`stop` makes the steps of
    those that are not, and hands nothing in.

    Source: PyTorch's DistributedDataParallel (Li et al., "PyTorch Distributed", VLDB 2020), and its
    ``Join`` for members that have fewer batches than others.
    """

    def __init__(
        self,
        config: AllReduceReducerConfig,
        *,
        member: Member,
        collective: Collective,
        group: RpcGroup,
        name: str,
        events: Events,
    ) -> None:
        self._config = config
        self._member = member
        self._collective = collective
        self._causes = Causes(group)
        self._tally = Tally(events, name)
        self._own = OwnModel(member.name, self._tally)
        self._run: Run | None = None
        self._former: list[Run] = []
        self._open = False
        self._steps = 0  # in all runs
        self._last: ref[Module] | None = None
        self._versions: WeakKeyDictionary[Module, int] = WeakKeyDictionary()

    @property
    @override
    def manages(self) -> bool:
        return True

    # -- life ---------------------------------------------------------------------------------

    @override
    def open(self) -> None:
        self._causes.open()
        self._open = True

    @override
    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        self._own.end()
        self._end_former()
        if self._run is not None:
            self._run.close()
        self._causes.close()

    @override
    def depart(self) -> None:
        if self._own.running:
            logger.warning("%s left without stop(): the others cannot go on", self._member.name)
            self.close()

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
        group = self._collective.new_group(self._collective.ranks)
        self._causes.forget()
        if self._run is not None:
            self._former.append(self._run)
        sent = self._tally.sent
        self._run = Run(self._config, group, self._member, sent, model, layout, self._causes)
        self._run.begin()
        self._end_former()
        self._versions.clear()
        self._own.begin(layout)
        if self._member.rank:
            self._tally.pulled(self._steps)

    @override
    def stop(self) -> None:
        if not self._own.running or (run := self._run) is None:
            return
        self._own.end()
        self._own.clear()  # what was not pushed is nobody's
        try:
            self._make_the_others_steps(run)
        finally:
            run.exchange.close()
        if (last := None if self._last is None else self._last()) is not None:
            self.pull(last)

    @override
    def watch(self) -> None:
        if self._run is not None:
            self._run.check()

    @override
    def counters(self) -> Counters:
        return self._tally.counters()

    # -- training -----------------------------------------------------------------------------

    @override
    def push(self, model: Module) -> bool:
        self._own.managed(model)
        assert self._run is not None
        run, mine = self._run, self._run.pushes()
        signals = run.make(mine)
        if count_ready(signals):
            self._step(run, 1)
            return True
        reason = run.refuse(mine, signals)
        self._own.clear()
        self._tally.refused(1, self._member.name, reason)
        return False

    @override
    def pull(self, model: Module) -> bool:
        layout = self._own.pulled_into(model)
        if model is self._own.model:
            return False
        self._last = ref(model)
        if self._versions.get(model) == self._steps:
            return False
        load(layout, layout.state.pack(state_of(self._own.model).__getitem__), model)
        self._versions[model] = self._steps
        self._tally.pulled(self._steps)
        return True

    @override
    def step(self, model: Module) -> bool:
        return self.push(model) or self.pull(model)

    def accumulate(self) -> AbstractContextManager[None]:
        """Have the backward passes in a ``with`` block add up, and hand nothing in.

        Only with ``overlap`` does this make a difference: all passes before a step but the last go
        into such a block.
        """
        return nullcontext() if self._run is None else self._run.exchange.accumulating()

    # -- inside -------------------------------------------------------------------------------

    def _step(self, run: Run, own: int) -> None:
        """Step on the combined gradients, in which *own* of this member are."""
        try:
            self._own.step()
        except BaseException:
            run.step_failed()
            raise
        self._own.clear()
        self._steps += 1
        if own:
            self._tally.pushed()
        self._tally.reduced(own, 0, self._steps)
        run.step_was_made()

    def _make_the_others_steps(self, run: Run) -> None:
        """Step with those that have not stopped yet, until all have; then have one model."""
        while True:
            signals = run.make(run.stops())
            if {each.word for each in signals} == {Word.STOPPED}:
                break
            if count_ready(signals):
                try:
                    self._step(run, 0)
                except Exception:
                    run.tell_failure()
                    raise
        run.finish()

    def _end_former(self) -> None:
        """End the groups of former runs, which all have left: who ends one earlier seems lost."""
        while self._former:
            self._former.pop().close()
