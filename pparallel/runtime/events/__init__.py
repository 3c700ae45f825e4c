"""What happens in a member, for whoever wants to know.

Displays, logs, traces and metrics are listeners of this stream and nothing else. Where nobody
listens, what would be told is not even put into words.
"""

from pparallel.runtime.events.kinds import (
    Event,
    GradientsLost,
    GradientsRefused,
    MemberEnded,
    MemberStarted,
    PeerLost,
    Pulled,
    Pushed,
    Reduced,
    ReducerEvent,
    Reported,
    TaskDone,
    TaskDropped,
    TaskEvent,
    TaskFailed,
    TaskQueued,
    TaskRetried,
    TaskStarted,
)
from pparallel.runtime.events.stream import Events, EventStream, Listener

__all__ = [
    "Event",
    "EventStream",
    "Events",
    "GradientsLost",
    "GradientsRefused",
    "Listener",
    "MemberEnded",
    "MemberStarted",
    "PeerLost",
    "Pulled",
    "Pushed",
    "Reduced",
    "ReducerEvent",
    "Reported",
    "TaskDone",
    "TaskDropped",
    "TaskEvent",
    "TaskFailed",
    "TaskQueued",
    "TaskRetried",
    "TaskStarted",
]
