"""Membership of a job, as one member knows it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from pparallel.errors import CallTimeoutError, ClosedError, PeerLostError, PparallelError
from pparallel.runtime.links.hello import Hello, RefusedError
from pparallel.runtime.links.watch import Ended, Watch

logger = logging.getLogger(__name__)


class Membership:
    """Who has arrived, and who has ended: each end is reported once, whoever sees it first.

    The first member judges: it alone gives up one that has been stopped for too long, and all
    others learn of every end from it, those that they would not see themselves among them. The
    others judge the first member.

    Attributes:
        me: the name of this member.
        first: that of the member where all meet.
        is_first: whether that is this one.
        closed: whether this member has closed.
    """

    def __init__(self, me: str, names: Sequence[str], bound: float, ended: Ended) -> None:
        """Know who is to come.

        Args:
            me: the name of this member.
            names: those of all, by rank.
            bound: seconds after which a member that is stopped is given up.
            ended: called once for each other member that ends, in any thread, and without a lock:
                the transport fails what waits for it, and, in the first member, tells the others.
        """
        self.me, self.first, self.is_first = me, names[0], me == names[0]
        self._names = tuple(names)
        self._report = ended
        self._changed = threading.Condition()
        self._here: dict[str, Hello | None] = {me: None}
        self._lost: dict[str, str] = {}
        self._refused: dict[str, str] = {}
        self.closed = False
        self._watch = Watch(bound, self.lose)

    def admit(self, hello: Hello) -> None:
        """Let a member in: all others at the first member, and whom that has let in elsewhere.

        Raises:
            RefusedError: it is no member of this job, or has been one and is no more, or its name
                is that of one that lives.
        """
        name = hello.name
        with self._changed:
            known = self._here.get(name)
            if known is not None and known.incarnation == hello.incarnation:
                return
            self._refuse_strangers(name)
            self._here[name] = hello
            self._refused.pop(name, None)
        self._watch.add(name, hello.process, judged=self.is_first or name == self.first)
        with self._changed:  # who waits for all of them finds them watched
            self._changed.notify_all()

    def refused(self, name: str, why: str) -> None:
        """Remember why a member that wanted to come could not, for whoever waits for it."""
        with self._changed:
            if name in self._names and name not in self._here:
                self._refused[name] = why

    def wait_for_all(self, timeout: float, since: float | None = None) -> None:
        """Wait until all members are here.

        Args:
            timeout: seconds.
            since: from when they count, by :func:`time.monotonic`; ``None``: from now.

        Raises:
            CallTimeoutError: not all came within *timeout* seconds; it names who is missing.
            PeerLostError: one ended before all had come.
            ClosedError: this member was closed meanwhile.
            ResourceExhaustedError: no thread can be started that watches them.
        """
        left = timeout if since is None else max(0.0, since + timeout - time.monotonic())
        with self._changed:
            done = self._changed.wait_for(
                lambda: self.closed or self._lost or not self._missing(), left
            )
            if self.closed:
                raise ClosedError(f"transport of {self.me!r}")
            if self._lost:
                name, reason = next(iter(self._lost.items()))
                raise PeerLostError(name, f"{reason} before all had arrived")
            if not done:
                missing = ", ".join(map(self._explained, self._missing()))
                raise CallTimeoutError(f"the arrival of {missing}", timeout)
        self._watch.start()  # nobody may come or go from now on, with whom that is tried again

    def lose(self, name: str, reason: str) -> None:
        """Say that *name* has ended; only the first word on it counts."""
        if name == self.me:
            if not self.is_first:
                self.lose(self.first, f"gave this member up: it {reason}")
            return
        with self._changed:
            if self.closed or name in self._lost or name not in self._names:
                return
            self._lost[name] = reason
            self._here.pop(name, None)
            self._changed.notify_all()
        self._watch.remove(name)
        try:
            self._report(name, reason)
        except Exception:  # who saw the end has more to do, and nobody else to tell of this
            logger.exception("The end of member %r (it %s) could not be reported", name, reason)

    def expects(self, name: str) -> bool:
        """Return whether *name* is a member that has not ended, whether it is here yet or not."""
        return name in self._names and name not in self._lost

    def check(self, name: str) -> None:
        """Raise if nothing can be sent to member *name*.

        Raises:
            PeerLostError: it has ended, or is no member.
        """
        if name not in self._here:
            raise PeerLostError(name, self.reason(name))

    def names(self) -> list[str]:
        """Return the names of those that are here."""
        with self._changed:
            return [name for name in self._names if name in self._here]

    def hellos(self) -> list[Hello]:
        """Return what the others that are here have said of themselves."""
        with self._changed:
            return [hello for hello in self._here.values() if hello is not None]

    def hello(self, name: str) -> Hello | None:
        """Return what *name* has said of itself; ``None`` if it is not here, or is this member."""
        return self._here.get(name)

    def wait_for_end(self, name: str, timeout: float = 1.0) -> bool:
        """Wait until it is known that *name*, whose connection has ended, has too.

        Returns:
            Whether it is, within *timeout* seconds.
        """
        with self._changed:
            return self._changed.wait_for(lambda: self.closed or name in self._lost, timeout)

    def why_ended(self, name: str, until: float | None) -> PparallelError:
        """Return why a connection to *name* has ended.

        It waits until that is known: a second, but not longer than *until*, a time of
        :func:`time.monotonic`.
        """
        left = 1.0 if until is None else min(1.0, max(0.0, until - time.monotonic()))
        self.wait_for_end(name, left)
        if self.closed:
            return ClosedError(f"transport of {self.me!r}")
        if self.expects(name):
            return PeerLostError(name, "has dropped the call; its log says why")
        return PeerLostError(name, self.reason(name))

    def reason(self, name: str) -> str:
        """Return why *name* is not here."""
        absence = "has not arrived yet" if name in self._names else "is not a member"
        return self._lost.get(name, absence)

    def close(self) -> None:
        """Wake whoever waits, and watch nobody any more; safe to call again."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()
        self._watch.close()

    def _refuse_strangers(self, name: str) -> None:
        if name not in self._names:
            message = f"{name!r} is no member of this job; its members: {', '.join(self._names)}"
            raise RefusedError(message)
        if name in self._lost:
            message = (
                f"member {name!r} {self._lost[name]} and cannot come back: "
                "end the job and launch it again"
            )
            raise RefusedError(message)
        if name in self._here:
            raise RefusedError(f"member {name!r} is here already: names are given once")

    def _missing(self) -> list[str]:
        return [name for name in self._names if name not in self._here]

    def _explained(self, name: str) -> str:
        return f"{name} (refused: {self._refused[name]})" if name in self._refused else name
