"""The first message of a connection: identity and versions of a member. Never pickled."""

from __future__ import annotations

import functools
import struct
import sys
from dataclasses import dataclass
from importlib.metadata import version

from typing_extensions import Buffer

from pparallel.errors import PparallelError
from pparallel.runtime.links.process import ProcessId

WIRE = 1  #: raised when what members say to one another changes its form
LONGEST = 1024  #: bytes

_MAGIC = b"ppar"
_FIXED = struct.Struct("<4sHBB16s16sIQBHH")  # ..., lengths of the version, the name, the address


class RefusedError(PparallelError):
    """Raised when a member cannot be let in; the message says why."""


@dataclass(frozen=True, slots=True)
class Hello:
    """Who a member is.

    Attributes:
        name: its name.
        incarnation: 16 random bytes, others each time that a member opens.
        process: where it lives.
        address: where it can be reached, if that is not known from its name.
    """

    name: str
    incarnation: bytes
    process: ProcessId
    address: str = ""

    def pack(self) -> bytes:
        """Return it as bytes, with the versions of this process.

        Raises:
            RefusedError: the name or the address is too long.
        """
        name, address, release = self.name.encode(), self.address.encode(), _release()
        fixed = _FIXED.size + len(release)
        if fixed + len(name) + len(address) > LONGEST:
            most = LONGEST - fixed - len(address)
            message = f"a member's name has {len(name)} bytes: at most {most} are allowed"
            raise RefusedError(message)
        head = _FIXED.pack(
            _MAGIC,
            WIRE,
            *sys.version_info[:2],
            self.incarnation,
            self.process.host_id,
            self.process.pid,
            self.process.started,
            len(release),
            len(name),
            len(address),
        )
        return head + release + name + address

    @classmethod
    def unpack(cls, data: Buffer) -> Hello:
        """Return what was packed.

        Raises:
            RefusedError: it is no hello, or comes from a member that speaks otherwise.
        """
        whole = bytes(memoryview(data)[: LONGEST + 1])
        try:
            magic, wire, *python, incarnation, host_id, pid, started, release, name, address = (
                _FIXED.unpack_from(whole)
            )
        except struct.error:
            raise RefusedError("what came is no hello of a member") from None
        lengths = release + name + address
        if magic != _MAGIC or len(whole) != _FIXED.size + lengths or len(whole) > LONGEST:
            raise RefusedError("what came is no hello of a member")
        texts = whole[_FIXED.size :]
        try:
            called = texts[release : release + name].decode()
            there = texts[release + name :].decode()
        except UnicodeDecodeError:
            raise RefusedError("the hello of a member has a name that is no text") from None
        _check(called, wire, tuple(python), texts[:release])
        return cls(called, incarnation, ProcessId(host_id, pid, started), there)


def _check(name: str, wire: int, python: tuple[int, ...], release: bytes) -> None:
    """Refuse a member whose messages this one could not read."""
    there = f"pparallel {release.decode('ascii', 'replace')}"
    here = f"pparallel {_release().decode()}"
    if python != sys.version_info[:2]:
        there, here = (
            f"Python {'.'.join(map(str, each))}" for each in (python, sys.version_info[:2])
        )
    elif wire != WIRE:
        there, here = f"{there} (protocol {wire})", f"{here} (protocol {WIRE})"
    elif release == _release():
        return
    message = f"member {name!r} runs {there} and this one {here}: install the same for all members"
    raise RefusedError(message)


@functools.cache
def _release() -> bytes:
    return version("pparallel").encode("ascii")
