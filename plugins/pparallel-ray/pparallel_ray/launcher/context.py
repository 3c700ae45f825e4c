"""Ranks that Ray has placed, and the thread that watches them."""

from __future__ import annotations

import logging
import pickle
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from signal import SIGKILL
from time import monotonic
from typing import Any

import ray
from ray.exceptions import RayError
from typing_extensions import override

from pparallel.errors import ClosedError, WorkerLostError
from pparallel.interfaces.launcher import GRACE, LaunchContext, RankSpec
from pparallel.interfaces.serializer import Serializer
from pparallel.runtime import member, printing, remote_errors, stopping
from pparallel.runtime.member import Member
from pparallel.runtime.pools import deaths, forwarding
from pparallel.runtime.pools.values import unread
from pparallel.runtime.processes import Exit
from pparallel_ray.launcher import messages
from pparallel_ray.launcher.messages import ENDED, FAILURE, FORWARDED, PRINTED, RESULT, TOLD
from pparallel_ray.launcher.ray_rank import RayRank

logger = logging.getLogger(__name__)


class RayLaunchContext(LaunchContext):
    """Ranks that Ray has placed.

    A rank counts as running until its process has ended, though it may have returned before. One
    thread takes in what ranks say and sees them end; it ends with them.

    Args:
        specs: what they run.
        ranks: what runs them.
        serializer: reads what they say.
        lifetime: what they hold of the cluster, given back when all have ended.
        daemon: the program does not wait for them as it ends.
    """

    def __init__(
        self,
        specs: Sequence[RankSpec],
        ranks: Sequence[RayRank],
        serializer: Serializer,
        lifetime: ExitStack,
        *,
        daemon: bool,
    ) -> None:
        super().__init__(specs)
        self._ranks, self._serializer, self._lifetime = ranks, serializer, lifetime
        self._member = member.current()
        self._killed = False
        self._is_mute = False
        self._watcher = threading.Thread(target=self._watch, name="pparallel-ranks", daemon=daemon)
        self._forget_outer = _follow_outer(self.stop)
        try:
            self._watcher.start()
        except BaseException:
            self._forget_outer()
            raise

    @property
    @override
    def processes(self) -> Sequence[RayRank]:
        return self._ranks

    @override
    def pids(self) -> list[int]:
        return [each.pid for each in self._ranks]

    @override
    def stop(self, reason: BaseException | None = None) -> None:
        envelope = None
        if reason is not None:
            envelope = tuple(remote_errors.pack(reason, self._serializer, exits=True))
        message = pickle.dumps(envelope)
        for each in self._ranks:
            each.tell(message)

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
            if each.is_alive():  # its machine does not answer
                each.end_supervisor()
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

    # -- the watching thread ------------------------------------------------------------------

    def _watch(self) -> None:
        with self._lifetime:
            listening: dict[Any, RayRank] = {}
            try:
                listening.update((each.listen(), each) for each in self._ranks)
                while listening:
                    (reference, *_), _ = ray.wait(list(listening), num_returns=1)
                    rank = listening.pop(reference)
                    if self._listen(rank, reference):
                        listening[rank.listen()] = rank
            except Exception as error:  # noqa: BLE001 - raised where the ranks are joined
                for rank in self._ranks:
                    self._conclude(rank, None, f"the connection to Ray was lost: {error}")
            self._forget_outer()
            for rank in self._ranks:
                rank.end_supervisor()

    def _listen(self, rank: RayRank, reference: Any) -> bool:
        """Take in what *rank* has said; return False if it says nothing more."""
        try:
            news = ray.get(reference)
        except RayError as error:
            self._conclude(rank, None, f"Ray has lost its supervisor: {_line(error)}")
            return False
        for each in news:
            kind, *content = messages.read(each)
            if kind == ENDED:
                end = content[0]
                self._conclude(rank, None if end is None else Exit(*end))
                return False
            self._take(rank, kind, content)
        return True

    def _take(self, rank: RayRank, kind: int, content: Sequence[Any]) -> None:
        try:
            if kind == PRINTED:
                self._print(rank, *content)
            elif kind == FORWARDED:
                with self._in_the_name_of(rank):
                    rank.log.append(forwarding.replay(content[0], rank.name))
            elif kind == TOLD:
                self._hear(rank, self._loaded(content[0]))
            elif kind == RESULT:
                rank.returned = (self._loaded(content[0]),)
            elif kind == FAILURE:
                self._fail(rank, self._error(rank, content[0]))
        except BaseException as error:  # noqa: BLE001 - raised where the ranks are joined
            self._fail(rank, unread(f"what rank {rank.spec.rank} said", error))

    def _loaded(self, frames: Sequence[bytes]) -> Any:
        return self._serializer.loads([bytearray(each) for each in frames])

    def _error(self, rank: RayRank, envelope: Any) -> BaseException:
        return remote_errors.unpack(envelope, rank.name, self._serializer, exits=True, kind="rank")

    def _hear(self, rank: RayRank, told: object) -> None:
        if rank.spec.hear is not None:
            try:
                with self._in_the_name_of(rank):
                    rank.spec.hear(told)
            except BaseException:
                logger.exception("what %s told could not be heard", rank.name)

    def _print(self, rank: RayRank, stream: str, text: str) -> None:
        try:
            with self._in_the_name_of(rank):
                printing.take_in(stream, text)
        except Exception as error:  # noqa: BLE001 - whatever stands for standard output
            if not self._is_mute:
                logger.warning("what ranks print is not written any more: %s", error)
            self._is_mute = True

    def _in_the_name_of(self, rank: RayRank) -> AbstractContextManager[object]:
        whose = Member(rank.spec.name) if rank.spec.name else self._member
        return nullcontext() if whose is None else member.acting_as(whose)

    def _conclude(self, rank: RayRank, end: Exit | None, why: str = "") -> None:
        """Take in that the process of *rank* has ended, or is out of reach."""
        rank.conclude(end)
        if rank.reported:
            return
        if rank.returned is not None:
            rank.reported = True
            self.succeeded(rank.spec.rank, rank.returned[0])
        else:
            self._fail(rank, self._lost(rank, end, why))

    def _fail(self, rank: RayRank, error: BaseException) -> None:
        if not rank.reported:
            rank.reported = True
            self.failed(rank.spec.rank, error)

    def _lost(self, rank: RayRank, end: Exit | None, why: str) -> BaseException:
        who = f"rank {rank.spec.rank}"
        who += f" ({rank.spec.name})" if rank.spec.name else ""
        if self._killed and (end is None or end.code == -SIGKILL):
            return ClosedError(who, "was ended by force, as it was told to", consequence=True)
        what = f"it was {who}, at {rank.host}, and had not returned"
        if why:
            return WorkerLostError(rank.pid, None, f"{what}; {why}")
        return deaths.explained(rank.pid, end, what, rank.log)


def _line(error: BaseException) -> str:
    lines = [each.strip() for each in str(error).splitlines() if each.strip()]
    return "; ".join(lines)[:600]


def _follow_outer(stop: Callable[[BaseException | None], None]) -> Callable[[], None]:
    """Have *stop* called when the rank that launches, if it is one, is told to stop."""
    outer = stopping.current()
    if outer is None:
        return lambda: None
    return outer.subscribe(lambda signal: stop(signal.reason))
