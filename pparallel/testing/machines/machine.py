"""What both machines share: how a sequence ends, and how long it took if it failed."""

from __future__ import annotations

import math
import sys
import time
from abc import abstractmethod
from typing import ClassVar

import pytest
from hypothesis.errors import HypothesisException
from hypothesis.stateful import RuleBasedStateMachine
from typing_extensions import override

from pparallel.testing.patience import PATIENCE

#: seconds that a machine waits for what is to happen: a failed sequence is tried again
LIMIT = PATIENCE / 2


class Enough(BaseException):
    """The time for trying sequences is over."""


_FAILURES = (Exception, pytest.fail.Exception)


class Machine(RuleBasedStateMachine):
    """Ends each sequence by :meth:`end`, and measures those that fail.

    Attributes:
        failed_after: seconds that the slowest sequence took that failed; 0: none did.
        begins_until: the time after which none begins, unless one has failed.
        is_over: one was to begin after that.
    """

    failed_after: ClassVar[float] = 0.0
    begins_until: ClassVar[float] = math.inf
    is_over: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self._began = time.monotonic()
        self._handled = sys.exc_info()[1]  # by whoever runs the machine
        if self._began > self.begins_until and not self.failed_after:
            type(self).is_over = True
            raise Enough

    @abstractmethod
    def end(self, *, check: bool) -> None:
        """Release everything; *check*: the sequence has not failed, look how it ends."""

    @override
    def teardown(self) -> None:
        raised = sys.exc_info()[1]
        error = None if raised is self._handled else raised
        if isinstance(error, _FAILURES) and not isinstance(error, HypothesisException):
            self._failed()
        try:
            self.end(check=error is None)
        except BaseException:
            self._failed()
            raise

    def _failed(self) -> None:
        cls = type(self)
        cls.failed_after = max(cls.failed_after, time.monotonic() - self._began)
