"""The primary: steps the optimizer and publishes the parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pparallel_reducers.board import Board
from pparallel_reducers.config import GradServerReducerConfig
from pparallel_reducers.layout import Layout
from pparallel_reducers.level import Level
from pparallel_reducers.sums import Sum
from pparallel_reducers.tally import Tally

if TYPE_CHECKING:
    from pparallel_reducers.stepper import Stepper


class Primary:
    """The level at which gradients become steps.

    Attributes:
        level: where sums arrive from the secondaries.
    """

    def __init__(
        self, name: str, config: GradServerReducerConfig, tally: Tally, board: Board
    ) -> None:
        self._config = config
        self._tally = tally
        self._board = board
        self._stepper: Stepper | None = None
        self.level = Level(name, config, tally, self._step)

    def manage(self, stepper: Stepper) -> None:
        """Step with *stepper* from the next start on."""
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

    def start(self) -> tuple[Layout, int]:
        """Take over the model, publish it, and take sums; return its layout and version."""
        self.stepper.attach()
        layout = self.stepper.layout
        try:
            self._board.begin()
            self._board.publish(layout, self.stepper.state())
        except BaseException:
            self.stepper.detach()
            raise
        self.level.start(layout)
        return layout, self._board.version

    def stop(self) -> BaseException | None:
        """Step on what is left and hand the optimizer back; return what went wrong."""
        error = self.level.flush()
        self.stepper.detach()
        return error

    def _step(self, batch: Sum) -> None:
        behind = self._board.version * batch.count - batch.versions
        batch.average(self._config.reduce_method == "mean")
        self.stepper.step(batch)
        self._board.publish(self.stepper.layout, self.stepper.state())
        self._tally.reduced(batch.count, behind, self._board.version)
