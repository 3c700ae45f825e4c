"""The shared memory of a group: what lies where."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from typing import TYPE_CHECKING

from pparallel.machine import barriers
from pparallel.runtime.memory import Mapping
from pparallel.runtime.memory.arena import PAGE
from pparallel_shm.semaphores import NBYTES as SEMAPHORE
from pparallel_shm.semaphores import Semaphore

if TYPE_CHECKING:
    import torch
    from torch import Tensor

ROOM = 2040  #: bytes of what a member can say in words
MEANT_TEXT, BROKEN_TEXT = 0, 1  #: what it means to do, and why it broke the group off
NAME = "pparallel-group"  #: what the system calls such memory
NONCE = 16  #: bytes that only this memory begins with

_WORD = 8
_TEXT = _WORD + ROOM
_LINE = 64  #: bytes of a cache line: what one member writes often shares none with another's
_FIRST = 2  #: words of a header before its row


class Plan:
    """Where in the memory of *size* members with slots of *slot* bytes everything begins.

    First come a nonce and the word that says who broke the group off; then for each member a line,
    a semaphore, two headers and two texts; then the slots, two of each member, and two of results.

    Attributes:
        nbytes: the whole.
        slot: bytes of a slot.
    """

    def __init__(self, size: int, slot: int) -> None:
        self.size, self.slot = size, _up(max(slot, size * _LINE), PAGE)
        self.header = _up((_FIRST + 2 * size) * _WORD, _LINE) // _WORD
        self.lines = 2 * _LINE
        self.semaphores = self.lines + size * _LINE
        self.headers = self.semaphores + size * SEMAPHORE
        self.texts = self.headers + size * 2 * self.header * _WORD
        self.slots = _up(self.texts + size * 2 * _TEXT, PAGE)
        self.nbytes = self.slots + 2 * (size + 1) * self.slot

    def sequence(self, member: int) -> int:
        """Return the word that says in how many rounds *member* has arrived."""
        return (self.lines + member * _LINE) // _WORD

    def parked(self, member: int) -> int:
        """Return the word that says whether *member* waits to be woken."""
        return self.sequence(member) + 1

    def process(self, member: int) -> int:
        """Return the word that says in which process *member* lives."""
        return self.sequence(member) + 2

    def head(self, member: int, parity: int) -> int:
        """Return the first word of one of the two headers of *member*."""
        return self.headers // _WORD + (2 * member + parity) * self.header

    def row(self, member: int, parity: int) -> int:
        """Return the first word of the row in one of the two headers of *member*."""
        return self.head(member, parity) + _FIRST


#: The word that says which member broke the group off, counted from 1.
BROKEN = _LINE // _WORD


class Memory:
    """The memory of a group, as one member has it; unmapped when nothing refers to it any more.

    Attributes:
        addresses: of both slots of each member, and of those of results last.
        fence: entered, it keeps what was written before from being seen after, or read before, what
            follows.
        keeps_order: whether it takes that only before others' words are read.

    Raises:
        OSError: it cannot be mapped, or this machine has no such fence.
    """

    def __init__(self, descriptor: int, plan: Plan) -> None:
        import torch

        self.plan = plan
        self.fence, self.keeps_order = barriers.fence(), barriers.keeps_order()
        self.mapping = Mapping(descriptor, plan.nbytes)
        self.words = self.mapping.bytes[: plan.slots].cast("Q")
        address = self.mapping.address + plan.semaphores
        self.semaphores = [Semaphore(address + SEMAPHORE * each) for each in range(plan.size)]
        start = self.mapping.address + plan.slots
        self.addresses = [
            (start + 2 * each * plan.slot, start + (2 * each + 1) * plan.slot)
            for each in range(plan.size + 1)
        ]
        raw = torch.frombuffer(self.mapping.memory, dtype=torch.uint8, offset=plan.slots)
        self._raw = raw.view(plan.size + 1, 2, plan.slot)
        self._views: dict[torch.dtype, list[tuple[Tensor, Tensor]]] = {}
        self._there: set[int] = set()

    @property
    def nonce(self) -> bytes:
        """What only this memory begins with."""
        return bytes(self.mapping.bytes[:NONCE])

    def prepare(self, nonce: bytes) -> None:
        """Set up what has to be there before any member looks."""
        for each in self.semaphores:
            each.make()
        self.mapping.bytes[:NONCE] = nonce

    def publish(self) -> None:
        """Have others see all that was written, before they see what is written next."""
        if not self.keeps_order:
            with self.fence:
                pass

    def slots(self, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
        """Return both slots of each member, and those of results last, as tensors of *dtype*."""
        found = self._views.get(dtype)
        if found is None:
            typed = self._raw.view(dtype)
            found = self._views[dtype] = [(both[0], both[1]) for both in typed]
        return found

    def populate(self, which: int) -> None:
        """Have the pages of both slots of a member there, or of the results, once.

        Raises:
            MemoryError: the machine has no memory for them.
        """
        if which in self._there:
            return
        nbytes = 2 * self.plan.slot
        if not self.mapping.populate(self.plan.slots + which * nbytes, nbytes):
            raise MemoryError(f"the machine has no {nbytes} bytes left for a slot of shared memory")
        self._there.add(which)

    def say(self, member: int, which: int, text: str) -> None:
        """Write what *member* has to say, as far as there is room."""
        encoded = text.encode()[:ROOM]
        at = self._text(member, which)
        self.mapping.bytes[at + _WORD : at + _WORD + len(encoded)] = encoded
        self.words[at // _WORD] = len(encoded)
        self.publish()

    def said(self, member: int, which: int) -> str:
        """Return what *member* has said last."""
        at = self._text(member, which)
        length = min(self.words[at // _WORD], ROOM)
        return bytes(self.mapping.bytes[at + _WORD : at + _WORD + length]).decode(errors="ignore")

    def _text(self, member: int, which: int) -> int:
        return self.plan.texts + (2 * member + which) * _TEXT


def create(plan: Plan) -> int:
    """Return a descriptor of a file in memory, large enough, that nobody can make smaller.

    Raises:
        OSError: it cannot be made.
    """
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, f"shared memory without a name is not known on {sys.platform}")
    descriptor = os.memfd_create(NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, plan.nbytes)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _up(nbytes: int, to: int) -> int:
    return -(-nbytes // to) * to
