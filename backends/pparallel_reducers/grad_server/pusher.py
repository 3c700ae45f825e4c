"""Hand gradients to the secondaries, and keep the books of what becomes of them."""

from __future__ import annotations

import itertools
import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pparallel.errors import ClosedError, PeerLostError
from pparallel_reducers.tally import Tally

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)

#: (to, number) -> whether the model is the right one; None: that secondary was stopped
Send = Callable[[str, int], "bool | None"]
#: as :meth:`Level.fence` of each primary, for this member
Fence = Callable[[str, int | None], "list[tuple[int, bool]]"]


class _Interrupted(NamedTuple):
    """A push that was left before it was known whether the gradient was taken."""

    to: str
    number: int
    marks: list[tuple[Tensor, int]]  # what it was made of, and the versions of that


class Pusher:
    """Pushes to one live secondary; when that ends, to the next.

    A gradient whose acknowledgement never came is in doubt: the secondary may have handed it on
    before it ended. The primary knows, and from then on takes nothing more from that secondary, so
    that the gradient can be pushed again without being reduced twice. So is one in doubt whose push
    an interrupt ended, as a signal's handler does by raising: pushed again, it has the same number,
    and the secondary knows whether it has come. Given up, it is counted as pushed once it is known
    that it was taken (:meth:`~pparallel_reducers.grad_server.routes.Routes.settle_last`): before
    the next push, or in ``stop()``.
    """

    def __init__(self, rank: int, secondaries: Sequence[str], tally: Tally, fence: Fence) -> None:
        self._rank = rank
        self._tally = tally
        self._fence = fence
        self._pushing = threading.Lock()
        self._numbers = itertools.count()
        self._interrupted: _Interrupted | None = None
        self._acknowledged: Counter[str] = Counter()
        self._last: PeerLostError | ClosedError = PeerLostError("nobody")
        self._changing = threading.Lock()  # for what follows, which other threads change
        self._live = list(secondaries)
        self._ended: dict[str, str] = {}  # those of them that ended and are not accounted for

    def push(self, send: Send, tensors: Sequence[Tensor] = ()) -> bool:
        """Have *send* hand one gradient to a secondary; return what it returns.

        Args:
            send: hands it in.
            tensors: what it is made of, by which it is known again.

        Raises:
            PeerLostError: no secondary is left: the last one ended.
            ClosedError: no secondary is left: the last one was stopped.
        """
        with self._pushing:
            accepted = self._push(send, [(each, each._version) for each in tensors])
        if accepted:
            self._tally.pushed()
        return accepted

    def lose(self, member: str, reason: str) -> None:
        """Note that *member* ended; never blocks."""
        with self._changing:
            if member in self._live:
                self._ended.setdefault(member, reason)

    @property
    def next(self) -> str | None:
        """The secondary that the next gradient goes to, as far as is known; None: none is left."""
        with self._changing:
            return self._live[self._rank % len(self._live)] if self._live else None

    @property
    def holders(self) -> list[str]:
        """The secondaries that have acknowledged a gradient and are not lost."""
        return list(self._acknowledged)

    def account(self) -> None:
        """Count what ended with secondaries as lost."""
        with self._pushing:
            self._account()

    def _push(self, send: Send, marks: list[tuple[Tensor, int]]) -> bool:
        while True:
            self._account()
            to = self._secondary()
            number = self._number(to, marks)
            try:
                accepted = send(to, number)
            except PeerLostError as error:
                if error.peer != to:
                    raise
                self.lose(to, error.reason)
                if self._account_for(to, number):
                    return True
            except BaseException:
                self._interrupted = _Interrupted(to, number, marks)
                raise
            else:
                if accepted is None:
                    self._retire(to)
                    continue
                self._acknowledged[to] += accepted
                return accepted

    def _number(self, to: str, marks: list[tuple[Tensor, int]]) -> int:
        """Return the number of a gradient: a new one, unless its last push was interrupted."""
        before, self._interrupted = self._interrupted, None
        if before is not None and before.to == to and len(marks) == len(before.marks) > 0:
            pairs = zip(marks, before.marks, strict=True)
            if all(now is then and version == old for (now, version), (then, old) in pairs):
                return before.number
        return next(self._numbers)

    def _retire(self, secondary: str) -> None:
        """Push no more to one that was stopped: it has handed on all that it acknowledged."""
        with self._changing:
            self._ended.pop(secondary, None)
            self._live.remove(secondary)
        self._acknowledged.pop(secondary, None)
        self._last = ClosedError("the reducer", "was stopped")

    def _account(self) -> None:
        with self._changing:
            ended = list(self._ended)
        for each in ended:
            self._account_for(each, None)

    def _account_for(self, secondary: str, in_doubt: int | None) -> bool:
        """Count what ended with *secondary* as lost; return whether *in_doubt* was handed on.

        It was if some primary has it. One that does not have all primaries is lost.
        """
        fenced = self._fence(secondary, in_doubt)
        handed_on = any(has for _, has in fenced)
        with self._changing:
            reason = self._ended.pop(secondary)
            self._live.remove(secondary)
        self._last = PeerLostError(secondary, reason)
        arrived = min(came - has for came, has in fenced)
        lost = self._acknowledged.pop(secondary, 0) - arrived
        lost += handed_on and not all(has for _, has in fenced)
        if lost > 0:  # one whose push was interrupted may have come beside them
            logger.warning("%d acknowledged gradients are lost: %s", lost, self._last)
            self._tally.lost(lost, secondary)
        return handed_on

    def _secondary(self) -> str:
        if (found := self.next) is not None:
            return found
        if isinstance(self._last, ClosedError):
            raise self._last
        raise PeerLostError(self._last.peer, f"{self._last.reason}, and no secondary is left")
