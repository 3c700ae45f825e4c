"""The common parts of transports: their base, dispatcher, membership, first messages, liveness.

A transport of this kind connects to the first member, where all meet, says :class:`Hello`, and
learns of the others from it. From then on :class:`Membership` knows who is in the job, and has each
end told once.
"""

from __future__ import annotations

from pparallel.runtime.links.base import BaseTransport
from pparallel.runtime.links.hello import Hello, RefusedError
from pparallel.runtime.links.membership import Membership
from pparallel.runtime.links.process import ProcessId, peer

__all__ = [
    "BaseTransport",
    "Hello",
    "Membership",
    "ProcessId",
    "RefusedError",
    "peer",
]
