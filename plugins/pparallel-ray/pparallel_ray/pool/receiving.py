"""Take in what the workers say, and tell the sinks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from pparallel.interfaces.serializer import Serializer
from pparallel.runtime import remote_errors
from pparallel.runtime.pools.messages import Message
from pparallel.runtime.pools.telling import tell_each
from pparallel.runtime.pools.values import unread
from pparallel_ray.pool.accounts.crew import Crew
from pparallel_ray.pool.accounts.worker import Worker
from pparallel_ray.pool.wire.parcels import Parcels


class Receiver:
    """Takes in the workers' reports; called by the dispatcher.

    Args:
        crew: the accounts.
        serializer: what results were turned into bytes with.
    """

    def __init__(self, crew: Crew, serializer: Serializer) -> None:
        self._crew = crew
        self._serializer = serializer
        self._parcels = Parcels()

    def take_report(self, worker: Worker, message: Message, files: list[Any]) -> bool:
        """Take in a report; return whether the lot has ended."""
        _, number, first, entries, coded, errors, end = message
        lot = worker.lots.get(number)
        if lot is None:
            return False
        reported = lot.reported = first + len(entries)
        if end is not None:
            seconds, *_ = end
            del worker.lots[number]
            if reported < lot.limit:
                self._crew.give_back(lot, reported, lot.limit)
            if reported:
                lot.function.pace.learn(seconds, reported)
        try:
            if coded or errors:
                tell_each(
                    lot,
                    first,
                    entries,
                    errors or {},
                    files,
                    load=self._loaded,
                    error_of=partial(self.error, worker),
                )
            elif entries:
                lot.done(first, entries)
        finally:
            self._crew.count(lot, first, reported)
        return end is not None

    def error(self, worker: Worker, envelope: Any) -> BaseException:
        """Return what *worker* raised."""
        return remote_errors.unpack(
            envelope, worker.name, self._serializer, exits=True, kind="worker"
        )

    def _loaded(self, head: bytes, files: Sequence[Any]) -> Any:
        try:
            return self._serializer.loads(self._parcels.unpack(head, files))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - hooks of its class
            refused = unread("a result", error)
            raise refused from refused.__cause__
