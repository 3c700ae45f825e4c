"""A primary: steps the optimizer on its share of the parameters and publishes it."""

from __future__ import annotations

from collections.abc import Callable
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
    from pparallel_reducers.grad_server.stepper import AnyStepper


class Primary:
    """The level at which gradients become steps.

    Attributes:
        index: which share is its own.
        level: where sums arrive from the secondaries.
    """

    def __init__(
        self, name: str, index: int, config: GradServerReducerConfig, tally: Tally, board: Board
    ) -> None:
        self.index = index
        self._config = config
        self._tally = tally
        self._board = board
        self._stepper: AnyStepper | None = None
        self._wholes: Source | None = None
        self.published: Callable[[int], None] = lambda _: None  # called with each new version
        self.level = Level(name, config, tally, self._step)

    def manage(self, stepper: AnyStepper) -> None:
        """Step with *stepper* from the next start on."""
        self._stepper = stepper

    @property
    def stepper(self) -> AnyStepper:
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
        self.stepper.attach(share)
        self.level.start(digest, [wholes])

    def stop(self) -> BaseException | None:
        """Step on what is left and hand the optimizer back; return what went wrong."""
        error = self.level.flush()
        self.level.when_ended(ClosedError("the reducer", "was stopped"))
        self.stepper.detach()
        return error

    def _step(self, batch: Sum) -> None:
        behind = self._board.version * batch.count - batch.versions[0]
        assert self._wholes is not None
        mean = batch.average(0, self._wholes, self._config.reduce_method == "mean")
        self.stepper.step(mean)
        self._board.publish(self.stepper.state())
        self.published(self._board.version)
        mean.release()
        self._tally.reduced(batch.count, behind, self._board.version)
