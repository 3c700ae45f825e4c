"""The workers' lives: who is started, who has died, who is replaced."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from time import monotonic

from pparallel.errors import PparallelError
from pparallel.runtime.pools import forwarding
from pparallel.runtime.pools.messages import FAILED, FORWARDED, READY, Message
from pparallel_ray.pool.accounts.crew import Crew
from pparallel_ray.pool.accounts.worker import End, Link, Worker
from pparallel_ray.pool.receiving import Receiver
from pparallel_ray.pool.staff.losses import Losses, explained
from pparallel_ray.pool.staff.places import NoPlaceError
from pparallel_ray.pool.staff.recruiter import Recruiter
from pparallel_ray.pool.wire.orders import KILL, MEASURE

logger = logging.getLogger(__name__)

_STARTS = 3  #: how often workers may fail to start, one after the other
_DEATH = 1.0  #: seconds in which a supervisor says how a worker ended whose channel has
_ECHO = 0.3  #: seconds in which the last of what a dead worker said arrives
_FAREWELL = 5.0  #: seconds that a worker which is replaced has to end


class Staffing:
    """Starts workers, and replaces those that have died or served long enough.

    The dispatcher calls it; what waits for Ray does so in threads of its own, which hand their
    results to the dispatcher.

    Args:
        crew: the accounts.
        recruiter: who starts a worker.
        receiver: who reads what workers raise.
        post: has the dispatcher call something.
        join: has the dispatcher listen to a worker, or to a supervisor that is new.
        part: has it listen to that no more.

    Attributes:
        broken: why no worker can be started; ``None``: they can.
        starting: threads that wait for Ray.
    """

    def __init__(
        self,
        crew: Crew,
        recruiter: Recruiter,
        receiver: Receiver,
        post: Callable[[Callable[[], object]], None],
        join: Callable[[Worker | Link], None],
        part: Callable[[Worker | Link], None],
    ) -> None:
        self._crew = crew
        self._recruiter = recruiter
        self._receiver = receiver
        self._losses = Losses(crew)
        self._post = post
        self._join = join
        self._part = part
        self._links: dict[int, Link] = {}
        self._failures = 0
        self._is_ending = False
        self.broken: BaseException | None = None
        self.starting: dict[int, threading.Thread] = {}

    @property
    def is_empty(self) -> bool:
        """Whether no worker is there or may come."""
        return not self._crew.workers and not self.starting

    def start_all(self) -> None:
        """Start the workers; of those that may fail only a few, until one has not."""
        careful = self._crew.config.initializer is not None
        for number in range(min(self._crew.size, _STARTS) if careful else self._crew.size):
            self._begin(number)

    def hear(self, worker: Worker, message: Message) -> None:
        """Take in what *worker* says that is no report."""
        kind, *content = message
        if kind == FORWARDED:
            worker.log.append(forwarding.replay(content[0], worker.name))
        elif kind == READY:
            worker.pid, memory = content
            self._welcome(worker, memory)
        elif kind == FAILED:
            worker.pid, envelope = content
            worker.failure = self._receiver.error(worker, envelope)

    def ended(self, link: Link, end: End) -> None:
        """Take in how the worker at *link* has ended."""
        worker = self._crew.workers.get(link.number)
        if worker is not None and worker.link is link and worker.end is None:
            worker.end = end
            worker.deadline = monotonic() + _ECHO

    def lost(self, link: Link) -> None:
        """Take in that the supervisor at *link* is gone."""
        self._part(link)
        if self._links.get(link.number) is link:
            del self._links[link.number]
        worker = self._crew.workers.get(link.number)
        pid = worker.pid if worker is not None else 0
        if worker is not None and worker.link is link and worker.end is None:
            self.ended(link, End(pid, None, None, why=self._recruiter.why_lost(link)))
        link.control.close()

    def grown(self, link: Link) -> None:
        """Take in that the worker at *link* has taken too much memory."""
        worker = self._crew.workers.get(link.number)
        if worker is not None and worker.link is link and worker.is_ready:
            worker.is_retiring = True
            self.retire(worker)

    def retire(self, worker: Worker) -> None:
        """Let *worker* go if it is to and has ended its last task."""
        if worker.is_retiring and not worker.lots and not worker.is_leaving:
            self._leave(worker, _FAREWELL)

    def look(self) -> float | None:
        """Bury the dead; return in how many seconds to look again."""
        now, soonest = monotonic(), None
        for worker in list(self._crew.workers.values()):
            if worker.is_silent and worker.end is None and worker.deadline is None:
                worker.deadline = now + _DEATH
            if worker.end is not None and (worker.is_silent or now >= (worker.deadline or 0.0)):
                self._bury(worker, worker.end)
            elif worker.deadline is not None and now >= worker.deadline:
                self._hurry(worker)
            if worker.deadline is not None:
                left = max(0.001, worker.deadline - now)
                soonest = left if soonest is None else min(soonest, left)
        return soonest

    def kill_all(self) -> None:
        """End all workers by force, for good."""
        self._is_ending = True
        self._recruiter.close()
        for worker in self._crew.workers.values():
            self._kill(worker)

    def end_all(self, patience: float) -> None:
        """Have all workers end, for good; they have *patience* seconds to do so by themselves."""
        self._is_ending = True
        self._recruiter.close()
        for worker in self._crew.workers.values():
            if not worker.is_leaving:
                self._leave(worker, patience)

    def give_up(self, error: BaseException) -> None:
        """Start no more workers, and fail what is not done with *error*."""
        with self._crew.lock:
            self.broken = error
            live = self._crew.abandon()
        for job in live:
            job.sink.abort(error)

    def close(self) -> None:
        """Let go of all supervisors."""
        self._is_ending = True
        self._recruiter.close()
        for worker in self._crew.workers.values():
            self._part(worker)
            worker.channel.close()
        self._crew.workers.clear()
        for link in self._links.values():
            self._part(link)
            link.control.close()
        self._links.clear()

    def leave_to_parent(self) -> None:
        """Give the descriptors back, in a fork: they are not this process's workers."""
        self._is_ending = True
        for worker in self._crew.workers.values():
            worker.channel.close()
        for link in self._links.values():
            link.control.close()

    def _begin(self, number: int) -> None:
        if self._is_ending or self.broken is not None or number in self.starting:
            return
        name = f"pparallel-ray-recruiter-{number}"
        link = self._links.get(number)
        thread = threading.Thread(target=self._recruit, args=(number, link), name=name, daemon=True)
        self.starting[number] = thread
        thread.start()

    def _recruit(self, number: int, link: Link | None) -> None:
        """Start worker *number*, and tell the dispatcher; runs in a thread of its own."""
        hired: Link | None = None
        try:
            if link is None:
                link = hired = self._recruiter.hire(number)
            worker = self._recruiter.start(link)
        except BaseException as error:  # noqa: BLE001 - told to those whose tasks cannot run
            if hired is not None:
                hired.control.close()
            self._post(partial(self._not_started, number, link, error))
        else:
            self._post(partial(self._started, number, worker))

    def _started(self, number: int, worker: Worker) -> None:
        self.starting.pop(number).join()
        link = worker.link
        is_new = self._links.get(number) is not link
        if self._is_ending:
            worker.channel.close()
            if is_new:
                link.control.close()
            return
        if is_new:
            self._links[number] = link
            self._join(link)
        self._crew.workers[number] = worker
        self._join(worker)

    def _not_started(self, number: int, link: Link | None, error: BaseException) -> None:
        self.starting.pop(number).join()
        if link is not None and self._links.get(number) is link:
            self.lost(link)
        if self._is_ending:
            return
        logger.info("worker %d of a pool could not be started: %s", number, error)
        if isinstance(error, NoPlaceError):  # it was long enough in coming
            self.give_up(error)
        else:
            self._count_failure(number, error)

    def _welcome(self, worker: Worker, memory: int) -> None:
        self._failures = 0
        worker.is_ready = True
        if self._crew.config.max_rss is not None:
            self._order(worker, (MEASURE, memory))
        for number in range(self._crew.size):
            if number not in self._crew.workers:
                self._begin(number)

    def _leave(self, worker: Worker, patience: float) -> None:
        worker.is_leaving = True
        worker.deadline = monotonic() + patience
        worker.channel.finish()

    def _hurry(self, worker: Worker) -> None:
        """End a worker by force that should have ended, or give up hearing of its end."""
        if worker.is_killed:
            worker.end = End(worker.pid, None, None, why="its supervisor does not answer")
        self._kill(worker)

    def _kill(self, worker: Worker) -> None:
        worker.is_killed = True
        worker.deadline = monotonic() + _DEATH
        self._order(worker, (KILL,))

    def _order(self, worker: Worker, message: Message) -> None:
        try:
            worker.link.control.send(message)
        except OSError as error:  # it is gone, which is told in its own way
            logger.debug("the supervisor of %s cannot be told: %s", worker.name, error)

    def _count_failure(self, number: int, error: BaseException) -> None:
        self._failures += 1
        starting = len(self.starting)
        starting += sum(not each.is_ready for each in self._crew.workers.values())
        if self._failures >= _STARTS:
            self.give_up(error)
        elif self._failures + starting < _STARTS:
            self._begin(number)

    def _bury(self, worker: Worker, end: End) -> None:
        self._part(worker)
        worker.channel.close()
        del self._crew.workers[worker.number]
        failed = self._losses.of(worker, end)
        if worker.failure is not None:
            self._count_failure(worker.number, worker.failure)
        elif worker.is_leaving or worker.is_ready:
            if not (self._is_ending or worker.is_leaving):  # who lost something is told anyway
                level = logging.INFO if failed else logging.WARNING
                logger.log(level, "%s", explained(worker, end, "and was idle"))
            self._begin(worker.number)
        else:
            error = PparallelError(end.why) if not end.pid else None
            self._count_failure(worker.number, error or explained(worker, end, "and was starting"))
        self._losses.tell(failed)
