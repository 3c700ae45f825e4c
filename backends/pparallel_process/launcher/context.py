"""Ranks that were started on this machine, and the thread that watches them."""

from __future__ import annotations

import select
from collections.abc import Sequence
from typing import Any

from typing_extensions import Buffer, override

from pparallel.interfaces.launcher import RankSpec
from pparallel.interfaces.serializer import Serializer
from pparallel.runtime import remote_errors
from pparallel.runtime.pools.values import unread
from pparallel.runtime.ranks.context import RanksContext
from pparallel_process.launcher.cargo import unpacked
from pparallel_process.launcher.messages import STOP
from pparallel_process.launcher.rank_process import RankProcess

_AT_ONCE = 64  #: messages that are taken from one rank before it is the others' turn


class ProcessLaunchContext(RanksContext[RankProcess]):
    """Processes that were started as ranks; see :class:`RanksContext` for the arguments."""

    def __init__(
        self,
        specs: Sequence[RankSpec],
        ranks: Sequence[RankProcess],
        serializer: Serializer,
        *,
        daemon: bool,
    ) -> None:
        try:
            super().__init__(specs, ranks, serializer, daemon=daemon)
        except BaseException:  # nobody watches them
            for each in ranks:
                each.kill()
            for each in ranks:
                each.bury()
            raise

    @override
    def stop(self, reason: BaseException | None = None) -> None:
        told: list[tuple[Any, ...]] = [(STOP, None)]
        if reason is not None:
            envelope = remote_errors.pack(reason, self._serializer, exits=True)
            told.insert(0, (STOP, tuple(envelope)))
        for each in self._ranks:
            each.tell(*told)

    @override
    def _watch(self) -> None:
        poll = select.poll()
        saying = {each.fileno: each for each in self._ranks}
        running = {each.pidfd: each for each in self._ranks}
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

    def _conclude(self, rank: RankProcess) -> None:
        """Take in that the process of *rank* has ended."""
        self._listen(rank)
        self._settle(rank, rank.conclude())

    def _listen(self, rank: RankProcess, most: int | None = None) -> bool:
        """Take in what *rank* has said, at most so much; return False if it says nothing more."""
        try:
            while most != 0 and (received := rank.receive()) is not None:
                (kind, *content), files = received
                self._take(rank, kind, [*content, files])
                most = None if most is None else most - 1
        except EOFError:
            return False
        except Exception as error:  # noqa: BLE001 - its code has written to the channel
            self._fail(rank, unread(f"what rank {rank.spec.rank} said", error))
            rank.kill()
            return False
        return True

    @override
    def _buffers(self, content: Sequence[Any]) -> Sequence[Buffer]:
        head, files = content
        return unpacked(head, files, alone=True)
