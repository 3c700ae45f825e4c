"""The training loop of one member, on a reducer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pparallel.errors import PeerLostError
from pparallel.interfaces.reducer import Reducer
from pparallel.testing.training.case import Case, Training
from pparallel.testing.training.outcome import Outcome, Refusal, Snapshot, outcome_of

if TYPE_CHECKING:
    from torch.nn import Module

    from pparallel.builder import Runtime

T = TypeVar("T")


class Plan(NamedTuple):
    """What the members of one job do.

    Attributes:
        case: how they train.
        first: the first step that is made.
        last: the step before which the job ends.
        states: what the members saved at the end of a former job, by rank.
        in_turns: whether they make each step one after another.
    """

    case: Case
    first: int
    last: int
    states: Mapping[int, Mapping[str, Any]]
    in_turns: bool = False


def train_as_member(rt: Runtime, plan: Plan) -> Outcome:
    """Train as *plan* says, and return what it has come to."""
    turns = (rt.world_size, rt.group().barrier) if plan.in_turns else (1, _no_barrier)
    loop = Loop(rt.reducer, plan, rt.rank, *turns)
    outcome = loop.train()
    if (error := loop.error) is not None and rt.world_size > 1:
        raise error if isinstance(error, PeerLostError) else JobEndedError(outcome)
    return outcome


class JobEndedError(Exception):
    """A member was refused where the others wait for it: it ends the job, as a program does.

    Attributes:
        outcome: what its training has come to.
    """

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome)
        self.outcome = outcome


class Loop:
    """The loop of the docstring of :class:`Reducer`, with what a case does besides.

    Args:
        reducer: what makes the steps.
        plan: what to do.
        rank: of this member.
        turns: how many members make each step one after another; 1 if all make it at once.
        barrier: waits for all members.
    """

    def __init__(
        self,
        reducer: Reducer,
        plan: Plan,
        rank: int,
        turns: int = 1,
        barrier: Callable[[], object] = lambda: None,
    ) -> None:
        self._reducer, self._plan, self._case = reducer, plan, plan.case
        self._rank, self._turns, self._barrier = rank, turns, barrier
        self._training = Training(plan.case, rank, manages=reducer.manages)
        self._training.accumulating = getattr(reducer, "accumulate", self._training.accumulating)
        self._training.pull = self._pull
        self._refusals: list[Refusal] = []
        self._state: dict[str, Any] = {}
        self._running = False
        self._error: Exception | None = None

    @property
    def error(self) -> Exception | None:
        """The first exception, if it came where the other members may wait for this one."""
        return None if self._running else self._error

    def train(self) -> Outcome:
        """Train, and return what it has come to; what the reducer raises is part of that."""
        try:
            self._train()
        except _RefusedError:
            ended = False
        else:
            ended = True
        outcome = outcome_of(self._training, trains=self._reducer.trains)
        outcome.refusals, outcome.state, outcome.ended = self._refusals, self._state, ended
        return outcome

    # -- the loop -----------------------------------------------------------------------------

    def _train(self) -> None:
        reducer, training, plan = self._reducer, self._training, self._plan
        if plan.states:
            training.load(plan.states[self._rank])
            reducer.load_state_dict(plan.states[self._rank]["reducer"])
        if (optimizer := training.optimizer) is not None:
            self._call(
                "manage_model",
                lambda: reducer.manage_model(training.model, optimizer, training.scheduler),
            )
        self._start()
        self._running = self._turns == 1  # else the others wait at the barrier
        try:
            self._steps()
        except _RefusedError:
            if self._running:
                self._try_call("stop", reducer.stop)
            raise
        self._running = True
        if reducer.trains:
            self._save()
        self._call("stop", reducer.stop)
        if not reducer.trains:
            self._save()
        self._case.after_stop(self._training)

    def _start(self) -> None:
        self._call("start", self._reducer.start)
        self._pull(self._training.model)

    def _pull(self, model: Module) -> bool:
        return self._call("pull", lambda: self._reducer.pull(model))

    def _steps(self) -> None:
        for step in range(self._plan.first, self._plan.last):
            if step == self._case.change_at:
                self._change(step)
            for turn in range(self._turns):
                if self._turns == 1 or turn == self._rank:
                    self._step(step)
                self._barrier()

    def _step(self, step: int) -> None:
        reducer, training, case = self._reducer, self._training, self._case
        if not reducer.trains:
            return
        if self._turns > 1:
            self._pull(training.model)
        case.backward(training, step)
        case.before_step(training, step)
        make = reducer.push if case.pushes else reducer.step
        self._call("step", lambda: case.step(training, step, lambda: make(training.model)))
        case.after_step(training, step)

    # -- changes and checkpoints --------------------------------------------------------------

    def _change(self, step: int) -> None:
        """Change the model; after a refusal follow its advice: stop and start again."""
        training, reducer = self._training, self._reducer
        if reducer.trains:
            self._case.change(training)
            self._case.backward(training, step)
            training.losses.pop()  # the batch is trained on later
            self._try_call("step", lambda: reducer.step(training.model))
            for each in training.parameters():
                each.grad = None
        self._call("stop", reducer.stop)
        if not reducer.trains:
            self._case.change(training)
        self._start()

    def _save(self) -> None:
        """Save all that the rest of the training needs, at the step where another job goes on.

        A member that trains saves between two steps; a dedicated server once all have stopped.
        """
        if self._case.resume_at == self._plan.last:
            if self._turns > 1:  # the others' last steps
                self._pull(self._training.model)
            self._state = {**self._training.state(), "reducer": self._reducer.state_dict()}

    # -- calls --------------------------------------------------------------------------------

    def _call(self, name: str, call: Callable[[], T]) -> T:
        """Call; note an exception, and end the training."""
        before = Snapshot(self._training) if self._reducer.trains else None
        try:
            return call()
        except Exception as error:
            harmed = () if before is None else before.harmed()
            kinds = tuple(each.__name__ for each in type(error).__mro__)
            self._refusals.append(Refusal(name, kinds, str(error), harmed))
            self._error = self._error or error
            raise _RefusedError from error

    def _try_call(self, name: str, call: Callable[[], object]) -> bool:
        """Call; note an exception, and return whether there was none."""
        try:
            self._call(name, call)
        except _RefusedError:
            return False
        return True


class _RefusedError(Exception):
    """The reducer raised, which is noted."""


def _no_barrier() -> None:
    """Wait for nobody."""
