"""One that takes part from any time on, and holds nothing."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from pparallel.errors import CallTimeoutError
from pparallel.runtime.rpc import RpcGroup
from pparallel_reducers.grad_server.board import Board
from pparallel_reducers.grad_server.roles import Roles
from pparallel_reducers.grad_server.run import Run
from pparallel_reducers.layout import Layout

if TYPE_CHECKING:
    from torch.nn import Module


class Client:
    """Learns what is trained when it pushes first; to pull it needs to know nothing."""

    def __init__(self, group: RpcGroup, roles: Roles, board: Board) -> None:
        self._group, self._roles, self._board = group, roles, board
        self._joining = threading.Lock()
        self._run: Run | None = None

    def run(self) -> Run:
        """Return what is trained, once that has begun.

        Raises:
            CallTimeoutError: it has not in the time that calls have.
        """
        with self._joining:
            if self._run is None:
                self._run = self._joined()
            return self._run

    def pull(self, model: Module, layout: Layout) -> int | None:
        """Take what is published, new or not, into *model*; return its version, if there is one.

        Raises:
            ValueError: it does not fit.
        """
        run = self._run
        if run is None or run.layout.digest != layout.digest:
            run = Run(layout, [-1])
        return self._board.pull(run.shares[0], model)

    def _joined(self) -> Run:
        try:
            return self._roles.begin(self._group.default_timeout)
        except CallTimeoutError as error:
            primary = self._roles.who.primaries[0]
            what = f"the start of the reducer: {primary!r} is to manage a model and start()"
            raise CallTimeoutError(what, error.timeout) from None
