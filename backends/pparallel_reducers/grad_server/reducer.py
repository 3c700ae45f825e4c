"""A push-pull gradient server."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, ref

from typing_extensions import override

from pparallel.errors import ClosedError
from pparallel.interfaces.ordered_server import OrderedServer
from pparallel.interfaces.reducer import Counters, Reducer
from pparallel.runtime.events import Events
from pparallel.runtime.member import Member
from pparallel.runtime.rpc import RpcGroup
from pparallel_reducers.config import GradServerReducerConfig
from pparallel_reducers.grad_server.board import Board
from pparallel_reducers.grad_server.client import Client
from pparallel_reducers.grad_server.gradient import Gradient
from pparallel_reducers.grad_server.pacing import TooOldError
from pparallel_reducers.grad_server.pusher import Pusher
from pparallel_reducers.grad_server.roles import Roles
from pparallel_reducers.grad_server.run import Run
from pparallel_reducers.grad_server.who import trains
from pparallel_reducers.gradients import clear, outside_inference_mode
from pparallel_reducers.layout import (
    ModelTensors,
    parameters_of,
    warn_of_max_norm,
    without_compilation,
)
from pparallel_reducers.own_model_reducer import LEFT_WITHOUT_STOP
from pparallel_reducers.tally import Tally

if TYPE_CHECKING:
    from torch.nn import Module
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from pparallel_reducers.grad_server.squeezed import Squeezer
    from pparallel_reducers.stepping import OptimizerStep

logger = logging.getLogger(__name__)


class GradServerReducer(Reducer):
    """Gradients go to a secondary, sums of them to the primary, which steps and publishes.

    A member does not wait until its gradient is reduced, only until it is queued: it trains on
    parameters that may be some steps old (``counters().staleness``).

    Where the members do not start together (``role``), those that serve begin with the primary,
    which starts and stops once. A client's first push waits for that; it pulls as soon as there is
    something, whether or not it is new, for it may have changed its model by itself.
    """

    def __init__(
        self,
        config: GradServerReducerConfig,
        *,
        member: Member,
        ordered_server: OrderedServer,
        group: RpcGroup,
        name: str,
        events: Events,
    ) -> None:
        self._config = config
        self._member = member
        self._group = group
        self._tally = Tally(events, name)
        tally = self._tally if member.world_size > 1 else None
        count = len(config.primaries or (config.primary,))
        key = config.key or f"reducer/{name}/parameters"
        once = config.role == "member"  # what comes at any time finds all in the newest version
        self._boards = [
            Board(ordered_server, key, index, tally, frozen_once=once) for index in range(count)
        ]
        self._roles = Roles(name, config, member, group, self._tally, self._boards)
        secondaries = self._roles.who.secondaries
        self._pusher = Pusher(member.rank, secondaries, self._tally, self._roles.routes.fence)
        self._client: Client | None = None
        if config.role == "client":
            self._client = Client(group, self._roles, self._boards[0])
        self._open = self._stopped = self._warned = self._all_are_open = False
        self._run: Run | None = None
        self._last_run: Run | None = None
        self._last: ref[Module] | None = None
        self._recorded: WeakKeyDictionary[Module, ModelTensors] = WeakKeyDictionary()
        self._squeezer: Squeezer | None = None  # of the run, once something was pushed in it
        self._left_out: Mapping[str, object] = {}  # by compression, for the next squeezer
        self._versions: WeakKeyDictionary[Module, list[int]] = WeakKeyDictionary()

    @property
    @override
    def manages(self) -> bool:
        return self._roles.primary is not None

    @property
    @override
    def trains(self) -> bool:
        return trains(self._config, self._roles.who, self._member, self._member.name)

    @property
    @override
    def hosting(self) -> bool:
        return bool(self._roles.services)

    # -- life ---------------------------------------------------------------------------------

    @override
    def open(self) -> None:
        for key, service in self._roles.services.items():
            self._group.serve(key, service)
        self._group.when_lost(self._pusher.lose)
        self._group.when_lost(self._roles.lose)
        self._group.when_closed(self._end)
        self._open = True
        if self._config.role == "server" and not self.manages and self.hosting:
            self._roles.follower.follow()

    @override
    def close(self) -> None:
        if not self._open:
            return
        self._open, self._run = False, None
        if self._client is not None:
            self._roles.routes.leave_secondaries(self._pusher.holders)
        # The services stay until the group ends: this member has left, and they say so, while a
        # service that is missing would look like a mistake in the program.
        self._group.forget(self._pusher.lose)
        self._group.forget(self._roles.lose)
        self._group.forget(self._end)
        self._roles.leave()

    @override
    def depart(self) -> None:
        together = self._config.role == "member" and self._member.world_size > 1
        if together and self._run is not None:
            logger.warning(LEFT_WITHOUT_STOP, self._member.name)

    @override
    def release(self, error: BaseException | None) -> None:
        super().release(error)
        if error is None:
            self._tell_of_rest()

    def _end(self, reason: BaseException) -> None:
        self._roles.end(reason)
        if self._config.role == "server" and self._open:  # nobody leaves it in time
            self._tell_of_rest()

    def _tell_of_rest(self) -> None:
        held = sum(level.held for level in self._roles.levels() if level.error is None)
        if held:
            logger.warning(
                "%s left with %d acknowledged gradients: they are not reduced, for stop() was not"
                " called",
                self._member.name,
                held,
            )

    @override
    def manage_model(
        self, model: Module, optimizer: Optimizer, lr_scheduler: LRScheduler | None = None
    ) -> None:
        if self._roles.primary is None:
            managing = self._roles.who.primaries
            message = (
                f"member {self._member.name!r} does not manage the model,"
                f" {' and '.join(map(repr, managing))} {'do' if len(managing) > 1 else 'does'}:"
                " call manage_model() only where 'manages' is true"
            )
            raise RuntimeError(message)
        if self._run is not None:
            message = "manage_model() comes before start(), or after stop()"
            raise RuntimeError(message)
        from pparallel_reducers.grad_server.stepper import Stepper

        self._roles.primary.manage(Stepper(model, optimizer, lr_scheduler))

    @override
    def start(self) -> None:
        if not self._open:
            raise ClosedError("the reducer", "is not open")
        if self._run is not None or self._client is not None:
            return
        if self._config.role == "server":
            self._start_alone()
            return
        if self._roles.primary is not None:
            self._validate_optimizer(self._roles.primary.stepper.managed)
        try:
            self._start_together()
        except BaseException:
            if self._run is None and self._roles.primary is not None:
                self._roles.primary.allow_own_steps()
            raise
        self._group.meet("start")

    def _start_together(self) -> None:
        if not self._all_are_open:  # a member that no section gives one opens it at first use
            self._group.meet("open")
            self._all_are_open = True
        run = self._roles.begin()
        self._recorded.clear()  # what is frozen may be other than before
        self._squeezer = None
        self._last, self._warned = None, False
        if self._roles.primary is not None:
            managed = self._roles.primary.stepper.model
            self._recorded[managed] = ModelTensors(managed)
            if self._member.world_size > 1:
                self._roles.primary.stepper.managed.note_others()
                warn_of_max_norm(managed, logger)
            self._versions[managed] = list(run.versions)
        self._run = self._last_run = run

    @override
    def stop(self) -> None:
        self._refuse_in_a_step("stop")
        if self._config.role == "server":
            self._stop_alone()
        if self._run is None:
            return
        self._run = None
        try:
            with self._model_granted():
                self._stop_together()
        except BaseException:
            if self._roles.primary is not None:
                self._roles.primary.allow_own_steps()  # it may have been interrupted
            raise

    def _stop_together(self) -> None:
        self._roles.routes.settle_last()
        if self._roles.pacing is not None:
            self._roles.pacing.leave()
        self._group.meet("stop-1")
        failure = self._roles.flush()
        self._group.meet("stop-2")
        try:
            self._pusher.account()
            self._roles.finish()
            self._pull_last()
            if failure is not None:
                raise failure
        finally:
            self._group.meet("stop-3")

    @override
    def watch(self) -> None:
        if self._roles.follower.failure is not None:
            raise self._roles.follower.failure
        for level in self._roles.levels():
            if (error := level.error) is not None:
                raise error

    @override
    def counters(self) -> Counters:
        return self._tally.counters()

    # -- checkpoints ----------------------------------------------------------------------------

    @override
    def state_dict(self) -> dict[str, object]:
        """Return what compression has left out; of a run without a push that is an empty mapping.

        Without compression there is nothing to keep.
        """
        if self._config.compression is None:
            return {}
        left_out = self._left_out if self._squeezer is None else self._squeezer.state_dict()
        return {"backend": self._config.backend, "compression": left_out}

    @override
    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on from *state* at the next :meth:`start`.

        Raises:
            RuntimeError: reducing has started.
            ValueError: it is of another backend, or lacks what compression has left out. The first
                push refuses that of another model or another ``compression``.
        """
        if self._run is not None:
            raise RuntimeError("load_state_dict() comes before start(), or after stop()")
        if self._config.compression is None:
            super().load_state_dict(state)
            return
        if state.get("backend") != self._config.backend:
            message = (
                f"the state of {state.get('backend', 'another')!r} is not that of a"
                f" {self._config.backend!r} with compression: build the reducer that it is from"
            )
            raise ValueError(message)
        left_out = state.get("compression")
        if not isinstance(left_out, Mapping):
            message = (
                "the state lacks 'compression', which is what compression has left out of the"
                " gradients so far: load what this member has saved with compression itself (before"
                " its first push that is an empty mapping)"
            )
            raise ValueError(message)
        self._left_out, self._squeezer = left_out, None

    # -- training -----------------------------------------------------------------------------

    @override
    @outside_inference_mode
    def push(self, model: Module) -> bool:
        self._refuse_in_a_step("push")
        run = self._run if self._client is None or not self._open else self._client.run()
        if run is None:
            raise ClosedError("the reducer", "is not started: call start() before push() or step()")
        model = without_compilation(model)
        self._refuse_managed(model)
        tensors = self._tensors_of(model, run)
        squeezer = partial(self._squeezer_in, run)  # the pusher lets in one thread at a time
        gradient = Gradient(model, tensors, self._versions_of(model, run), squeezer)
        if self._config.refuse_nan and (why := gradient.not_finite()) is not None:
            self._clear(model)
            self._tally.refused(1, self._member.name, why)
            logger.warning("%s: a step is refused (refuse_nan): %s", self._member.name, why)
            return False
        try:
            if not self._pusher.push(
                lambda to, number: self._roles.routes.push(to, number, gradient),
                gradient.tensors,
            ):
                run.layout.check(tensors.layout)
        except TooOldError:
            self._clear(model)
            self._warn_of_old_gradients()
            return False
        self._roles.pushed()
        self._clear(model)
        self._last = ref(model)
        if self._shares_model:
            self._make_due_steps(gradient)
        return True

    def _versions_of(self, model: Module, run: Run) -> list[int]:
        """Return which parameters *model* has; those that are stepped here are the newest."""
        versions, primary = list(self._versions.get(model, run.versions)), self._roles.primary
        if primary is not None and primary.stepper.model is model:
            versions[primary.index] = self._boards[primary.index].version
        return versions

    def _warn_of_old_gradients(self) -> None:
        if not self._warned:
            logger.warning(
                "%s: a gradient is refused (max_staleness): its parameters are too old, or the next"
                " step takes one of this member already. Call pull() after each push(), as step()"
                " does. Further ones are counted only (counters().refused, where the model is"
                " managed)",
                self._member.name,
            )
        self._warned = True

    def _make_due_steps(self, gradient: Gradient) -> None:
        """Have the steps made that waited for the model of this member, which has pushed.

        Raises:
            BaseException: what the optimizer raised, if nobody else trains; the gradient is put
                back unless a parameter has moved.
        """
        primary = self._roles.primary
        assert primary is not None
        before = primary.steps
        with self._model_granted():
            self._roles.make_due_steps()
        if self._member.world_size > 1:
            return
        try:
            self.watch()
        except BaseException:
            if primary.steps == before:
                gradient.put_back()
            raise

    @override
    def pull(self, model: Module) -> bool:
        model = without_compilation(model)
        if self._client is not None:
            return self._pull_as(self._client, model)
        if (run := self._last_run) is None:
            raise ClosedError("the reducer", "is not started: call start() before pull()")
        run.layout.check_shapes(self._tensors_of(model, run).layout)
        if self._run is None and (missing := run.layout.first_missing(model)):
            raise ValueError(f"{missing}: call pull() before such a change")
        self._last = ref(model)
        with self._model_granted():
            return self._pull(run, model)

    def _pull(self, run: Run, model: Module) -> bool:
        there: list[int] | None = None
        if self._run is not None and not self._is_in_a_step:
            if self._shares_model:
                self._roles.make_due_steps()
                self.watch()
            if self.trains and (via := self._pusher.next) is not None:
                there = self._roles.before_pull(via)
        known: Sequence[int | None] = self._versions.get(model) or [None] * len(self._boards)
        news = [
            index
            for index, (board, version) in enumerate(zip(self._boards, known, strict=True))
            if (there[index] != version if there is not None else board.has_news(version))
        ]
        if not news:
            return False
        newest = -1
        versions = list(self._versions.get(model, run.versions))
        for index in news:
            version = self._pull_share(run, index, model)
            if version is not None:
                versions[index], newest = version, max(newest, version)
        if newest < 0:
            return False
        self._versions[model] = versions
        self._tally.pulled(newest)
        return True

    def _pull_share(self, run: Run, index: int, model: Module) -> int | None:
        primary = self._roles.primary
        if primary is not None and primary.index == index and primary.stepper.model is model:
            return self._boards[index].version  # it is the model that is stepped
        return self._boards[index].pull(run.shares[index], model)

    # -- by itself ----------------------------------------------------------------------------

    def _start_alone(self) -> None:
        if self._stopped:
            raise ClosedError("the reducer", "was stopped, and starts once only: make another")
        if self.manages:
            self._run = self._last_run = self._roles.begin()

    def _stop_alone(self) -> None:
        if self._stopped or (self.manages and self._run is None):
            return
        self._stopped, self._run = True, None
        if not self.manages:
            failure = self._roles.flush_early()
        else:
            failure = self._roles.flush_all()
            self._roles.finish()
        if failure is not None:
            raise failure

    def _pull_as(self, client: Client, model: Module) -> bool:
        if not self._open:
            raise ClosedError("the reducer", "is not open")
        version = client.pull(model, ModelTensors(model).layout)
        if version is not None:
            self._versions[model] = [version]
            self._tally.pulled(version)
        return version is not None

    # -- inside -------------------------------------------------------------------------------

    def _pull_last(self) -> None:
        """Take the final parameters into the model that was trained, and the one managed.

        Also where it has them already: the program may have changed the model since.
        """
        trained = None if self._last is None else self._last()
        self._versions.clear()
        if self._roles.primary is not None:
            self.pull(self._roles.primary.stepper.model)
        if trained is not None:
            self.pull(trained)

    @property
    def _is_in_a_step(self) -> bool:
        """Whether a hook of the optimizer calls: it waits for no step, as it is part of one."""
        primary = self._roles.primary
        return primary is not None and primary.level.is_current

    def _refuse_in_a_step(self, method: str) -> None:
        if self._is_in_a_step:
            message = (
                f"{method}() was called by a hook of the optimizer, in a step that it would wait"
                " for: call it in the training loop"
            )
            raise RuntimeError(message)

    def _refuse_managed(self, model: Module) -> None:
        """Refuse to train the model of a dedicated primary: it is stepped at any time."""
        primary = self._roles.primary
        if primary is None or primary.trains or primary.stepper.model is not model:
            return
        message = (
            f"member {self._member.name!r} is a dedicated primary, whose model is stepped at any"
            " time, also while the program computes with it: train only where 'trains' is true,"
            " give this member 'dedicated: false', or train another model here"
        )
        raise RuntimeError(message)

    @property
    def _shares_model(self) -> bool:
        """Whether this member trains with a model that it manages."""
        return self._roles.primary is not None and self._roles.primary.trains

    def _model_granted(self) -> AbstractContextManager[None]:
        """Have the managed model stepped inside the block, in which nobody computes with it."""
        primary = self._roles.primary
        return nullcontext() if primary is None else primary.lease.granted()

    def _clear(self, model: Module) -> None:
        clear(parameters_of(model))

    def _tensors_of(self, model: Module, run: Run) -> ModelTensors:
        """Return the tensors of *model*, as they were when it was first pushed or pulled.

        Raises:
            ValueError: it has other parameters now, or others of them are frozen.
        """
        tensors = self._recorded.get(model)
        if tensors is not None and tensors.has_changed(model) and self._run is not None:
            fresh = ModelTensors(model)
            managed = self._roles.primary is not None and self._roles.primary.stepper.model is model
            if managed or fresh.layout.digest != run.layout.digest:
                tensors.validate(model)
            tensors = None
        if tensors is None:
            tensors = self._recorded[model] = ModelTensors(model)
        return tensors

    def _validate_optimizer(self, managed: OptimizerStep) -> None:
        """Refuse an optimizer that cannot step on what is reduced.

        Raises:
            ValueError: it takes sparse gradients only, or has parameters beside the model's, whose
                gradients in other members do not come here.
        """
        managed.validate_dense()
        others = [name for name, _ in managed.others()]
        if others and (self._member.world_size > 1 or self._config.reduce_batch_size > 1):
            message = (
                f"{others[0]} is not a parameter of the model, and only gradients of the model are"
                " pushed: register it in the model (as a parameter of a module), or give it an"
                " optimizer of its own that this reducer does not step"
            )
            raise ValueError(message)

    def _squeezer_in(self, run: Run) -> Squeezer | None:
        """Return what compresses the gradients of this member in *run*, whichever model has them.

        Raises:
            ValueError: the state that was loaded is of another model.
        """
        if (config := self._config.compression) is not None and self._squeezer is None:
            from pparallel_reducers.grad_server.squeezed import Squeezer

            squeezer = Squeezer(config, run)
            if self._left_out:
                squeezer.load_state_dict(self._left_out)
            self._squeezer, self._left_out = squeezer, {}
        return self._squeezer
