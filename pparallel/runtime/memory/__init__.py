"""Memory that processes of one machine share.

An :class:`Arena` has the blocks, a :class:`Payload` carries buffers between two processes by them.
"""

from __future__ import annotations

from pparallel.runtime.memory.arena import Arena, Handle, Usage, has_room
from pparallel.runtime.memory.payload import Packed, Payload
from pparallel.runtime.memory.sharing import SharesMemory
from pparallel.runtime.memory.views import Mapping, address_of, copy, writable

__all__ = [
    "Arena",
    "Handle",
    "Mapping",
    "Packed",
    "Payload",
    "SharesMemory",
    "Usage",
    "address_of",
    "copy",
    "has_room",
    "writable",
]
