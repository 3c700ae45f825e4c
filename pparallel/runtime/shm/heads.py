"""The bytes of a parcel that travel in the message itself.

The first byte says what follows it:

- ``ONE``: the only buffer.
- ``MANY``: how many buffers there are, an entry for each, then those that are small.
- ``AWAY``: one entry, which says where a head of kind ``MANY`` lies.
- ``LONE``: one entry, which says where the only buffer lies, a small one.
"""

from __future__ import annotations

import struct
from typing import TypeAlias

ONE, MANY, AWAY, LONE = range(4)

HERE = 255  #: the place of a buffer in the head itself; other places are numbers of arenas
FILE = 254  #: the place of a buffer in the file that comes along

INLINE = 1 << 14  #: bytes from which on a buffer has a block of its own
HEAD = 1 << 15  #: bytes above which a head has one too

Entry: TypeAlias = tuple[int, int, int, int, int]  #: place, slot, turn, first byte, bytes

COUNT = struct.Struct("<BxxxI")
ENTRY = struct.Struct("<BxHIQQ")

ONE_BYTE = bytes((ONE,))
AWAY_BYTE = bytes((AWAY,))
LONE_BYTE = bytes((LONE,))
