"""Who receives for a member: one thread at a time, and another one while that is held up.

It also runs what is asked, as long as that is quick: to hand each request to another thread would
take longer than most of them do. A request that blocks, or has not ended after a while, keeps the
thread, and another one, which stands ready for that, receives in its place. Where none stands
ready, as no thread can be started, requests are not run by the thread that receives.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from pparallel.errors import ResourceExhaustedError
from pparallel.runtime import dedicated
from pparallel.runtime.dedicated import ELSEWHERE, LEADING, RECEIVING, Role
from pparallel.runtime.leading.patience import Patience, log_failure
from pparallel.runtime.resources import start_thread

logger = logging.getLogger(__name__)

PATIENCE = 0.002  #: seconds after which another thread takes over from one that runs a request
AGAIN = 0.5  #: seconds after which it is tried again to have a thread stand ready

PAUSE = 0.01  #: seconds for which nothing is received after what has failed

FAILED = "A request could not be handled"
UNRECEIVED = "Nothing could be received; that is tried again"

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
        self._lock = threading.RLock()
        self._leader: threading.Thread | None = None
        self._ready: deque[tuple[threading.Thread, threading.Lock]] = deque()  # to lead next
        self._try_at = 0.0  # when to start one that stands ready
        # The leader, while it runs something. Whoever takes it out of here has the role: it itself
        # when it is done, or another on whom it is passed meanwhile.
        self._running: set[threading.Thread] = set()
        self._threads: set[threading.Thread] = set()  # the leader, and those that led before
        self._watch = Patience(patience, self._pass_on)
        self._ended = False
        self._is_over = threading.Event()

    def start(self) -> None:
        """Start the first thread, and one that stands ready.

        Raises:
            ResourceExhaustedError: no thread can be started.
        """
        self._start(leads=True)
        self._have_one_ready()

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
            while self._ready:
                self._ready.popleft()[1].release()
        self._nudge()
        if leader is None or self._take_from(leader):
            self._finish()

    def wait(self, timeout: float | None) -> None:
        """Wait until nobody receives any more, unless the calling thread does."""
        if self._leader is threading.current_thread() and not self._is_over.is_set():
            return
        if self._is_over.wait(timeout):
            self._watch.close()

    def _start(self, *, leads: bool) -> None:
        with self._lock:  # held while it is started: only then can it be waited for
            if self._ended or (self._ready and not leads):  # nobody would call it
                return
            called = threading.Lock()  # and no Event, which takes memory to be waited for and set
            called.acquire()
            thread = threading.Thread(
                target=self._run, args=(called, leads), name=self._name, daemon=True
            )
            start_thread(thread)
            self._threads.add(thread)
            if leads:
                self._leader = thread
            else:
                self._ready.append((thread, called))

    def _have_one_ready(self) -> None:
        """Start a thread that leads when the calling one, which does, is held up."""
        now = time.monotonic()
        if self._ended or now < self._try_at:
            return
        try:
            self._start(leads=False)
        except (ResourceExhaustedError, MemoryError, RuntimeError) as error:
            self._try_at = now + AGAIN
            logger.warning("%s runs no request where it receives: %s", self._name, error)

    def _pass_on(self, leader: threading.Thread) -> bool:
        """Have a thread lead that stands ready, if *leader* runs something and leads still.

        Returns:
            Whether that is settled; False: *leader* leads, and runs nothing just now, or no thread
            stands ready.
        """
        with self._lock:
            if not (self._ended or self._ready) or not self._take_from(leader):
                return self._leader is not leader
            if not self._ended:
                self._leader, called = self._ready.popleft()
                called.release()
                return True
        self._finish()
        return True

    def _take_from(self, leader: threading.Thread) -> bool:
        with self._lock:
            try:
                self._running.remove(leader)
            except KeyError:
                return False
            self._leader = None
            return True

    def _run(self, called: threading.Lock, leads: bool) -> None:
        me, role = threading.current_thread(), None
        while role is None:
            try:
                role = dedicated.mark_leading(partial(self._pass_on, me), self.do)
            except MemoryError:  # it is counted on
                time.sleep(PAUSE)
        try:
            while leads or self._is_called(called):
                leads = True
                leads = self._lead(me, role)
                if leads or not self._stands_ready(me, called):
                    break
        finally:
            if leads:
                self._finish()
            with self._lock:
                self._threads.discard(me)

    def _is_called(self, called: threading.Lock) -> bool:
        called.acquire()
        return self._leader is threading.current_thread()

    def _stands_ready(self, me: threading.Thread, called: threading.Lock) -> bool:
        """Have this thread, which led before, lead again when one is needed."""
        with self._lock:
            if not (self._ready or self._ended):
                self._ready.append((me, called))
                return True
        if self._ended:
            self._run_rest()
        return False

    def _lead(self, me: threading.Thread, role: Role) -> bool:
        """Receive, and run what comes; return whether this thread leads still, at the end."""
        while True:
            role.kind = RECEIVING
            try:
                if not self._ready:
                    self._have_one_ready()
                if self.rest:
                    if not self._work(me, role):
                        return False
                elif self._ended:
                    return True
                else:
                    self._receive()
            except BaseException:  # noqa: BLE001 - logged; without this thread nothing is heard any more
                with self._lock:
                    if self._leader is not me:
                        role.kind = ELSEWHERE
                        return False
                    self._running.discard(me)
                self._watch.end(me)
                log_failure(logger, UNRECEIVED)
                time.sleep(PAUSE)

    def _work(self, me: threading.Thread, role: Role) -> bool:
        """Run what there is to do; return whether this thread leads still."""
        rest, running, watch = self.rest, self._running, self._watch
        role.kind = LEADING if self._ready else ELSEWHERE
        while rest:
            act = rest.popleft()
            try:
                watch.begin(me)
                running.add(me)
            except BaseException:
                rest.appendleft(act)  # nobody else leads yet
                raise
            try:
                act()
            except BaseException:  # noqa: BLE001 - logged, and the thread goes on
                log_failure(logger, FAILED)
            del act  # what it holds is released before this thread waits
            try:
                running.remove(me)
            except KeyError:
                watch.end(me)
                role.kind = ELSEWHERE
                return False
        watch.end(me)
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
            except BaseException:  # noqa: BLE001 - logged, and the thread goes on
                log_failure(logger, FAILED)
