"""The operations, as what is asked of a keeper."""

from __future__ import annotations

import ctypes
import itertools
import pickle
import secrets
from collections.abc import Hashable
from typing import Any

import ray
from typing_extensions import override

from pparallel.errors import ClosedError
from pparallel.interfaces.ordered_server import Found, copy_into
from pparallel.interfaces.serializer import Serializer
from pparallel.runtime import stopping
from pparallel.runtime.client_server import ServerClient
from pparallel.runtime.memory import address_of
from pparallel_ray.ordered_server.asking import Asking
from pparallel_ray.ordered_server.keeper import Answer


class KeeperClient(ServerClient):
    """Has values kept by an actor; any thread may use it.

    Args:
        actor: the keeper.
        what: it is called in errors.
        serializer: makes bytes of values.
        is_ours: the keeper is to end with this.
    """

    def __init__(self, actor: Any, what: str, serializer: Serializer, *, is_ours: bool) -> None:
        self._actor, self._serializer, self._is_ours = actor, serializer, is_ours
        self._owner = secrets.token_hex(8)
        self._asking = Asking(actor, what, self._owner)
        self._numbers = itertools.count()

    @override
    def push(
        self, key: Hashable, value: Any, version: Hashable, prev_version: Hashable | None
    ) -> bool:
        sent = [pickle.PickleBuffer(each) for each in self._serializer.dumps(value)]
        return bool(self._asking.ask("push", key, version, prev_version, sent))

    @override
    def fetch(self, key: Hashable, version: Hashable | None) -> Found | None:
        return self._found(self._asking.ask("pull", key, version))

    @override
    def pull_into(self, key: Hashable, version: Hashable | None, into: Any) -> Found | None:
        answer = self._asking.ask("pull", key, version)
        if answer is None:
            return None
        newest, buffers = answer
        copy_into(self._serializer.loads([_as_writable(each) for each in buffers]), into)
        return into, newest

    @override
    def fetch_unless(self, key: Hashable, version: Hashable | None) -> Found | None:
        return self._found(self._asking.ask("pull_unless", key, version))

    @override
    def wait(self, key: Hashable, version: Hashable | None, timeout: float | None) -> Found | None:
        ticket = (self._owner, next(self._numbers))
        try:
            with stopping.telling(lambda: self._asking.tell("withdraw", ticket)):
                answer = self._asking.ask("wait", key, version, timeout, ticket)
        except KeyboardInterrupt:
            self._asking.tell("withdraw", ticket)
            raise
        if answer is False:
            if self._asking.is_closed:
                raise ClosedError("the ordered server")
            raise ClosedError("the ordered server", "is closing: the job ends", consequence=True)
        return self._found(answer)

    @override
    def versions(self, key: Hashable) -> list[Any]:
        return list(self._asking.ask("versions", key))

    @override
    def keys(self) -> list[Any]:
        return list(self._asking.ask("keys"))

    @override
    def delete(self, key: Hashable) -> bool:
        return bool(self._asking.ask("delete", key))

    @override
    def close(self) -> None:
        self._asking.close()
        self._asking.wait_for_the_rest()
        if self._is_ours and ray.is_initialized():
            ray.kill(self._actor)

    def _found(self, answer: Answer | None) -> Found | None:
        if answer is None:
            return None
        version, buffers = answer
        return self._serializer.loads([bytearray(each) for each in buffers]), version


def _as_writable(buffer: Any) -> memoryview:
    """Return what lies in Ray's store as memory of which a serializer makes no copy.

    It is for building objects over it that are read once: others read the same memory.
    """
    view = memoryview(buffer).cast("B")
    if not view.readonly or not len(view):
        return view
    alias = (ctypes.c_char * len(view)).from_address(address_of(view))
    alias.source = view  # type: ignore[attr-defined]  # it is there as long as what is made of it
    return memoryview(alias).cast("B")
