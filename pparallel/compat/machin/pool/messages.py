"""What travels between a pool and workers that are processes.

A task and its answer are turned into bytes inside the message that carries them. So whoever takes a
task is known before its arguments are rebuilt, and what cannot be serialised or rebuilt, on either
side, is an answer like any other.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, SupportsIndex

from typing_extensions import Buffer, override

from pparallel.compat.machin.pickle import serializer
from pparallel.compat.machin.pool import notes
from pparallel.errors import SerializationError
from pparallel.interfaces.serializer import Serializer
from pparallel.runtime import remote_errors

Task = tuple[int, int, Callable[..., Any], tuple[Any, ...], dict[str, Any]]
Answer = tuple[int | None, int, tuple[bool, Any]]


class Sealed:
    """A message whose content is bytes already, of any queue that pickles."""

    def __init__(self, head: tuple[Any, ...], content: Sequence[Buffer]) -> None:
        self._head, self._content = head, content

    def opened(self) -> Any:
        """Return what the receiver is to get."""
        raise NotImplementedError

    @override
    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        content: Any = self._content
        if protocol.__index__() >= 5:
            content = list(map(pickle.PickleBuffer, content))
        else:
            content = list(map(bytes, content))
        return _arrived, (type(self), self._head, content)


class SealedTask(Sealed):
    """A task on its way; it arrives as ``(job, chunk, func, args, kwds)``."""

    @override
    def opened(self) -> Task:
        job, chunk, handle = self._head
        notes.note(handle, job, chunk)
        try:
            call = serializer().loads(self._content)
        except BaseException as error:  # noqa: BLE001 - what rebuilds the arguments may do anything
            call = _refuse, (_unreadable("a task", error),), {}
        return (job, chunk, *call)


class SealedAnswer(Sealed):
    """The answer to a task on its way to the pool, which opens it."""

    @override
    def opened(self) -> Answer:
        job, chunk, succeeded, worker = self._head
        try:
            value = serializer().loads(self._content)
        except BaseException as error:  # noqa: BLE001 - as above
            return job, chunk, (False, _unreadable("the result of a task", error))
        if not succeeded:
            value = remote_errors.unpack(value, worker, serializer(), exits=True, kind="worker")
        return job, chunk, (succeeded, value)


def seal_task(task: Task, by: Serializer, handle: notes.Handle) -> SealedTask:
    """Return *task* ready to be put into a queue.

    Raises:
        SerializationError: it cannot be serialised.
    """
    job, chunk, *call = task
    try:
        return SealedTask((job, chunk, handle), by.dumps(tuple(call)))
    except SystemExit as error:
        raise _unsendable("the task", error) from error


def seal_answer(answer: Answer) -> SealedAnswer:
    """Return *answer* ready to be put into a queue, or what says why it cannot be sent."""
    job, chunk, (succeeded, value) = answer
    content: Sequence[Buffer] | None = None
    if succeeded:
        try:
            content = serializer().dumps(value)
        except BaseException as error:  # noqa: BLE001 - what reduces the value may do anything
            succeeded, value = False, _unsendable("the result", error)
    if content is None:
        content = serializer().dumps(tuple(remote_errors.pack(value, serializer(), exits=True)))
    return SealedAnswer((job, chunk, succeeded, str(os.getpid())), content)


def opened(message: Any) -> Any:
    """Return *message*, opened if it is sealed."""
    return message.opened() if isinstance(message, Sealed) else message


def _arrived(kind: type[Sealed], head: tuple[Any, ...], content: list[Buffer]) -> Any:
    message = kind(head, content)
    # A task becomes what any worker function expects; an answer is opened by the pool, as late as
    # that: what goes wrong then is the task's.
    return message.opened() if kind is SealedTask else message


def _refuse(error: BaseException) -> NoReturn:
    raise error


def _unreadable(what: str, error: BaseException) -> SerializationError:
    if isinstance(error, SerializationError):
        return error
    return SerializationError(what, repr(error), loading=True)


def _unsendable(what: str, error: BaseException) -> SerializationError:
    return error if isinstance(error, SerializationError) else SerializationError(what, repr(error))
