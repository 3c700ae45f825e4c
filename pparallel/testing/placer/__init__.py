"""PlacerSuite: what every placer promises."""

from __future__ import annotations

from pparallel.testing.placer.edges import EdgeTests
from pparallel.testing.placer.instances import Instance, best, instances, placeable
from pparallel.testing.placer.laws import LawTests
from pparallel.testing.placer.refusals import RefusalTests
from pparallel.testing.placer.situations import SituationTests

__all__ = ["Instance", "PlacerSuite", "best", "instances", "placeable"]


class PlacerSuite(LawTests, SituationTests, EdgeTests, RefusalTests):
    """Subclass it, and give a fixture ``config``: the placer's config.

    What is random in it is the same on each run. Devices are planned for and need not be there.

    Attributes:
        rounds: how many random instances each law is tried on; fewer for a slow placer.
    """
