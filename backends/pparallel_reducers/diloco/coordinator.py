"""The coordinator: waits for the members of each round, and makes the outer step."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial

from pparallel.errors import ClosedError
from pparallel.runtime.future import fail, settle
from pparallel_reducers.config import DilocoReducerConfig
from pparallel_reducers.diloco.outer import Outer, OuterState
from pparallel_reducers.diloco.rounds import LATE_ADVICE, Outcome, Part, Rounds
from pparallel_reducers.tally import Tally

logger = logging.getLogger(__name__)


class Coordinator:
    """Makes the outer steps of one run, on a thread of its own; nothing here blocks its callers.

    Attributes:
        error: what ended the thread, if something did.
    """

    def __init__(
        self,
        name: str,
        config: DilocoReducerConfig,
        members: Iterable[str],
        tally: Tally,
        state: OuterState,
    ) -> None:
        self._tally = tally
        self._outer = Outer(state, config.outer_lr, config.outer_momentum)
        self._rounds = Rounds(members, config.round_timeout)
        self.error: BaseException | None = None
        self._lock = threading.Lock()
        self._ended: BaseException | None = None
        self._over = False
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._underway: list[Part] = []
        self._late: list[Part] = []
        self._last: dict[str, tuple[int, bool]] = {}  # by member: the version, and what became
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def state(self) -> OuterState:
        """The outer parameters, and their version."""
        return self._outer.state

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def hand_in(self, part: Part) -> None:
        """Take part in the round; the outcome of *part* ends when that does."""
        if not self._tell(partial(self._take, part)):
            self._refuse(part)

    def lose(self, member: str) -> None:
        """Go on without *member*, which has ended or left."""
        self._tell(lambda: self._rounds.lose(member))

    def end(self, reason: BaseException) -> None:
        """Make no more steps; whoever waits is told *reason*."""
        with self._lock:
            if self._ended is None:
                self._ended = reason
                self._inbox.put(self._stop)

    def join(self) -> None:
        """Wait for the thread, after :meth:`end`."""
        self._thread.join()

    # -- on the thread ------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._over:
                self._wait()
                self._work()
            self.end(ClosedError("the reducer", "was stopped"))
        except BaseException as error:
            logger.exception("%s failed", self._thread.name)
            self.error = error
            self.end(error)
        self._refuse_all()

    def _wait(self) -> None:
        """Do what comes next, or give up those who did not come in time."""
        try:
            self._inbox.get(timeout=self._rounds.left(time.monotonic()))()
        except queue.Empty:
            if missing := self._rounds.give_up():
                logger.warning("%s goes on without %s", self._thread.name, ", ".join(missing))

    def _work(self) -> None:
        if self._rounds.is_full():
            self._close_round()
        for part in self._late:
            self._answer(part)
        self._late.clear()
        if self._rounds.is_last():
            self._over = True
            for part in self._rounds.stopped():
                self._answer(part)

    def _close_round(self) -> None:
        last = self._rounds.is_last()
        self._underway = self._rounds.take()
        outer = self.state.weights
        made = [each.weights(outer) for each in self._underway if each.weights is not None]
        if made:
            self._outer.step(made, last=last)
        for part in self._underway:
            part.accepted = part.weights is not None
            self._last[part.sender] = part.version, part.accepted
            if not part.stops:
                self._answer(part)
        self._underway = []

    def _take(self, part: Part) -> None:
        version = self.state.version
        late = part.in_round and part.version != version
        self._rounds.note(part, time.monotonic(), late=late)
        if late and not part.stops:
            self._late.append(part)
        if not part.steps or (late and self._is_repeated(part)):
            return
        if late:
            self._last[part.sender] = part.version, False
            reason = f"the round from version {part.version} was over: the version is {version}"
            self._tally.refused(part.steps, part.sender, reason, late=True)
            self._warn_of_refused(part, f"{reason}. {LATE_ADVICE}")
        elif part.fault is not None:
            self._tally.refused(part.steps, part.sender, part.fault)
            self._warn_of_refused(part, part.fault)

    def _is_repeated(self, part: Part) -> bool:
        """Return whether *part*, which is late, has been here; give it the outcome of that time.

        An interrupt may end a member's wait for the outcome; it then hands in the same again.
        """
        version, accepted = self._last.get(part.sender, (None, False))
        part.accepted = version == part.version and accepted
        return version == part.version

    def _warn_of_refused(self, part: Part, why: str) -> None:
        name = self._thread.name
        logger.warning("%s goes on without %d steps of %s: %s", name, part.steps, part.sender, why)

    def _answer(self, part: Part) -> None:
        settle(part.outcome, Outcome(part.accepted, self.state.version))

    def _stop(self) -> None:
        self._over = True

    def _refuse_all(self) -> None:
        while not self._inbox.empty():
            self._inbox.get()()
        waiting = (*self._rounds.take(), *self._rounds.stopped(), *self._underway, *self._late)
        for part in waiting:
            fail(part.outcome, self._reason)

    # -- on any thread ------------------------------------------------------------------------

    def _tell(self, message: Callable[[], None]) -> bool:
        """Have *message* called on the thread; return False if that has ended."""
        with self._lock:
            if self._ended is None:
                self._inbox.put(message)
            return self._ended is None

    def _refuse(self, part: Part) -> None:
        if part.steps:
            late = isinstance(self._reason, ClosedError)
            self._tally.refused(part.steps, part.sender, self._reason, late=late)
        fail(part.outcome, self._reason)

    @property
    def _reason(self) -> BaseException:
        return self._ended or ClosedError("the reducer")
