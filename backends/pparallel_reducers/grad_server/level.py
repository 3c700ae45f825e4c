"""One level of reducing: messages come in, sums of them go on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from pparallel.errors import ClosedError, PeerLostError
from pparallel.runtime.future import fail, settle
from pparallel_reducers.config import GradServerReducerConfig
from pparallel_reducers.grad_server.flat import Source
from pparallel_reducers.grad_server.stage import Stage
from pparallel_reducers.grad_server.sums import Batch, Id, Seen, Sum
from pparallel_reducers.grad_server.tickets import UnknownTicketError
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
        self._leaving: set[str] = set()  # senders that push no more, with gradients in the batch
        self._digest: str | None = None
        self._batch = Batch(config.reduce_batch_size)
        self._stage: Stage[Sum] | None = None
        self._last_stage: Stage[Sum] | None = None  # which is flushed
        self._flushed = _done()
        self._held = 0
        # Where staleness is bounded, others are asked.
        self.arrived: Callable[[Sum], None] = lambda _: None
        self.ready: Callable[[Sum, bool], bool] = lambda _, is_full: is_full
        self.when_ended: Callable[[BaseException], None] = lambda _: None
        self.forgotten: Callable[[str], None] = lambda _: None  # called with each sender

    def start(self, digest: str, sources: Sequence[Source]) -> None:
        """Take messages about models of the layout with that digest, and sum in *sources*."""
        if (former := self._stage) is not None:  # stop() was interrupted
            former.end(ClosedError("the reducer", "was started again"))
            former.join()
        self._batch.begin(sources)
        stage = Stage[Sum](self._name, self._config.max_queue_size, self._take)
        stage.start()
        with self._lock:
            self._last_stage, self._flushed = None, _done()
            self._held = 0
            self._digest, self._stage = digest, stage

    def offer(
        self, source: str, digest: str, count: int, message: Callable[[], Sum]
    ) -> Future[bool]:
        """Queue a message of member *source*; it is made only if it is wanted. Never blocks.

        Args:
            source: who sends it.
            digest: of the layout of the model that it is about.
            count: how many gradients it sums.
            message: makes it.

        Returns:
            A future that ends once the message is queued, with False if it is of another model, or
            has a ticket that is not on its way.
        """
        queued: Future[None] | None = None
        ids: Sequence[Id] = ()
        with self._lock:
            stage = self._stage
            refusal = self._refusal(source, digest)
            if refusal is None and stage is not None:
                made, seen = message(), self._seen.setdefault(source, Seen())
                if not seen.knows(made.ids):
                    try:
                        self.arrived(made)
                    except UnknownTicketError as error:  # then it has not come
                        refusal = error
                    else:
                        seen.note(ids := made.ids)
                        queued = stage.put(made)
        reply: Future[bool] = Future()
        if refusal is not None:
            self._refuse(reply, source, count, refusal)
        elif queued is None:  # it has come before
            reply.set_result(True)
        else:
            queued.add_done_callback(lambda ended: self._answer(reply, source, count, ids, ended))
        return reply

    def has_come(self, source: str, sender: str, number: int) -> bool:
        """Return whether that gradient of *sender* came from *source* and was not refused."""
        with self._lock:
            return self._seen.get(source, Seen()).has(sender, number)

    def fence(self, source: str, sender: str, number: int | None) -> tuple[int, bool]:
        """Take nothing from *source* any more: *sender* saw its end.

        Returns:
            How many gradients of *sender* came from it, and whether *number* is among them.
        """
        with self._lock:
            self._fenced.add(source)
            seen = self._seen.get(source, Seen())
            return seen.count(sender), number is not None and seen.has(sender, number)

    def forget(self, sender: str) -> None:
        """Keep nothing of *sender*, which pushes no more, once its gradients are handed on."""
        with self._lock:
            stage = self._stage
        if stage is None:
            self._forget(sender)
        else:
            stage.run(lambda: self._leave(sender))

    def _leave(self, sender: str) -> None:
        batch = self._batch.sum
        if batch is not None and any(each == sender for each, _ in batch.ids):
            self._leaving.add(sender)
        else:
            self._forget(sender)

    def _forget(self, sender: str) -> None:
        with self._lock:
            for seen in self._seen.values():
                seen.forget(sender)
        self.forgotten(sender)

    def flush(self) -> BaseException | None:
        """Take no more; wait until all that was queued is handed on. Return what went wrong."""
        with self._lock:
            stage = self._stage
        error = self.flush_soon().exception()
        if stage is not None:
            stage.join()
        return error

    def flush_soon(self) -> Future[None]:
        """As :meth:`flush`, but never block: the future fails with what went wrong."""
        with self._lock:
            stage, self._stage = self._stage, None
            if stage is None:
                return self._flushed
            self._flushed = stage.run(self._flush)
        self._last_stage = stage
        self._flushed.add_done_callback(
            lambda _: stage.end(ClosedError("the reducer", "was stopped"))
        )
        return self._flushed

    def look(self) -> Future[None]:
        """Look whether the batch is to be handed on, once all that is queued is in; never blocks.

        Returns:
            A future that ends when that is done, or fails with what ended the level.
        """
        with self._lock:
            return _done() if self._stage is None else self._stage.run(self._check)

    def wait_for_look(self) -> None:
        """As :meth:`look`, and wait; never on the thread that hands on."""
        self.look().exception()  # what ended the level is raised by watch() and stop()

    @property
    def is_current(self) -> bool:
        """Whether this is called on the thread that hands on, as in a hook of the optimizer."""
        stage = self._stage or self._last_stage
        return stage is not None and stage.is_current

    def drain(self, member: str) -> Future[None]:
        """Take nothing from *member* any more, and hand on all that came; never blocks."""
        with self._lock:
            self._fenced.add(member)
            stage = self._stage
        return _done() if stage is None else stage.run(self._flush)

    def close(self, reason: BaseException) -> None:
        """Refuse what waits and what comes, with *reason*; never blocks."""
        with self._lock:
            stage = self._stage
        if stage is not None:
            stage.end(reason)
        self.when_ended(reason)

    def join(self) -> None:
        """Wait for the thread to end, after :meth:`close`."""
        if self._stage is not None:
            self._stage.join()

    @property
    def error(self) -> BaseException | None:
        """What ended the reducing thread, if something did."""
        stage = self._stage or self._last_stage
        return None if stage is None else stage.error

    @property
    def held(self) -> int:
        """How many gradients were acknowledged and not handed on, once the thread has ended."""
        return self._held

    def _take(self, message: Sum) -> None:
        self._batch.add(message)
        self._check()

    def _check(self) -> None:
        batch = self._batch
        if batch.sum is not None and self.ready(batch.sum, batch.is_full):
            self._flush()

    def _flush(self) -> None:
        if (rest := self._batch.take()) is not None:
            self._pass_on(rest)

    def _pass_on(self, batch: Sum) -> None:
        count = batch.count
        try:
            self._hand_on(batch)
        except BaseException as error:
            self.when_ended(error)
            raise
        with self._lock:
            self._held -= count
        leaving, self._leaving = self._leaving, set()
        for sender in leaving:
            self._forget(sender)

    def _refusal(self, source: str, digest: str) -> Exception | None:
        if self._stage is None:
            return ClosedError("the reducer", "is not started, or was stopped")
        if source in self._fenced:
            return PeerLostError(source, "was declared lost by a member")
        if digest != self._digest:
            return _AnotherModelError("they are of another model")
        return None

    def _refuse(self, reply: Future[bool], source: str, count: int, error: BaseException) -> None:
        self._tally.refused(count, source, error, late=isinstance(error, ClosedError))
        if isinstance(error, _AnotherModelError | UnknownTicketError):
            settle(reply, False)
        else:
            fail(reply, error)

    def _answer(
        self,
        reply: Future[bool],
        source: str,
        count: int,
        ids: Sequence[Id],
        queued: Future[None],
    ) -> None:
        if (error := queued.exception()) is not None:
            with self._lock:  # pushed again, it is not taken for one that was reduced
                self._seen[source].take_back(ids)
            self._refuse(reply, source, count, error)
            return
        with self._lock:
            self._held += count
        settle(reply, True)


def _done() -> Future[None]:
    done: Future[None] = Future()
    done.set_result(None)
    return done


class _AnotherModelError(ValueError):
    """The sender knows its model, and finds the difference."""
