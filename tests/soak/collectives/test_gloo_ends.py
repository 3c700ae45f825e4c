"""The ends of jobs whose members wait in gloo.

Gloo itself forgets an operation whose connection ends at the wrong moment: the thread that is in it
then waits until its time-out, and is found as a leftover.
"""

from __future__ import annotations

from typing import Any

import pytest
from gloo_among_threads import among_threads as among_threads

import pparallel
from pparallel.testing import no_leftovers
from pparallel.testing.collective import failures
from pparallel.testing.patience import PATIENCE


@pytest.mark.usefixtures("among_threads")
def test_nothing_waits_after_the_end(rounds: Any) -> None:
    for random in rounds:
        name = random.choice(sorted(failures.WAITS))
        job: dict[str, Any] = {
            "members": [f"m{rank}" for rank in range(3)],
            "close_timeout": PATIENCE,
            "reducer": {"backend": "local"},
            "launcher": {"backend": "thread"},
            "collective": {"backend": "gloo", "timeout": PATIENCE},
        }
        with no_leftovers(), pytest.raises(KeyError, match="the first failure"):
            pparallel.launch(job, failures.fail_while_others_wait, ("cpu", name))
