"""Shared memory between the processes of one machine.

An :class:`Arena` is a sparse file in memory, mapped once by every process that has a part in it,
from which blocks are leased; :class:`Parcels` carries what a serializer made in one message, large
buffers by such blocks. Views of a block free it when the last of them dies.

An arena's own number is the lowest that the others of its ``Parcels`` leave: with
``Parcels(own, {1: worker})`` it is 0, with ``Parcels(own, {0: parent})`` it is 1.
``Parcels.unpack`` and ``Parcels.drop`` take over the descriptors they are given and close them; a
parcel has at most one. ``Parcels.drop`` takes them as a second argument, since a large head may
lie in the file. An arena that is not shared is allocated from by the process that created it, and
by no child that it forks.
"""

from __future__ import annotations

from pparallel.runtime.shm.arena import Arena, Usage
from pparallel.runtime.shm.block import Block
from pparallel.runtime.shm.parcels import Parcel, Parcels

__all__ = [
    "Arena",
    "Block",
    "Parcel",
    "Parcels",
    "Usage",
]
