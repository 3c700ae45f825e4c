"""How a member breaks its group off, so that nobody waits for it in vain."""

from __future__ import annotations

import json
import traceback
from collections.abc import Sequence
from typing import NamedTuple

from pparallel.errors import ClosedError, PeerLostError, RemoteError
from pparallel_shm.memory import BROKEN, BROKEN_TEXT, ROOM, Memory

_LONGEST = 700  #: characters of a message or of a traceback that are told
_SHORT = 100  #: and those that find room however they are written


class Broken(NamedTuple):
    """What a member is told whose group another one has broken off.

    Attributes:
        error: while it waits.
        after: when it begins another operation.
    """

    error: BaseException
    after: BaseException


class Breaking:
    """One member's way to end the operations of a group for all of its members.

    Args:
        memory: what the members share.
        me: this member's position.
        ranks: the ranks of all, by position.
        names: their names.
        what: the collective, in words.
    """

    def __init__(
        self, memory: Memory, me: int, ranks: Sequence[int], names: Sequence[str], what: str
    ) -> None:
        self._memory, self._me = memory, me
        self._ranks, self._names, self._what = ranks, names, what

    def break_off(self, operation: str, error: BaseException) -> BaseException:
        """Tell all others that *operation* failed here.

        Returns:
            What this member is told when it begins another.
        """
        message = str(error)[:_LONGEST]
        lines = "".join(traceback.format_tb(error.__traceback__))[-_LONGEST:]
        facts = {"operation": operation, "type": type(error).__name__, "message": message}
        self._spread({**facts, "traceback": lines})
        return self._after(self._me, operation, f"{type(error).__name__}: {message}")

    def tell_of_loss(self, rank: int, error: BaseException) -> None:
        """Tell the others, who may wait for this member next, that *rank* has left."""
        if isinstance(error, PeerLostError):
            self._spread({"lost": rank, "reason": error.reason[:_SHORT]})

    def heard(self) -> Broken | None:
        """Return what another member has told, if one has."""
        breaker = self._memory.words[BROKEN] - 1
        if breaker in (-1, self._me):
            return None
        facts = json.loads(self._memory.said(breaker, BROKEN_TEXT))
        name = self._names[breaker]
        if "lost" in facts:
            lost = PeerLostError(self._names[self._ranks.index(facts["lost"])], facts["reason"])
            return Broken(lost, lost)
        operation, kind, message = facts["operation"], facts["type"], facts["message"]
        error = RemoteError(name, kind, f"{message} (in {operation})", facts["traceback"])
        return Broken(error, self._after(breaker, operation, f"{kind}: {message}"))

    def _spread(self, facts: dict[str, object]) -> None:
        memory = self._memory
        if memory.words[BROKEN]:
            return
        text = json.dumps(facts)
        if len(text) > ROOM:
            text = json.dumps({**facts, "message": str(facts["message"])[:_SHORT], "traceback": ""})
        memory.say(self._me, BROKEN_TEXT, text)
        memory.words[BROKEN] = self._me + 1
        for each in memory.semaphores:
            each.post()

    def _after(self, breaker: int, operation: str, why: str) -> ClosedError:
        return ClosedError(
            f"the group of ranks {list(self._ranks)} in {self._what!r}",
            f"takes no operations any more: rank {self._ranks[breaker]} broke {operation} off"
            f" ({why}); messages still go, and new_group makes another group",
        )
