"""How the members of a group come to share memory."""

from __future__ import annotations

import json
import os
import secrets
import stat
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from pparallel.errors import ConfigError
from pparallel.interfaces.collective import Operation
from pparallel.runtime.memory import has_room
from pparallel_shm.memory import NONCE, Memory, Plan, create

if TYPE_CHECKING:
    from torch import Tensor

_ROOM = 1024  #: bytes of what members tell one another before they share memory


class Meeting:
    """The members of a group before they share memory: they send messages.

    The first member makes the memory and tells the others where it is: process, descriptor, size,
    and a number that nobody can guess. They open it, and tell whether that went well. Then it has
    no descriptor any more that one could find it by.

    Args:
        messages: what carries messages among the members.
        me: this member's position.
        names: the names of all, by position.
        what: the collective's name in the config.
    """

    def __init__(self, messages: Operation, me: int, names: Sequence[str], what: str) -> None:
        self._messages, self._me, self._names, self._what = messages, me, names, what

    def share(self, slot: int) -> Memory:
        """Return the memory, once all members have it.

        Raises:
            ConfigError: there is no such memory here, or a member cannot open it.
        """
        memory: Memory | None = None
        with ExitStack() as stack:
            try:
                memory, told = (None, {}) if self._me else self._made(slot, stack)
                told, refused = self._told_by_first(told), ""
                if "refused" in told:
                    raise ConfigError(told["refused"], path=f"{self._what}.slot")
                if memory is None:
                    memory, refused = self._opened(told)
                if memory is not None:
                    memory.words[memory.plan.process(self._me)] = os.getpid()
                self._agree(refused)
            except BaseException:
                memory = None  # which the traceback would keep mapped
                raise
        assert memory is not None
        return memory

    def _made(self, slot: int, stack: ExitStack) -> tuple[Memory | None, dict[str, Any]]:
        """Return the memory, and what to tell the others; its descriptor closes with *stack*."""
        plan = Plan(len(self._names), slot)
        if not has_room(plan.nbytes):
            why = f"{plan.nbytes} bytes of shared memory are not to be had: choose a smaller slot"
            return None, {"refused": why}
        try:
            descriptor = create(plan)
            stack.callback(os.close, descriptor)
            memory = Memory(descriptor, plan)
            nonce = secrets.token_bytes(NONCE)
            memory.prepare(nonce)
        except OSError as error:
            return None, {"refused": f"shared memory is not to be had: {error}"}
        place = {"pid": os.getpid(), "descriptor": descriptor, "slot": plan.slot}
        return memory, {**place, "nonce": nonce.hex()}

    def _opened(self, told: dict[str, Any]) -> tuple[Memory | None, str]:
        """Return the memory that the first member has told of, or why it cannot be opened."""
        plan = Plan(len(self._names), told["slot"])
        path = f"/proc/{told['pid']}/fd/{told['descriptor']}"
        try:
            found = os.stat(path)
            if not stat.S_ISREG(found.st_mode) or found.st_size != plan.nbytes:
                return None, f"{path} is something else"
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                memory = Memory(descriptor, plan)
            finally:
                os.close(descriptor)
        except OSError as error:
            return None, str(error)
        if memory.nonce != bytes.fromhex(told["nonce"]):
            return None, f"{path} is something else"
        return memory, ""

    def _agree(self, refused: str) -> None:
        """Raise in all members if one was *refused* the memory."""
        mine = _written({"refused": refused[: _ROOM // 8]})
        everyone = [_written({}) for _ in self._names]
        self._messages.gather(mine, None if self._me else everyone, 0)
        failures: dict[str, str] = {}
        if not self._me:
            answers = [_read(each)["refused"] for each in everyone]
            failures = {name: why for name, why in zip(self._names, answers, strict=True) if why}
        failed = dict(list(failures.items())[:1])
        if found := self._told_by_first(failed):
            name, why = next(iter(found.items()))
            raise ConfigError(
                f"'shm' works among processes of one machine, and member {name!r} cannot open the"
                f" memory of member {self._names[0]!r} ({why}): it is on another machine, in"
                " another container, or another user's; choose 'gloo', or start it beside the"
                " others",
                path=f"{self._what}.backend",
            )

    def _told_by_first(self, facts: dict[str, Any]) -> dict[str, Any]:
        tensor = _written(facts)
        self._messages.broadcast(tensor, 0)
        return _read(tensor)


def _written(facts: dict[str, Any]) -> Tensor:
    import torch

    return torch.frombuffer(bytearray(json.dumps(facts).encode().ljust(_ROOM)), dtype=torch.uint8)


def _read(tensor: Tensor) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(tensor.numpy().tobytes())
    return found
