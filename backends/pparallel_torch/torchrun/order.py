"""What a rank is told to do."""

from __future__ import annotations

import marshal
import pickle
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from typing_extensions import Buffer

from pparallel.interfaces.launcher import RankSpec
from pparallel.interfaces.serializer import Serializer
from pparallel.runtime.processes import main_module

HELLO, RUN, TOLD, RETURNED, FAILED = range(5)  #: kinds of messages
SOCKET, PATH = "socket", "path"  #: files in the directory of a launch


@dataclass(frozen=True, slots=True)
class Order:
    """What a rank runs, and with what around it.

    Attributes:
        environment: variables of its own.
        hears: whether what the rank tells is wanted.
        patience: seconds in which it is to end when it is told to.
        argv: ``sys.argv`` of the launching process.
        main: its ``__main__``, described.
        serializer: what made bytes of the call, and is to make bytes of the result; pickled.
        call: the function and its arguments, as bytes.
    """

    environment: Mapping[str, str]
    hears: bool
    patience: int
    argv: Sequence[str]
    main: main_module.Description
    serializer: bytes
    call: Sequence[Buffer]

    @classmethod
    def of(cls, spec: RankSpec, serializer: Serializer, patience: int) -> Order:
        """Return the order to run a rank.

        Raises:
            SerializationError: the function or an argument cannot be turned into bytes.
        """
        call = serializer.dumps((spec.fn, spec.args))
        hears = spec.hear is not None
        how = pickle.dumps(serializer)
        main = main_module.describe()
        return cls(dict(spec.env), hears, patience, list(sys.argv), main, how, call)

    def frames(self) -> list[Buffer]:
        """Return it as frames."""
        head = (
            dict(self.environment),
            self.hears,
            self.patience,
            list(self.argv),
            self.main,
            self.serializer,
        )
        return [marshal.dumps(head), *self.call]

    @classmethod
    def read(cls, frames: Sequence[Buffer]) -> Order:
        """Return what :meth:`frames` made."""
        environment, hears, patience, argv, main, serializer = marshal.loads(frames[0])
        return cls(environment, hears, patience, argv, main, serializer, frames[1:])
