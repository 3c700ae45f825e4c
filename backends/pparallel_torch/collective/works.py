"""The handle of operations that torch carries out."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from typing_extensions import override

from pparallel.interfaces.collective import Work

if TYPE_CHECKING:
    from pparallel_torch.collective.native import NativeGroup, Started


class NativeWork(Work[None]):
    """Operations of torch's that were begun, and what is left to do when they are done.

    Args:
        group: whose operations they are.
        what: the operation's name.
        started: torch's handles.
        finish: called once, by whoever waits first.

    Attributes:
        started: torch's handles, until all is done.
    """

    def __init__(
        self,
        group: NativeGroup,
        what: str,
        started: list[Started],
        finish: Callable[[], None] | None,
    ) -> None:
        self.started = started
        self._group, self._what, self._finish = group, what, finish
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._done = False
        group.works.add(self)

    @override
    def wait(self, timeout: float | None = None) -> None:
        for each in list(self.started):
            self._group.wait(each, self._what, self._began, timeout)
        with self._lock:
            if self._done:
                return
            if not self.started:  # the group was closed meanwhile
                self._group.ends.check()
            if self._finish is not None:
                self._finish()
            self._done = True
            self.drop()

    @override
    def is_completed(self) -> bool:
        self._group.look()
        return all(each.is_completed() for each in list(self.started))

    def drop(self) -> None:
        """Let go of torch's handles, which keep its connections open, and of the tensors."""
        self.started, self._finish = [], None
