"""Who was lost first."""

from __future__ import annotations

from contextlib import suppress

from pparallel.errors import PeerLostError, PparallelError
from pparallel.runtime.rpc import Reply, Request, RpcGroup

_ASK, _TELL = "why", "cause"
_PATIENCE = 5.0  #: seconds that a member has to say why it left

Cause = tuple[str, str]  #: the member that was lost first, and how


class Causes:
    """Whom the members name when a step cannot be made.

    A member that waits in vain for a lost one ends its part in the step, so that nobody waits for
    it in turn. To those that did, it is the one that left; it is asked whom it had lost itself.
    By then its program may have ended: before it leaves it tells the others.
    """

    def __init__(self, group: RpcGroup) -> None:
        self._group = group
        self._known: Cause | None = None
        self._told: dict[str, Cause] = {}  # by the member that told it

    def open(self) -> None:
        """Answer others."""
        self._group.serve(_ASK, lambda _: Reply(self._known))
        self._group.serve(_TELL, self._note)

    def close(self) -> None:
        """Answer no more."""
        self._group.withdraw(_ASK)
        self._group.withdraw(_TELL)

    def find(self, error: PeerLostError) -> PeerLostError:
        """Return what names the member that was lost first, and let others know of it."""
        try:
            known = self._group.ask(error.peer, _ASK, timeout=_PATIENCE).body
        except PparallelError:  # it is gone, or the job is
            known = self._told.get(error.peer)
        found = error if known is None else PeerLostError(*known)
        self._known = (found.peer, found.reason)
        here = self._group.get_cur_name()
        for each in self._group.get_group_members():
            if each not in (here, error.peer, found.peer):
                with suppress(PparallelError):  # it has ended too
                    self._group.ask_async(each, _TELL, self._known)
        return found

    def forget(self) -> None:
        """Begin anew."""
        self._known = None
        self._told = {}

    def _note(self, told: Request) -> Reply:
        self._told[told.sender] = told.body
        return Reply()
