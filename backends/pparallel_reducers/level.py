"""One level of reducing: messages come in, sums of them go on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

from pparallel.errors import ClosedError, PeerLostError
from pparallel.runtime.pending import fail, settle
from pparallel_reducers.config import GradServerReducerConfig
from pparallel_reducers.layout import Layout
from pparallel_reducers.stage import Stage
from pparallel_reducers.sums import Batch, Seen, Sum
from pparallel_reducers.tally import Tally

HandOn = Callable[[Sum], None]  #: what is done with a full sum; it may block


class Level:
    """Sums ``reduce_batch_size`` messages and hands the sum on, between start and stop.

    A secondary hands on to the primary, the primary to its optimizer.
    """

    def __init__(
        self, name: str, config: GradServerReducerConfig, tally: Tally, hand_on: HandOn
    ) -> None:
        self._name = name
        self._config = config
        self._tally = tally
        self._hand_on = hand_on
        self._lock = threading.Lock()
        self._seen: dict[str, Seen] = {}  # by source
        self._fenced: set[str] = set()
        self._layout: Layout | None = None
        self._batch = Batch(config.reduce_batch_size, config.reduce_device)
        self._stage: Stage[Sum] | None = None
        self._error: BaseException | None = None

    def start(self, layout: Layout) -> None:
        """Take messages about models like *layout*."""
        self._batch.take()
        stage = Stage[Sum](self._name, self._config.max_queue_size, self._take, self._flush)
        stage.start()
        with self._lock:
            self._error = None
            self._layout, self._stage = layout, stage

    def offer(self, source: str, digest: str, message: Callable[[Layout], Sum]) -> Future[bool]:
        """Queue a message of member *source*; it is made only if it is wanted. Never blocks.

        Returns:
            A future that ends once the message is queued, with False if it is of another model.
        """
        reply: Future[bool] = Future()
        queued: Future[None] | None = None
        with self._lock:
            layout, stage = self._layout, self._stage
            if layout is None or stage is None:
                self._tally.add("late")
                reply.set_exception(ClosedError("the reducer", "is not started, or was stopped"))
            elif source in self._fenced:
                self._tally.add("refused")
                reply.set_exception(PeerLostError(source, "was declared lost by a member"))
            elif digest != layout.digest:
                self._tally.add("refused")
                reply.set_result(False)
            elif not self._seen.setdefault(source, Seen()).note((made := message(layout)).ids):
                reply.set_result(True)
            else:
                queued = stage.put(made)
        if queued is not None:
            queued.add_done_callback(lambda ended: self._answer(reply, ended))
        return reply

    def fence(self, source: str, sender: str, number: int | None) -> tuple[int, bool]:
        """Take nothing from *source* any more: *sender* saw its end.

        Returns:
            How many gradients of *sender* came from it, and whether *number* is among them.
        """
        with self._lock:
            self._fenced.add(source)
            seen = self._seen.get(source, Seen())
            return seen.count(sender), number is not None and seen.has(sender, number)

    def flush(self) -> BaseException | None:
        """Take no more; wait until all that was queued is handed on. Return what went wrong."""
        with self._lock:
            stage, self._stage = self._stage, None
        if stage is None:
            return None
        error = stage.flush().exception()
        self._error = stage.error
        stage.end(ClosedError("the reducer", "was stopped"))
        stage.join()
        return error

    def close(self, reason: BaseException) -> None:
        """Refuse what waits and what comes, with *reason*; never blocks."""
        with self._lock:
            stage = self._stage
        if stage is not None:
            stage.end(reason)

    def join(self) -> None:
        """Wait for the thread to end, after :meth:`close`."""
        if self._stage is not None:
            self._stage.join()

    @property
    def error(self) -> BaseException | None:
        """What ended the reducing thread, if something did."""
        stage = self._stage
        return self._error if stage is None else stage.error

    def _take(self, message: Sum) -> None:
        if (full := self._batch.add(message)) is not None:
            self._hand_on(full)

    def _flush(self) -> None:
        if (rest := self._batch.take()) is not None:
            self._hand_on(rest)

    def _answer(self, reply: Future[bool], queued: Future[None]) -> None:
        if (error := queued.exception()) is None:
            settle(reply, True)
            return
        self._tally.add("late" if isinstance(error, ClosedError) else "refused")
        fail(reply, error)
