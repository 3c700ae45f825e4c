"""Exceptions on their way, where something about them refuses."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import pytest
from typing_extensions import Buffer, override

from pparallel.errors import (
    CallTimeoutError,
    ClosedError,
    PeerLostError,
    PparallelError,
    RemoteError,
    WorkerLostError,
)
from pparallel.interfaces.serializer import Serializer
from pparallel.runtime import remote_errors
from pparallel_serializers import PickleSerializerConfig
from pparallel_serializers.pickle import PickleSerializer

ERRORS = [
    CallTimeoutError("x", 1.0),
    ClosedError("x", consequence=True),
    PeerLostError("x", "died"),
    WorkerLostError(3, -9),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_errors_survive_pickling(error: PparallelError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert copy.__dict__ == error.__dict__


class PickyError(Exception):
    """Can be rebuilt while nobody has said otherwise."""

    refusal: Exception | None = None

    def __init__(self, message: str) -> None:
        super().__init__(message)
        if self.refusal is not None:
            raise self.refusal


class SilentError(Exception):
    @override
    def __str__(self) -> str:
        raise LookupError


class Mute(Serializer):
    """Refuses everything, with an error that cannot be read."""

    @override
    def dumps(self, obj: object) -> list[Buffer]:
        raise SilentError

    @override
    def loads(self, buffers: Sequence[Buffer]) -> Any:
        raise SilentError


def test_why_an_exception_cannot_be_rebuilt_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    serializer = PickleSerializer(PickleSerializerConfig())
    sent = remote_errors.pack(PickyError("it went wrong"), serializer)
    monkeypatch.setattr(PickyError, "refusal", LookupError("not on this machine"))
    found = remote_errors.unpack(sent, "m1", serializer)
    assert isinstance(found, RemoteError)
    assert "it went wrong" in str(found)
    (note,) = found.__notes__
    assert note.startswith("(it cannot be rebuilt here: ")
    assert "LookupError: not on this machine" in note


def test_a_refusal_that_cannot_be_read_hides_nothing() -> None:
    serializer = PickleSerializer(PickleSerializerConfig())
    sent = remote_errors.pack(ValueError("it went wrong"), Mute())
    assert sent.exception is None
    assert "no message: __str__ raised LookupError" in sent.traceback
    sent = remote_errors.pack(ValueError("it went wrong"), serializer)
    found = remote_errors.unpack(sent, "m1", Mute())
    assert "it went wrong" in str(found)
    assert "no message: __str__ raised LookupError" in found.__notes__[0]
