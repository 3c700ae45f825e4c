"""TrainingSuite: one training loop, on a reducer and in plain torch."""

from __future__ import annotations

from pparallel.testing.training.suite import TrainingSuite
from pparallel.testing.training.verdicts import EQUAL, Difference, Equal, Refused, Verdict

__all__ = ["EQUAL", "Difference", "Equal", "Refused", "TrainingSuite", "Verdict"]
