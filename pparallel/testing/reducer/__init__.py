"""ReducerSuite: what every reducer promises."""

from __future__ import annotations

from pparallel.testing.reducer.alone import AloneTests
from pparallel.testing.reducer.models import backward, line, manage, parameters
from pparallel.testing.reducer.together import TogetherTests

__all__ = ["ReducerSuite", "backward", "line", "manage", "parameters"]


class ReducerSuite(AloneTests, TogetherTests):
    """Subclass it, and give a fixture ``config``: the reducer's config.

    Members are started by the fixture ``launcher``; override it where members that use this reducer
    cannot be threads.
    """
