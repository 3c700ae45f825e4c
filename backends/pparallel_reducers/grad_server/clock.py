"""Bounded staleness: an optimizer step waits for the gradients that it would make too old.

Who computes a gradient holds a ticket for it, with the version of the parameters that it may be
computed on at the oldest. A step from version ``r`` to ``r + 1`` is made only if no ticket outside
of its batch is of a version before ``r + 1 - max_staleness``: then whatever arrives later is at
most ``max_staleness`` steps behind the parameters that it is applied to.

The primary never blocks. It goes on adding to its batch what arrives, beyond
``reduce_batch_size``, until the step may be made: so what has arrived and would become too old is
in the batch, queues move on, and no member is held back by one that is slow.

With ``max_staleness=0`` members train in lock-step: each step takes one gradient of each member
that trains, from the start until it leaves or is lost. A member that pulls and has a gradient on
its way waits for the step that takes it, which does not wait for ``reduce_batch_size`` messages.

Secondaries do not sum: of a sum the primary could not refuse one gradient alone. A step takes as
many as it would of such sums. Who does what:

A member that trains (:class:`~pparallel_reducers.grad_server.pace.Pace`, one for each primary)
    - before each pull: ``pace.before_pull(via)``, with *via* the secondary that it would push to;
      with several primaries ``pace.give_up()`` of all of them first, and then in one order;
    - before it sends a gradient, in each attempt: ``ticket = pace.for_push(via, version)``; None
      refuses: ``push`` returns False (the gradients are to be cleared: they are of no use to
      anybody). The ticket's serial goes with the gradient: a sum holds those of all its gradients;
    - once the push was accepted: ``pace.used()``. A push that was refused or raised does nothing;
    - after a push that an interrupt ended, before the next push or pull and in ``stop()``: ask the
      secondary whether it has the gradient; if so ``pace.taken(serial)``, for it is on its way. If
      not, it will not come: the same thread asked later, and its requests arrive in order;
    - after an interrupt of a wait for a ticket, before anything else: :meth:`Clock.abandon`;
    - first of all in ``stop()``: ``pace.leave()``, and then :meth:`Clock.leave`.

A secondary
    - hands on each gradient at once, and by itself;
    - when a primary refuses one, as its ticket is not on its way: counts it as lost;
    - when asked to drain a member that ended: take nothing from it any more (``Level.fence``), hand
      on all that was queued before (``Stage.flush``), and answer once that was acknowledged.

The primary (:class:`Clock`)
    - a gradient that arrives: ``arrived(serials)``, under the same lock as the look whether its
      source is fenced, and before it is queued; if that raises, this one alone is refused;
    - after each one that is added to the batch, and after each ``look_again`` (on the reducing
      thread: a place in its queue) if there is a batch: if ``may_step(its serials, whether it has
      as many gradients as a step takes)``, step, publish, ``published(version)``;
    - the flush of ``stop()`` steps without asking;
    - a member that is lost (``when_lost``): fence it as a source of sums, then ``lost(member)``,
      and ask each secondary that this returns to drain; on its answer ``drained(member, via)``;
    - what a claim refused is counted as refused, for the reason that :func:`too_old` gives.

Why nothing waits for ever: a step waits for tickets alone. One not used yet goes when its member
pushes, pulls again, stops or ends. One whose gradient is at a secondary goes when that hands on,
which it does at once; the primary always takes, so handing on never waits for long. One that ended
with a secondary goes when the primary sees that end; one of a member that ended goes once every
secondary that might hold its gradient has drained. One of a push that was interrupted is either:
its member knows which before it pushes, pulls or stops, and until then it is waited for as for one
that computes. One that was refused is given back. New tickets do not hold up a step that is wanted:
they are of a version that it leaves young enough, or else, with ``max_staleness=0``, each member
gets one at most. A member that waits in a pull has no ticket but of primaries, or of other
reducers, that it pulled from before: it is enough that all pull in one order.

Source: bounded delay: Li et al., "Scaling Distributed Machine Learning with the Parameter Server",
OSDI 2014; stale synchronous parallel: Ho et al., "More Effective Distributed ML via a Stale
Synchronous Parallel Parameter Server", NIPS 2013.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import NamedTuple

from pparallel.errors import PeerLostError
from pparallel.runtime.future import fail, settle
from pparallel_reducers.grad_server.tickets import Ticket, Tickets

logger = logging.getLogger(__name__)


class _Waiter(NamedTuple):
    member: str
    via: str
    future: Future[Ticket]


class Clock:
    """Knows which gradients are on their way; lives at the primary, for one run.

    All methods may be called by any thread, and none blocks. The two callbacks are called without
    a lock held, by whichever thread; they must not block.
    """

    def __init__(
        self,
        max_staleness: int,
        version: int,
        look_again: Callable[[], object],
        trainers: Iterable[str] = (),
    ) -> None:
        """Begin with nothing on its way.

        Args:
            max_staleness: how many steps a gradient may be behind the parameters it is applied to.
            version: what is published.
            look_again: have :meth:`may_step` asked again: what it waited for is gone.
            trainers: the members that train; with ``max_staleness=0`` each step takes one gradient
                of each, until it leaves or is lost.
        """
        self._bound = max_staleness
        self._version = version
        self._look_again = look_again
        self._lock = threading.Lock()
        self._tickets = Tickets()
        self._gone: set[str] = set()
        self._trainers = set(trainers) if max_staleness == 0 else set()
        self._waiters: list[_Waiter] = []
        self._stepping = self._held_up = False
        self._ended: BaseException | None = None

    # -- members ------------------------------------------------------------------------------

    def enter(self, member: str, via: str, back: int | None) -> Future[Ticket]:
        """Give *member*, which is about to pull, a ticket for the version that it will find.

        The future ends at once, but with ``max_staleness=0`` once no step is under way and no
        other ticket of *member* is out.

        Args:
            member: who asks.
            via: the secondary that it pushes to.
            back: the serial of the ticket that it has not used, if it has one.

        Raises:
            PeerLostError: *member* was declared lost.
            Exception: what the clock was ended with; the future may end with it too.
        """
        future: Future[Ticket] = Future()
        with self._lock:
            self._begin(member, back)
            self._waiters.append(_Waiter(member, via, future))
        self._wake()
        return future

    def claim(self, member: str, via: str, version: int, back: int | None) -> Ticket | None:
        """Give *member* a ticket for a gradient that it has computed on *version* already.

        Returns:
            None if the gradient is too old, or a step is wanted or under way that makes it so;
            with ``max_staleness=0`` also if the next step takes one of *member* already.

        Raises:
            PeerLostError: *member* was declared lost.
            Exception: what the clock was ended with.
        """
        with self._lock:
            self._begin(member, back)
            has_one = self._tickets.has(member)
            awaited = member in self._trainers and not has_one
            next_version = self._version + (self._stepping or (self._held_up and not awaited))
            # In lock-step a second gradient for one step would come after that step.
            late = next_version - version > self._bound or (self._bound == 0 and has_one)
            ticket = None if late else self._issue(member, via, version)
        self._wake()
        return ticket

    def abandon(self, member: str, known: int | None) -> None:
        """Note that *member* was interrupted in :meth:`enter` or :meth:`claim`: it has no ticket.

        Args:
            member: who asked.
            known: the serial of the last ticket that it has got; later ones never reached it.
        """
        with self._lock:
            abandoned = [each.future for each in self._waiters if each.member == member]
            self._waiters = [each for each in self._waiters if each.member != member]
            self._tickets.drop(lambda each: each.member == member and each.serial > (known or 0))
        for future in abandoned:
            future.cancel()
        self._wake()

    def give_back(self, serial: int) -> None:
        """Take back a ticket that is not going to be used."""
        with self._lock:
            self._tickets.drop(lambda each: each.serial == serial)
        self._wake()

    def leave(self, member: str) -> None:
        """Note that *member* pushes no more."""
        with self._lock:
            look = self._forget_trainer(member)
        self._wake(look=look)

    # -- the primary --------------------------------------------------------------------------

    def arrived(self, serials: Iterable[int]) -> None:
        """Note that the gradients of these tickets are here, and cannot end with a secondary.

        Raises:
            UnknownTicketError: there is no such ticket on its way; nothing was noted.
        """
        with self._lock:
            self._tickets.arrived(serials)

    def may_step(self, batch: Iterable[int], is_full: bool) -> bool:
        """Return whether a step may be made on the gradients of *batch*; then it must be made.

        If not, ``look_again`` will be called, or something arrives.

        Args:
            batch: the serials of all gradients in it; they arrived, and if the answer is True
                their tickets are gone.
            is_full: whether it has as many messages as it should.
        """
        inside = set(batch)
        with self._lock:
            wanted = is_full or bool(self._waiters)
            late = self._tickets.before(self._version + 1 - self._bound, inside) if wanted else []
            missing = self._trainers - self._tickets.members(inside) if wanted else set()
            waits = bool(late or missing)
            self._held_up = waits
            if wanted and not waits:
                self._stepping = True
                self._tickets.used(inside)
        if waits:
            waits_for = sorted({each.member for each in late} | missing)
            logger.debug("step %d waits for %s", self._version + 1, ", ".join(waits_for))
        return wanted and not waits

    def published(self, version: int) -> None:
        """Note that the step is made, and that its parameters can be pulled."""
        with self._lock:
            self._version, self._stepping, self._held_up = version, False, False
        self._wake()

    def lost(self, member: str) -> list[str]:
        """Note that *member* ended: what was to come by way of it will not come.

        Returns:
            The secondaries that may hold gradients of *member*: they are to be drained.
        """
        with self._lock:
            self._gone.add(member)
            look = self._forget_trainer(member)
            dismissed = [each for each in self._waiters if each.member == member]
            self._waiters = [each for each in self._waiters if each.member != member]
            self._tickets.drop(lambda each: each.via == member)
            holders = self._tickets.holders(member)
        for each in dismissed:
            fail(each.future, _lost(member))
        self._wake(look=look)
        return holders

    def drained(self, member: str, via: str) -> None:
        """Note that all gradients that *via* had from *member*, which ended, have arrived."""
        with self._lock:
            self._tickets.drop(lambda each: each.member == member and each.via == via)
        self._wake()

    def end(self, reason: BaseException) -> None:
        """Refuse what waits and what comes, with *reason*; safe to call again."""
        with self._lock:
            self._ended = self._ended or reason
            waiters, self._waiters = self._waiters, []
        for each in waiters:
            fail(each.future, reason)

    # -- inside, with the lock held ------------------------------------------------------------

    def _begin(self, member: str, back: int | None) -> None:
        if self._ended is not None:
            raise self._ended
        if member in self._gone:
            raise _lost(member)
        self._tickets.drop(lambda each: each.serial == back)

    def _issue(self, member: str, via: str, version: int) -> Ticket:
        return self._tickets.issue(member, via, version, void=via in self._gone)

    def _forget_trainer(self, member: str) -> bool:
        """Expect no gradient of *member* any more; return whether one was expected."""
        expected = member in self._trainers
        self._trainers.discard(member)
        return expected

    def _must_wait(self, member: str) -> bool:
        return self._bound == 0 and (self._stepping or self._tickets.has(member))

    # -- without it ----------------------------------------------------------------------------

    def _wake(self, *, look: bool = False) -> None:
        """Have those go on who wait and need not any more; *look* whether a step may be made."""
        served: dict[Future[Ticket], Ticket] = {}
        with self._lock:
            for each in self._waiters:
                if not self._must_wait(each.member):
                    served[each.future] = self._issue(each.member, each.via, self._version)
            self._waiters = [each for each in self._waiters if each.future not in served]
            dropped = self._tickets.dropped()
            look = bool(self._waiters) or ((look or dropped) and self._held_up)
        for future, ticket in served.items():
            settle(future, ticket)
        if look:
            self._look_again()


def too_old(version: int, max_staleness: int) -> str:
    """Say why a gradient computed on *version* is refused."""
    return (
        f"it was computed on version {version} of the parameters, and would be more than"
        f" {max_staleness} steps behind (max_staleness): pull before the next gradient"
    )


def _lost(member: str) -> PeerLostError:
    return PeerLostError(member, "was declared lost")
