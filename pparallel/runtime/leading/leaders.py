"""Who receives for a member: one thread at a time, and another one while that is held up.

It also runs what is asked, as long as that is quick: to hand each request to another thread would
take longer than most of them do. A request that blocks, or has not ended after a while, keeps the
thread, and another one receives in its place.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import partial

from pparallel.runtime import dedicated
from pparallel.runtime.dedicated import ELSEWHERE, LEADING, Role
from pparallel.runtime.leading.patience import Patience

logger = logging.getLogger(__name__)

PATIENCE = 0.002  #: seconds after which another thread takes over from one that runs a request

FAILED = "A request could not be handled"

Act = Callable[[], None]


class Leaders:
    """The threads of a member of which one leads: it receives, and runs what there is to do.

    The role is passed on while the leader runs something, and at no other time: what comes is
    received by one thread at a time, and started in order.

    Attributes:
        do: has an act run after those before it have started; for the leader alone to call.
        rest: what there is to do still, without what is being run.
    """

    def __init__(
        self, name: str, receive: Act, nudge: Act, end: Act, patience: float = PATIENCE
    ) -> None:
        """Know what there is to receive.

        Args:
            name: of the threads.
            receive: called again and again by the leader. It must not hold it up: it passes what
                may take long to :attr:`do`, and returns when it has passed something.
            nudge: ends the waiting in *receive*.
            end: called once at the end, when nobody receives any more.
            patience: seconds that an act may take the leader.
        """
        self._name, self._receive, self._nudge, self._end = name, receive, nudge, end
        self.rest: deque[Act] = deque()
        self.do: Callable[[Act], None] = self.rest.append
        self._lock = threading.Lock()
        self._leader: threading.Thread | None = None
        # The leader, while it runs something. Whoever takes it out of here has the role: it itself
        # when it is done, or another on whom it is passed meanwhile.
        self._running: set[threading.Thread] = set()
        self._threads: set[threading.Thread] = set()  # the leader, and those that led before
        self._watch = Patience(patience, self._pass_on)
        self._ended = False
        self._is_over = threading.Event()

    def start(self) -> None:
        """Start the first thread."""
        self._lead_anew()

    def threads(self) -> list[threading.Thread]:
        """Return the threads that run what was asked, and may go on for a while."""
        with self._lock:
            return list(self._threads)

    def close(self) -> None:
        """Have nothing received any more; safe to call again. Does not wait."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
            leader = self._leader
        self._nudge()
        if leader is None or self._take_from(leader):
            self._finish()

    def wait(self, timeout: float | None) -> None:
        """Wait until nobody receives any more, unless the calling thread does."""
        if self._leader is threading.current_thread() and not self._is_over.is_set():
            return
        if self._is_over.wait(timeout):
            self._watch.close()

    def _lead_anew(self) -> None:
        """Have a new thread lead; called by who has the role."""
        with self._lock:  # held while it is started: only then can it be waited for
            if not self._ended:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                thread.start()
                self._leader = thread
                self._threads.add(thread)
                return
        self._finish()

    def _pass_on(self, leader: threading.Thread) -> bool:
        """Have another thread lead, if *leader* runs something and has not been replaced yet.

        Returns:
            Whether that is settled; False: *leader* leads, and runs nothing just now.
        """
        if not self._take_from(leader):
            return self._leader is not leader
        try:
            self._lead_anew()
        except RuntimeError as error:  # there are too many threads
            logger.warning("%s receives nothing until a request ends: %s", self._name, error)
            self._running.add(leader)
        return True

    def _take_from(self, leader: threading.Thread) -> bool:
        try:
            self._running.remove(leader)
        except KeyError:
            return False
        return True

    def _run(self) -> None:
        me = threading.current_thread()
        role = dedicated.mark_leading(partial(self._pass_on, me), self.do)
        leads = True
        try:
            while leads:
                if self.rest:
                    leads = self._work(me, role)
                elif self._ended:
                    break
                else:
                    self._receive()
        finally:
            if leads:
                self._finish()
            elif self._ended:
                self._run_rest()
            with self._lock:
                self._threads.discard(me)

    def _work(self, me: threading.Thread, role: Role) -> bool:
        """Run what there is to do; return whether this thread leads still."""
        rest, running, watch = self.rest, self._running, self._watch
        role.kind = LEADING
        while rest:
            act = rest.popleft()
            watch.begin(me)
            running.add(me)
            try:
                act()
            except BaseException:
                logger.exception(FAILED)
            del act  # what it holds is released before this thread waits
            try:
                running.remove(me)
            except KeyError:
                watch.end(me)
                return False
        watch.end(me)
        role.kind = ELSEWHERE
        return True

    def _finish(self) -> None:
        """End what is received; called by who has the role when all is over."""
        self._watch.close()
        try:
            self._end()
        finally:
            self._is_over.set()

    def _run_rest(self) -> None:
        """Run what was received before the end: it may hold what has to be given back."""
        while True:
            try:
                act = self.rest.popleft()
            except IndexError:
                return
            try:
                act()
            except BaseException:
                logger.exception(FAILED)
