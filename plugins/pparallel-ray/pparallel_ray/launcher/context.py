"""Ranks that Ray has placed, and the thread that watches them."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import ray
from ray.exceptions import RayError
from typing_extensions import Buffer, override

from pparallel.interfaces.launcher import RankSpec
from pparallel.interfaces.serializer import Serializer
from pparallel.runtime import remote_errors
from pparallel.runtime.processes import Exit
from pparallel.runtime.ranks.context import RanksContext
from pparallel_ray.launcher import messages
from pparallel_ray.launcher.messages import ENDED
from pparallel_ray.launcher.ray_rank import RayRank


class RayLaunchContext(RanksContext[RayRank]):
    """Ranks that Ray has placed; see :class:`RanksContext` for the other arguments.

    Args:
        lifetime: what they hold of the cluster, given back when all have ended.
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
        self._lifetime = lifetime
        super().__init__(specs, ranks, serializer, daemon=daemon)

    @override
    def stop(self, reason: BaseException | None = None) -> None:
        envelope = None
        if reason is not None:
            envelope = tuple(remote_errors.pack(reason, self._serializer, exits=True))
        message = pickle.dumps(envelope)
        for each in self._ranks:
            each.tell(message)

    @override
    def _give_up(self, rank: RayRank) -> None:
        rank.end_supervisor()  # its machine does not answer

    @override
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

    def _conclude(self, rank: RayRank, end: Exit | None, why: str = "") -> None:
        """Take in that the process of *rank* has ended, or is out of reach."""
        rank.has_ended(end)
        self._settle(rank, end, why)

    @override
    def _buffers(self, content: Sequence[Any]) -> Sequence[Buffer]:
        return [bytearray(each) for each in content[0]]


def _line(error: BaseException) -> str:
    lines = [each.strip() for each in str(error).splitlines() if each.strip()]
    return "; ".join(lines)[:600]
