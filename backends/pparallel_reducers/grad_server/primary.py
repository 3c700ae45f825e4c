"""A primary: steps the optimizer on its share of the parameters and publishes it."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pparallel.errors import ClosedError
from pparallel_reducers.config import GradServerReducerConfig
from pparallel_reducers.grad_server.board import Board
from pparallel_reducers.grad_server.flat import Source
from pparallel_reducers.grad_server.level import Level
from pparallel_reducers.grad_server.shares import Share
from pparallel_reducers.grad_server.sums import Sum
from pparallel_reducers.tally import Tally

if TYPE_CHECKING:
    from pparallel_reducers.grad_server.stepper import Stepper

logger = logging.getLogger(__name__)

_LONG = 30.0  #: seconds after which a wait for the model is told of


class ModelLease:
    """Grants the managed model to the reducing thread while its member does not compute with it.

    Where the member only serves, it is granted always. Where it trains too, the model is the
    trainer's, except while that waits in :meth:`granted`.
    """

    def __init__(self, *, always: bool) -> None:
        self._changed = threading.Condition()
        self._grants = int(always)
        self._holder: threading.Thread | None = None

    @contextmanager
    def granted(self) -> Iterator[None]:
        """Grant the model inside the block; at its end wait for the step that is being made.

        A hook of the optimizer, which runs in that step, does not wait for itself.
        """
        with self._changed:
            self._grants += 1
        try:
            yield
        finally:
            with self._changed:
                others = (None, threading.current_thread())
                try:
                    self._changed.wait_for(lambda: self._grants > 1 or self._holder in others)
                finally:  # an interrupt of this wait must not leave the model granted
                    self._grants -= 1

    def acquire(self) -> bool:
        """Take the model for a step, if it is granted; return whether it is."""
        with self._changed:
            if self._grants:
                self._holder = threading.current_thread()
            return self._holder is not None

    def release(self) -> None:
        """Give the model back; do nothing if it was not taken."""
        with self._changed:
            self._holder = None
            self._changed.notify_all()


class Primary:
    """The level at which gradients become steps.

    Attributes:
        index: which share is its own.
        level: where sums arrive from the secondaries.
        trains: whether this member computes with the managed model too.
        lease: says when it does not, and steps may be made.
    """

    def __init__(
        self,
        name: str,
        index: int,
        config: GradServerReducerConfig,
        tally: Tally,
        board: Board,
        *,
        trains: bool,
    ) -> None:
        self.index = index
        self._name = name
        self._config = config
        self._tally = tally
        self._board = board
        self._stepper: Stepper | None = None
        self._wholes: Source | None = None
        self.trains = trains
        self.lease = ModelLease(always=not trains)
        self.steps = 0  #: that moved the model, in all runs
        self._waits_since: float | None = None
        self.published: Callable[[int], None] = lambda _: None  # called with each new version
        self.may_step: Callable[[Sum, bool], bool] = lambda _, is_full: is_full
        self.level = Level(name, config, tally, self._step)
        self.level.ready = self._is_ready

    def manage(self, stepper: Stepper) -> None:
        """Step with *stepper* from the next start on."""
        self.leave()
        self._stepper = stepper

    @property
    def stepper(self) -> Stepper:
        """What steps.

        Raises:
            RuntimeError: there is none.
        """
        if self._stepper is None:
            message = "this member must call manage_model() before start()"
            raise RuntimeError(message)
        return self._stepper

    def start(self, share: Share, digest: str, wholes: Source) -> None:
        """Take the model over, whose share is published, and sum in *wholes* for it."""
        self._wholes = wholes
        self._waits_since = None
        self.stepper.attach(share)
        self.level.start(digest, [wholes])

    def stop(self) -> BaseException | None:
        """Step on what is left and hand the optimizer back; return what went wrong."""
        error = self.level.flush()
        self.level.when_ended(ClosedError("the reducer", "was stopped"))
        self.stepper.detach()
        return error

    def leave(self) -> None:
        """Hand the optimizer back, where :meth:`stop` has not; safe to call again."""
        if self._stepper is not None:
            self._stepper.detach()

    def allow_own_steps(self) -> None:
        """Let the program step the optimizer, though the run may not have ended."""
        if self._stepper is not None:
            self._stepper.managed.end()

    def _is_ready(self, batch: Sum, is_full: bool) -> bool:
        """Return whether a step is made now: :meth:`_step` follows, and gives the lease back."""
        if self._config.max_staleness:  # secondaries hand on each gradient by itself
            is_full = batch.count >= self._config.reduce_batch_size**2
        if not self.lease.acquire():
            self._warn_of_wait(is_full)
            return False
        ready = False
        try:
            ready = self.may_step(batch, is_full)
        finally:
            if not ready:
                self.lease.release()
        return ready

    def _step(self, batch: Sum) -> None:
        try:
            self._waits_since = None
            if not self.lease.acquire():
                raise RuntimeError(f"{self._name} may not step the model now: its member trains")
            behind = self._board.version * batch.count - batch.versions[0]
            assert self._wholes is not None
            whole = batch.whole(0, self._wholes)
            error = self.stepper.step(whole)
            self.steps += 1
            self.stepper.publish(self._board)
        finally:
            self.lease.release()
        whole.release()
        self._tally.reduced(batch.count, behind, self._board.version)
        if error is not None:  # who waits for the step is told of that
            raise error
        self.published(self._board.version)

    def _warn_of_wait(self, is_full: bool) -> None:
        now = time.monotonic()
        if not is_full:
            return
        if self._waits_since is None:
            self._waits_since = now
        elif now - self._waits_since > _LONG:
            self._waits_since = math.inf  # once for each wait
            logger.warning(
                "%s: gradients have waited %.0f s for a step: this member trains with the managed"
                " model, which is stepped while the member is in push(), pull(), step() or stop();"
                " with 'dedicated: true' it is stepped at any time",
                self._name,
                _LONG,
            )
