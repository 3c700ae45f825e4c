"""What a process is given as it starts: objects that it inherits, or that are sent to it.

Sent along with what no running process could be sent: the locks, queues, pipes and shared values
of :mod:`multiprocessing`, with the descriptors they need.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Protocol, Self, runtime_checkable

from typing_extensions import Buffer

from pparallel.interfaces.launcher import StartMethod
from pparallel.interfaces.serializer import Serializer
from pparallel.runtime.processes import handover
from pparallel.runtime.processes.handover import Handover, Kin

Papers = tuple[int, tuple[bytes, bool] | None, int]  #: ``Outset.papers``, as they travel

_inherited: dict[int, Any] = {}
_numbers = itertools.count(1)


@runtime_checkable
class DumpsToStart(Protocol):
    """A serializer that sends what may only be sent to a process that is being started."""

    def dumps_to_start(self, obj: object) -> list[Buffer]:
        """Return *obj* as buffers."""


@runtime_checkable
class SharesTensors(Protocol):
    """A serializer that can pass tensors by reference."""

    def sharing(self, what: str) -> Serializer:
        """Return one like it that passes tensors by reference.

        Args:
            what: those of a device, ``cpu`` or ``cuda``, or ``launched``: CPU memory that the
                program has put into shared memory.
        """


class Outset:
    """An object for a process that is about to be started, or for several.

    Args:
        obj: the object.
        serializer: what turns it into bytes, unless it is inherited.
        method: how the process is started.

    Attributes:
        buffers: the object as bytes; none if it is inherited.

    Raises:
        SerializationError: the object cannot be sent.
    """

    def __init__(self, obj: object, serializer: Serializer, method: StartMethod) -> None:
        self.buffers: Sequence[Buffer] = ()
        self._handover = Handover()
        self._number = 0
        self._kin: Kin | None = None
        if method == "fork":
            handover.tracker()  # which is inherited
            self._number = next(_numbers)
            _inherited[self._number] = obj
            return
        try:
            with self._handover.of_what_is_pickled():
                if isinstance(serializer, DumpsToStart):
                    self.buffers = serializer.dumps_to_start(obj)
                else:
                    self.buffers = serializer.dumps(obj)
            self._kin = self._handover.kin()
        except BaseException:
            self.close()
            raise

    @property
    def files(self) -> list[int]:
        """The descriptors that go with it."""
        return self._handover.files

    @property
    def papers(self) -> Papers:
        """What :func:`received` is to know, for :mod:`marshal`."""
        kin = None if self._kin is None else (self._kin.authkey, self._kin.tracker)
        return self._number, kin, len(self.files)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of it, once the processes have been started; safe to call again."""
        _inherited.pop(self._number, None)
        self._handover.close()


def taken(papers: Papers, fds: list[int]) -> list[int]:
    """Return the descriptors of an object, the last of *fds*, and take them out of those."""
    first = len(fds) - papers[2]
    files = fds[first:]
    del fds[first:]
    return files


def received(
    papers: Papers, buffers: Sequence[Buffer], files: list[int], serializer: Serializer
) -> Any:
    """Return the object that this process was given.

    Raises:
        SerializationError: it cannot be rebuilt here.
    """
    number, kin, _ = papers
    if number:
        obj = _inherited[number]
        _inherited.clear()
        return obj
    if kin is not None:
        handover.adopt(Kin(*kin), files)
    with handover.arriving(files):
        return serializer.loads(buffers)
