"""What the tasks of the pool's machine noted: which were started, and in which order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pparallel.testing.machines.outcomes import Call, Stream
from pparallel.testing.machines.tasks import started


def check_starts(notes: Path, size: int, calls: Sequence[Call], streams: Sequence[Stream]) -> None:
    """Check that what must have run did, what was cancelled did not, and nothing ran twice."""
    order = started(notes)
    twice = sorted(number for number, times in Counter(order).items() if times > 1)
    assert not twice, f"tasks {twice} were started more than once"
    ran = set[int]().union(*(each.ran for each in calls), *(each.ran for each in streams))
    missing = sorted(ran.difference(order))
    assert not missing, f"tasks {missing} were never started, and have results"
    cancelled = {task.number for call in calls if call.cancelled for task in call.tasks}
    assert not cancelled.intersection(order), (
        f"tasks {sorted(cancelled.intersection(order))} were cancelled, and run all the same"
    )
    if size == 1 and not any(each.doubts.death for each in calls):
        handed_over = {task.number for call in calls for task in call.tasks}
        seen = [number for number in order if number in handed_over]
        assert seen == sorted(seen), f"tasks were started in the order {seen}"
