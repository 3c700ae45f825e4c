"""Who was lost first."""

from __future__ import annotations

from pparallel.errors import PeerLostError, PparallelError
from pparallel.runtime.rpc import Reply, Request, RpcGroup

_SERVICE = "why"
_PATIENCE = 5.0  #: seconds that a member has to say why it left


class Causes:
    """Whom the members name when a step cannot be made.

    A member that waits in vain for a lost one ends its part in the step, so that nobody waits for
    it in turn. To those that did, it is the one that left; it is asked whom it had lost itself.
    """

    def __init__(self, group: RpcGroup) -> None:
        self._group = group
        self._known: tuple[str, str] | None = None

    def open(self) -> None:
        """Answer others."""
        self._group.serve(_SERVICE, self._answer)

    def close(self) -> None:
        """Answer no more."""
        self._group.withdraw(_SERVICE)

    def find(self, error: PeerLostError) -> PeerLostError:
        """Return what names the member that was lost first, and let others know of it."""
        try:
            known = self._group.ask(error.peer, _SERVICE, timeout=_PATIENCE).body
        except PparallelError:  # it is gone, or the job is: nobody knows more
            known = None
        found = error if known is None else PeerLostError(*known)
        self._known = (found.peer, found.reason)
        return found

    def forget(self) -> None:
        """Begin anew."""
        self._known = None

    def _answer(self, _: Request) -> Reply:
        return Reply(self._known)
