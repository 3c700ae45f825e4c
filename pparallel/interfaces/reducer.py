"""Reducer: let members train one model together."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from pparallel.config import BackendConfig
from pparallel.interfaces.resource import Resource

if TYPE_CHECKING:
    from torch.nn import Module
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler


class Counters(NamedTuple):
    """What became of the gradients, as far as one member knows; counted since it was built.

    Attributes:
        pushed: gradients of this member that were accepted: acknowledged, or stepped here.
        reduced: gradients that this member put into steps of its optimizer.
        late: gradients that arrived here before reducing started or after it stopped, or after the
            round that they were for; their senders were told so.
        refused: gradients that arrived here and were refused for another reason: another model,
            or a reducing thread that had failed.
        lost: acknowledged gradients of this member that ended with the member that held them, or
            that this member passed on and the primary refused.
        staleness: mean number of steps by which gradients reduced here were behind.
        sent_bytes: bytes of gradients and parameters that this member has sent to other members;
            those that it took from them are counted where they were sent.
    """

    pushed: int = 0
    reduced: int = 0
    late: int = 0
    refused: int = 0
    lost: int = 0
    staleness: float = 0.0
    sent_bytes: int = 0


class Reducer(Resource):
    """Lets members train one model together, with one training loop for all backends.

    The loop::

        if r.manages:
            r.manage_model(model, optimizer, scheduler)
        r.start()
        if r.trains:
            for batch in batches:
                loss(model, batch).backward()
                r.step(model)
        r.stop()

    Guarantees:
        - One step on one gradient is what the optimizer alone would have done
          (``ReducerSuite.test_one_step_is_the_optimizers_step``).
        - A step is on the mean of the gradients that it reduces, in which each counts alike, unless
          the config says otherwise (``ReducerSuite.test_each_gradient_weighs_alike``).
        - Gradients are cleared (None) once they were taken
          (``ReducerSuite.test_gradients_are_cleared``); several ``backward`` before one step add
          up, as ever (``ReducerSuite.test_gradients_accumulate``).
        - A trainable parameter without a gradient is refused by its name
          (``ReducerSuite.test_a_parameter_without_gradient_is_named``); one that is frozen is left
          as it is (``ReducerSuite.test_frozen_parameters_stay``).
        - A model that is not like the one managed is refused, and keeps its gradients and
          parameters (``ReducerSuite.test_another_model_is_refused``,
          ``test_another_model_is_not_pulled_into``).
        - No gradient is dropped silently: what was acknowledged is reduced, at most once, is
          counted as lost, or :meth:`stop` raises what kept it from being reduced
          (``ReducerSuite.test_every_gradient_is_reduced_once``,
          ``test_each_gradient_weighs_alike``, ``test_a_step_that_fails_is_raised``).
        - What the optimizer raises before any parameter has moved comes out of :meth:`push`, which
          then took nothing, or else out of :meth:`stop` and, from then on, :meth:`watch`
          (``ReducerSuite.test_a_step_that_fails_is_raised``). What is raised after that, as by a
          scheduler, is raised likewise, but the step counts and its gradients are cleared
          (``ReducerSuite.test_a_scheduler_that_fails_is_raised_once_the_step_counts``).
        - The optimizer steps the managed model's own parameters, so that its hooks see what is
          stepped (``ReducerSuite.test_hooks_see_the_model``).
        - Parameters that are frozen, unfrozen, added, removed or replaced after :meth:`start` are
          refused by name (``ReducerSuite.test_a_changed_model_is_refused``).
        - What changes a counter is told of as an event, and both agree
          (``ReducerSuite.test_events_and_counters_agree``).
        - What is pulled is the member's own: what becomes of it is seen by nobody else
          (``ReducerSuite.test_what_is_pulled_is_the_members_own``).
        - :meth:`stop` leaves the final parameters in the model of every member that trained or
          managed (``ReducerSuite.test_stop_leaves_one_model``), and the optimizer with the
          managed model (``ReducerSuite.test_stop_hands_the_optimizer_back``).
        - Members may come to :meth:`start` in any order, also before others have a reducer
          (``ReducerSuite.test_a_member_that_asks_late``).
        - Two reducers of one job do not mix (``ReducerSuite.test_two_reducers_do_not_mix``).
        - :meth:`manage_model` is refused where another member manages
          (``ReducerSuite.test_manages_where_it_says``) and from :meth:`start` to :meth:`stop`
          (``ReducerSuite.test_managing_while_it_runs``); :meth:`start` without a model is refused
          where one is to be managed (``ReducerSuite.test_start_without_a_model``).
        - :meth:`push` before :meth:`start` or after :meth:`stop`, and :meth:`pull` before
          :meth:`start`, raise ``ClosedError`` (``ReducerSuite.test_push_outside_start_and_stop``,
          ``test_pull_before_start``); :meth:`stop` may be called twice, and :meth:`start` after it
          (``ReducerSuite.test_stop_twice``, ``test_start_again``).
        - :meth:`start` takes the managed model as it is then: its parameters, and which of them
          are frozen (``ReducerSuite.test_start_takes_the_model_as_it_is``).

    One thread of a member trains a model; other threads may read :meth:`counters` and
    :meth:`watch`.

    Features:
        - ``shared``: the members train one model; without it each trains its own
          (``ReducerSuite.test_stop_leaves_one_model``, ``test_two_reducers_do_not_mix``).

    Source: ``PushPullGradServer`` and ``PushPullModelServer`` of machin (iffiX/machin,
    ``machin/parallel/server/param_server.py``).
    """

    @property
    @abstractmethod
    def manages(self) -> bool:
        """Whether this member must call :meth:`manage_model`."""

    @property
    def trains(self) -> bool:
        """Whether this member feeds batches; False on a dedicated server."""
        return True

    @abstractmethod
    def manage_model(
        self, model: Module, optimizer: Optimizer, lr_scheduler: LRScheduler | None = None
    ) -> None:
        """Take the optimizer, and its scheduler, that step this model's parameters.

        From :meth:`start` to :meth:`stop` they belong to the reducer. A module that
        ``torch.compile`` has wrapped is taken as the module inside.

        Raises:
            RuntimeError: another member manages the model, or reducing has started.
            ValueError: the scheduler's ``step()`` needs a value, as that of ``ReduceLROnPlateau``:
                call it yourself. Or the optimizer's needs a closure, as that of ``LBFGS``.
        """

    @abstractmethod
    def start(self) -> None:
        """Begin; involves all members.

        Raises:
            RuntimeError: this member manages a model and was given none.
            ValueError: the optimizer cannot step on what is reduced.
        """

    @abstractmethod
    def push(self, model: Module) -> bool:
        """Hand in the gradients of *model* and clear them; return whether they were accepted.

        Raises:
            ValueError: a trainable parameter has no gradient, or *model* is not like the one that
                is managed, or has other parameters than at :meth:`start`: the first parameter at
                fault is named.
            ClosedError: before :meth:`start` or after :meth:`stop`.
            PeerLostError: nobody is left who could take them; they are not cleared.
        """

    @abstractmethod
    def pull(self, model: Module) -> bool:
        """Take newer parameters into *model* in place, if there are any; return whether.

        Raises:
            ValueError: *model* is not like the one that is managed.
            ClosedError: before :meth:`start`.
        """

    def step(self, model: Module) -> bool:
        """Hand in the gradients of *model* and take newer parameters, if there are any.

        Returns:
            Whether the parameters changed.

        Raises:
            Exception: what :meth:`push` and :meth:`pull` raise.
        """
        self.push(model)
        return self.pull(model)

    @abstractmethod
    def stop(self) -> None:
        """Reduce all that was accepted and end; involves all live members.

        Raises:
            Exception: what made the reducing fail, here or where the model is managed.
        """

    def watch(self) -> None:
        """Raise what a thread of this reducer raised; do nothing if all is well."""

    @abstractmethod
    def counters(self) -> Counters:
        """Return what became of the gradients so far."""

    def state_dict(self) -> dict[str, object]:
        """Return the state that this member needs to go on later with the same numbers.

        It goes into a checkpoint beside the states of the model, the optimizer and the scheduler,
        and holds tensors, numbers, texts, lists and mappings only, so that
        ``torch.load(..., weights_only=True)`` reads it. Empty where a reducer needs nothing.

        Raises:
            RuntimeError: the training cannot be continued from where it is now.
        """
        return {}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on from *state*, which :meth:`state_dict` returned, at the next :meth:`start`.

        Raises:
            RuntimeError: reducing has started.
            ValueError: it is the state of another kind of reducer, or of another model.
        """
        if state:
            message = (
                f"this reducer keeps no state of its own, and was given that of"
                f" {state.get('backend', 'another')!r}: build the reducer that the state is from"
            )
            raise ValueError(message)


class ReducerConfig(BackendConfig[Reducer], frozen=True):
    """What every reducer is told: nothing but its name."""

    interface: ClassVar[str] = "reducer"
    default_backend: ClassVar[str] = "grad_server"
