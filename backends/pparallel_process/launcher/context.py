"""Ranks that were started as processes, and the thread that watches them."""

from __future__ import annotations

import logging
import marshal
import select
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from signal import SIGKILL
from time import monotonic
from typing import Any

from typing_extensions import override

from pparallel.errors import ClosedError
from pparallel.interfaces.launcher import GRACE, LaunchContext, RankSpec
from pparallel.interfaces.serializer import Serializer
from pparallel.runtime import member, printing, remote_errors, stopping
from pparallel.runtime.member import Member
from pparallel.runtime.pools import deaths, forwarding
from pparallel.runtime.pools.values import unread
from pparallel.runtime.processes import Exit
from pparallel_process.launcher.cargo import unpacked
from pparallel_process.launcher.messages import FAILURE, FORWARDED, PRINTED, RESULT, STOP, TOLD
from pparallel_process.launcher.rank_process import RankProcess

logger = logging.getLogger(__name__)

_AT_ONCE = 64  #: messages that are taken from one rank before it is the others' turn


class ProcessLaunchContext(LaunchContext):
    """Processes that were started as ranks.

    A rank counts as running until its process has ended, though it may have returned before. One
    thread takes in what ranks say and sees them end; it ends with them.

    Args:
        ranks: what they run.
        processes: what runs them.
        serializer: reads what they say.
        daemon: the program does not wait for them as it ends.
    """

    def __init__(
        self,
        ranks: Sequence[RankSpec],
        processes: Sequence[RankProcess],
        serializer: Serializer,
        *,
        daemon: bool,
    ) -> None:
        super().__init__(ranks)
        self._processes, self._serializer = processes, serializer
        self._member = member.current()
        self._killed = False
        self._is_mute = False
        self._watcher = threading.Thread(target=self._watch, name="pparallel-ranks", daemon=daemon)
        self._forget_outer = _follow_outer(self.stop)
        try:
            self._watcher.start()
        except BaseException:
            self._forget_outer()
            for each in processes:
                each.signal(SIGKILL)
            for each in processes:
                each.bury()
            raise

    @property
    @override
    def processes(self) -> Sequence[RankProcess]:
        return self._processes

    @override
    def pids(self) -> list[int]:
        return [each.pid for each in self._processes]

    @override
    def stop(self, reason: BaseException | None = None) -> None:
        told: list[tuple[Any, ...]] = [(STOP, None)]
        if reason is not None:
            envelope = remote_errors.pack(reason, self._serializer, exits=True)
            told.insert(0, (STOP, tuple(envelope)))
        for each in self._processes:
            each.tell(*told)

    @override
    def kill(self) -> None:
        self._killed = True
        for each in self._processes:
            each.signal(SIGKILL)

    @override
    def reap(self) -> None:
        self._wait_for_the_end()
        if any(each.is_alive() for each in self._processes):
            self.kill()
            self._wait_for_the_end()
        if threading.current_thread() is not self._watcher:
            self._watcher.join(GRACE)

    @override
    def terminate(self, reason: BaseException | None = None) -> None:
        super().terminate(reason)
        self.reap()

    def _wait_for_the_end(self) -> None:
        end = monotonic() + GRACE
        for each in self._processes:
            each.join(max(0.0, end - monotonic()))

    # -- the watching thread ------------------------------------------------------------------

    def _watch(self) -> None:
        poll = select.poll()
        saying = {each.fileno: each for each in self._processes}
        running = {each.pidfd: each for each in self._processes}
        for descriptor in (*saying, *running):
            poll.register(descriptor, select.POLLIN)
        while running:
            for descriptor, _ in poll.poll():
                if (rank := running.get(descriptor)) is not None:
                    del running[descriptor]
                    poll.unregister(descriptor)
                    if saying.pop(rank.fileno, None) is not None:
                        poll.unregister(rank.fileno)
                    self._conclude(rank)
                elif descriptor in saying and not self._listen(saying[descriptor], _AT_ONCE):
                    del saying[descriptor]
                    poll.unregister(descriptor)
        self._forget_outer()

    def _listen(self, rank: RankProcess, most: int | None = None) -> bool:
        """Take in what *rank* has said, at most so much; return False if it says nothing more."""
        try:
            while most != 0 and (received := rank.receive()) is not None:
                self._take(rank, *received)
                most = None if most is None else most - 1
        except EOFError:
            return False
        except Exception as error:  # noqa: BLE001 - its code has written to the channel
            self._fail(rank, unread(f"what rank {rank.spec.rank} said", error))
            rank.signal(SIGKILL)
            return False
        return True

    def _take(self, rank: RankProcess, message: tuple[Any, ...], files: list[int]) -> None:
        kind, *content = message
        try:
            if kind == PRINTED:
                self._print(rank, *content)
            elif kind == FORWARDED:
                with self._in_the_name_of(rank):
                    rank.log.append(forwarding.replay(content[0], rank.name))
            elif kind == TOLD:
                self._hear(rank, content[0], files)
            elif kind == RESULT:
                rank.returned = (self._loaded(content[0], files),)
            elif kind == FAILURE:
                self._fail(rank, self._error(rank, content[0], files))
        except BaseException as error:  # noqa: BLE001 - raised where the ranks are joined
            self._fail(rank, unread(f"what rank {rank.spec.rank} said", error))

    def _loaded(self, head: bytes, files: list[int]) -> Any:
        return self._serializer.loads(unpacked(head, files, alone=True))

    def _error(self, rank: RankProcess, head: bytes, files: list[int]) -> BaseException:
        (content,) = unpacked(head, files, alone=True)
        envelope = marshal.loads(content)
        return remote_errors.unpack(envelope, rank.name, self._serializer, exits=True, kind="rank")

    def _hear(self, rank: RankProcess, head: bytes, files: list[int]) -> None:
        hear = rank.spec.hear
        told = self._loaded(head, files)
        if hear is not None:
            try:
                with self._in_the_name_of(rank):
                    hear(told)
            except BaseException:
                logger.exception("what %s told could not be heard", rank.name)

    def _print(self, rank: RankProcess, stream: str, text: str) -> None:
        try:
            with self._in_the_name_of(rank):
                printing.take_in(stream, text)
        except Exception as error:  # noqa: BLE001 - whatever stands for standard output
            if not self._is_mute:
                logger.warning("what ranks print is not written any more: %s", error)
            self._is_mute = True

    def _in_the_name_of(self, rank: RankProcess) -> AbstractContextManager[object]:
        whose = Member(rank.spec.name) if rank.spec.name else self._member
        return nullcontext() if whose is None else member.acting_as(whose)

    def _conclude(self, rank: RankProcess) -> None:
        """Take in that the process of *rank* has ended."""
        self._listen(rank)
        end = rank.conclude()
        if rank.reported:
            return
        if rank.returned is not None:
            rank.reported = True
            self.succeeded(rank.spec.rank, rank.returned[0])
        else:
            self._fail(rank, self._lost(rank, end))

    def _fail(self, rank: RankProcess, error: BaseException) -> None:
        if not rank.reported:
            rank.reported = True
            self.failed(rank.spec.rank, error)

    def _lost(self, rank: RankProcess, end: Exit | None) -> BaseException:
        who = f"rank {rank.spec.rank}"
        who += f" ({rank.spec.name})" if rank.spec.name else ""
        if self._killed and end is not None and end.code == -SIGKILL:
            return ClosedError(who, "was ended by force, as it was told to", consequence=True)
        what = f"it was {who} and had not returned"
        return deaths.explained(rank.pid, end, what, rank.log)


def _follow_outer(stop: Callable[[BaseException | None], None]) -> Callable[[], None]:
    """Have *stop* called when the rank that launches, if it is one, is told to stop."""
    outer = stopping.current()
    if outer is None:
        return lambda: None
    return outer.subscribe(lambda signal: stop(signal.reason))
