"""How one member leaves its job: when all are done, or by itself."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack

from pparallel.builder.components import Components
from pparallel.builder.connection import Connection
from pparallel.errors import CallTimeoutError, ClosedError, is_consequence
from pparallel.runtime.member import Member
from pparallel.runtime.rpc.directory import DONE

logger = logging.getLogger(__name__)


class Leaving:
    """Closes what one member has open.

    Args:
        member: which it is.
        components: what is open.
        connection: how it reaches the others.
        timeout: seconds that a member which is done waits for the others; None: without limit.
    """

    def __init__(
        self,
        member: Member,
        components: Components,
        connection: Connection,
        timeout: float | None,
    ) -> None:
        self._member, self._components = member, components
        self._connection, self._timeout = connection, timeout

    def together(self, all_are_done: Callable[[], None]) -> None:
        """Leave when all are done, and call *all_are_done* then, before anything is closed."""
        endpoint = self._connection.endpoint
        endpoint.leave()
        with ExitStack() as last:
            last.callback(endpoint.close)
            self._components.depart()
            self._meet(DONE)
            all_are_done()
            self._components.close(lambda: self._meet("leaving/closed"))
            endpoint.let_others_leave()

    def alone(self, error: BaseException) -> None:
        """Leave by *error*, which ends the job for the others, unless it comes from its end."""
        endpoint = self._connection.made
        if endpoint is not None:
            if self._connection.is_open and not is_consequence(error):
                endpoint.fail(error)
            endpoint.end(ClosedError("the job", f"is ending: {error!r}", consequence=True))
        self._components.abandon(error)
        if endpoint is not None:
            endpoint.close()

    def _meet(self, stage: str) -> None:
        if self._member.world_size == 1:
            return
        try:
            self._connection.world().meet(stage, self._timeout)
        except CallTimeoutError:
            logger.warning(
                "%s leaves after %s s although other members have not",
                self._member.name,
                self._timeout,
            )
