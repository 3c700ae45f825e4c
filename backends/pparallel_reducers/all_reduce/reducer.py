"""Synchronous training: all members step on what they have reduced together."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING

from typing_extensions import override

from pparallel.interfaces.collective import Collective
from pparallel.runtime.events import Events
from pparallel.runtime.member import Member
from pparallel.runtime.rpc import RpcGroup
from pparallel_reducers.all_reduce.causes import Causes
from pparallel_reducers.all_reduce.roll import Word, count_ready
from pparallel_reducers.all_reduce.run import Run
from pparallel_reducers.config import AllReduceReducerConfig
from pparallel_reducers.gradients import outside_inference_mode
from pparallel_reducers.layout import Layout, ModelTensors
from pparallel_reducers.own_model_reducer import OwnModelReducer

if TYPE_CHECKING:
    from torch.nn import Module
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

logger = logging.getLogger(__name__)


class AllReduceReducer(OwnModelReducer):
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
        super().__init__(member, events, name)
        self._config = config
        self._collective, self._group = collective, group
        self._causes = Causes(group)
        self._run: Run | None = None
        self._former: list[Run] = []
        self._steps = 0  # in all runs
        self._has_met = False  # whether the others have met this member in start() already

    # -- life ---------------------------------------------------------------------------------

    @override
    def open(self) -> None:
        super().open()
        self._causes.open()

    @override
    def close(self) -> None:
        if not self._open:
            return
        super().close()
        self._end_former()
        if self._run is not None:
            self._run.close()
        self._causes.close()

    @override
    def depart(self) -> None:
        if self._own.running and not self._has_failed:
            logger.warning("%s left without stop(): the others cannot go on", self._member.name)
            self.close()

    @override
    def manage_model(
        self, model: Module, optimizer: Optimizer, lr_scheduler: LRScheduler | None = None
    ) -> None:
        if self._has_failed:
            self._own.end()
        super().manage_model(model, optimizer, lr_scheduler)

    @override
    def start(self) -> None:
        if self._has_failed:
            self._own.end()  # it has ended by itself, and stop() need not be called
        super().start()

    @override
    def begin(self, layout: Layout, model: Module) -> None:
        import torch

        with torch.inference_mode(False):  # else nothing could be written to what is made here
            self._begin(model)

    def _begin(self, model: Module) -> None:
        own = self._own.managed
        if len(self._collective.ranks) > 1:
            own.validate_dense()  # before a group is made: whoever is refused may start again
        if not self._has_met:
            self._group.meet("start")  # a long wait is logged, with who is missing
        self._has_met = True  # if this is interrupted, the others do not come again
        group = self._collective.new_group(self._collective.ranks)
        self._has_met = False  # whoever fails from now on closes the group, and all meet again
        self._causes.forget()
        if self._run is not None:
            self._former.append(self._run)
        self._run = Run(
            self._config,
            group,
            self._member,
            self._tally.sent,
            own,
            ModelTensors(model),
            self._causes,
        )
        self._run.begin()
        self._end_former()
        if self._member.rank:
            self._tally.pulled(self._steps)

    @override
    def stop(self) -> None:
        if not self._own.running or (run := self._run) is None:
            return
        self._own.end()
        with self._own.managed.gradients_set_aside():  # those that were not pushed
            try:
                failure = self._make_the_others_steps(run)
            finally:
                run.exchange.close()
        if (last := self._pulled.last) is not None:
            self.pull(last)
        if failure is not None:
            raise failure

    @override
    def watch(self) -> None:
        if self._run is not None:
            self._run.check()

    # -- training -----------------------------------------------------------------------------

    @property
    def _has_failed(self) -> bool:
        """Whether an error has ended the run."""
        return self._run is not None and self._run.error is not None

    @override
    @outside_inference_mode
    def push(self, model: Module) -> bool:
        try:
            return self._push(model)
        finally:
            if self._has_failed:
                self._own.managed.end()

    def _push(self, model: Module) -> bool:
        self._own.validate_managed(model)
        assert self._run is not None
        run, mine = self._run, self._run.pushes()
        signals = run.make(mine)
        if count_ready(signals):
            self._step(run, 1)
            return True
        self._refuse_not_finite(run.refuse(mine, signals))
        return False

    @override
    def step(self, model: Module) -> bool:
        return self.push(model)  # which leaves nothing newer to pull

    @override
    def pull(self, model: Module) -> bool:
        layout = self._own.pulled_into(model)
        if self._own.is_managed(model):
            return False
        return self._pulled.copy(layout, model, self._steps)

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
            outcome = self._own.step()
        except BaseException:
            run.step_failed()
            with suppress(Exception):  # there is another error to raise
                run.step_was_made()  # as it was in the others, which wait for this member there
            raise
        if not outcome.complete:
            run.step_failed()
        self._own.clear()
        self._steps += 1
        if own:
            self._tally.pushed()
        self._tally.reduced(own, 0, self._steps)
        run.step_was_made()
        if outcome.error is not None:
            raise outcome.error

    def _make_the_others_steps(self, run: Run) -> Exception | None:
        """Step with those that have not stopped yet, until all have; then have one model.

        Returns:
            What was first raised after a step that counts, as by a scheduler.

        Raises:
            Exception: what the optimizer raised before.
        """
        failure: Exception | None = None
        while True:
            signals = run.make(run.stops())
            if {each.word for each in signals} == {Word.STOPPED}:
                break
            if not count_ready(signals):
                continue
            try:
                self._step(run, 0)
            except BaseException as error:
                if run.failed:
                    run.tell_failure()
                    raise
                if not isinstance(error, Exception):
                    run.close()  # the others do not wait for this member
                    raise
                failure = failure or error  # raised after a step that counts: go on with the others
        run.finish()
        return failure

    def _end_former(self) -> None:
        """End the groups of former runs, which all have left: who ends one earlier seems lost."""
        while self._former:
            self._former.pop().close()
