"""Ranks that are processes, and the thread that hears of them."""

from __future__ import annotations

import logging
import marshal
import threading
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from signal import SIGKILL
from time import monotonic
from typing import Any, Generic, TypeVar

from typing_extensions import Buffer, override

from pparallel.errors import ClosedError, WorkerLostError
from pparallel.interfaces.launcher import GRACE, LaunchContext, RankSpec
from pparallel.interfaces.serializer import Serializer
from pparallel.runtime import member, printing, remote_errors, stopping
from pparallel.runtime.member import Member
from pparallel.runtime.pools import deaths, forwarding
from pparallel.runtime.pools.values import unread
from pparallel.runtime.processes import Exit
from pparallel.runtime.ranks.kinds import FAILURE, FORWARDED, PRINTED, RESULT, TOLD
from pparallel.runtime.ranks.rank import Rank
from pparallel.runtime.resources import start_thread

logger = logging.getLogger(__name__)

R = TypeVar("R", bound=Rank)


class RanksContext(LaunchContext, Generic[R]):
    """Processes that were started as ranks.

    A rank counts as running until its process has ended, though it may have returned before. One
    thread takes in what ranks say and sees them end; it ends with them. A backend gives
    :meth:`stop`, and :meth:`_watch` with what it calls; it hands what a rank says to :meth:`_take`
    and how it ended to :meth:`_settle`.

    Args:
        specs: what they run.
        ranks: what runs them.
        serializer: reads what they say.
        daemon: the program does not wait for them as it ends.
    """

    def __init__(
        self,
        specs: Sequence[RankSpec],
        ranks: Sequence[R],
        serializer: Serializer,
        *,
        daemon: bool,
    ) -> None:
        super().__init__(specs)
        self._ranks, self._serializer = ranks, serializer
        self._member = member.current()
        self._killed = False
        self._is_mute = False
        self._watcher = threading.Thread(target=self._run, name="pparallel-ranks", daemon=daemon)
        self._forget_outer = stopping.follow(self.stop)
        try:
            start_thread(self._watcher)
        except BaseException:
            self._forget_outer()
            raise

    @property
    @override
    def processes(self) -> Sequence[R]:
        return self._ranks

    @override
    def pids(self) -> list[int]:
        return [each.pid for each in self._ranks]

    @override
    def kill(self) -> None:
        self._killed = True
        for each in self._ranks:
            each.kill()

    @override
    def reap(self) -> None:
        self._wait_for_the_end()
        if any(each.is_alive() for each in self._ranks):
            self.kill()
            self._wait_for_the_end()
        for each in self._ranks:
            if each.is_alive():
                self._give_up(each)
        if threading.current_thread() is not self._watcher:
            self._watcher.join(GRACE)

    @override
    def terminate(self, reason: BaseException | None = None) -> None:
        super().terminate(reason)
        self.reap()

    def _wait_for_the_end(self) -> None:
        end = monotonic() + GRACE
        for each in self._ranks:
            each.join(max(0.0, end - monotonic()))

    def _give_up(self, rank: R) -> None:
        """Do what else can be done about *rank*, which was killed and does not end."""

    # -- the watching thread ------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._watch()
        except BaseException as error:  # without it nobody would learn how the ranks end
            logger.exception("The thread that watches the ranks failed")
            self.kill()
            for each in self._ranks:
                self._fail(each, error)

    @abstractmethod
    def _watch(self) -> None:
        """Take in what ranks say, until all have ended."""

    @abstractmethod
    def _buffers(self, content: Sequence[Any]) -> Sequence[Buffer]:
        """Return the buffers that a rank has sent in a message of this content.

        They are those of an object, or one with the envelope of an error, by :mod:`marshal`.
        """

    def _take(self, rank: R, kind: int, content: Sequence[Any]) -> None:
        """Take in what *rank* has said."""
        try:
            if kind == PRINTED:
                self._print(rank, *content[:2])
            elif kind == FORWARDED:
                with self._in_the_name_of(rank):
                    rank.log.append(forwarding.replay(content[0], rank.name))
            elif kind == TOLD:
                self._hear(rank, self._serializer.loads(self._buffers(content)))
            elif kind == RESULT:
                rank.returned = (self._serializer.loads(self._buffers(content)),)
            elif kind == FAILURE:
                envelope = marshal.loads(self._buffers(content)[0])
                error = remote_errors.unpack(
                    envelope, rank.name, self._serializer, exits=True, kind="rank"
                )
                self._fail(rank, error)
        except BaseException as error:  # noqa: BLE001 - raised where the ranks are joined
            self._fail(rank, unread(f"what rank {rank.spec.rank} said", error))

    def _hear(self, rank: R, told: object) -> None:
        if rank.spec.hear is not None:
            try:
                with self._in_the_name_of(rank):
                    rank.spec.hear(told)
            except BaseException:
                logger.exception("what %s told could not be heard", rank.name)

    def _print(self, rank: R, stream: str, text: str) -> None:
        try:
            with self._in_the_name_of(rank):
                printing.take_in(stream, text)
        except Exception as error:  # noqa: BLE001 - whatever stands for standard output
            if not self._is_mute:
                logger.warning("what ranks print is not written any more: %s", error)
            self._is_mute = True

    def _in_the_name_of(self, rank: R) -> AbstractContextManager[object]:
        whose = Member(rank.spec.name) if rank.spec.name else self._member
        return nullcontext() if whose is None else member.acting_as(whose)

    def _settle(self, rank: R, end: Exit | None, why: str = "") -> None:
        """Report what came of *rank*, whose process has ended.

        Args:
            rank: which.
            end: how it ended; ``None``: nobody knows.
            why: nobody does.
        """
        if rank.reported:
            return
        if rank.returned is not None:
            rank.reported = True
            self.succeeded(rank.spec.rank, rank.returned[0])
        else:
            self._fail(rank, self._lost(rank, end, why))

    def _fail(self, rank: R, error: BaseException) -> None:
        if not rank.reported:
            rank.reported = True
            self.failed(rank.spec.rank, error)

    def _lost(self, rank: R, end: Exit | None, why: str) -> BaseException:
        if self._killed and (end is None or end.code == -SIGKILL):
            how = "was ended by force, as it was told to"
            return ClosedError(rank.described(), how, consequence=True)
        what = f"it was {rank.described()} and had not returned"
        if why:
            return WorkerLostError(rank.pid, None, f"{what}; {why}")
        return deaths.explained(rank.pid, end, what, rank.log)
