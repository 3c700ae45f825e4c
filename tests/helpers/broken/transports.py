"""Broken transports."""

from __future__ import annotations

import itertools
import os
import threading
from collections import defaultdict, deque
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any, ClassVar

from typing_extensions import Buffer, override

import pparallel_local
from broken.harness import Backends, rejected_by
from pparallel.errors import ClosedError, RemoteError
from pparallel.interfaces.transport import Frames, Handler
from pparallel.plugin import Backend, hookimpl
from pparallel.runtime.pending import fail, settle
from pparallel.testing import TransportSuite
from pparallel_local import LocalTransportConfig
from pparallel_local.transport import LocalTransport

backends = Backends(LocalTransportConfig, pparallel_local)


@hookimpl
def pparallel_backends() -> Iterable[Backend]:
    return backends.records


def follow(future: Future[Frames], source: Future[Frames]) -> None:
    """Let *future* end as *source* does."""

    def ended(source: Future[Frames]) -> None:
        if error := source.exception():
            fail(future, error)
        else:
            settle(future, source.result())

    source.add_done_callback(ended)


class OneInSome(LocalTransport):
    """Does something else with one request in *some*."""

    some = 100

    def __init__(self, config: LocalTransportConfig, *, member: Any) -> None:
        super().__init__(config, member=member)
        self._numbers = itertools.count(1)

    @override
    def request(self, to: str, frames: Frames, timeout: float | None = None) -> Future[Frames]:
        if next(self._numbers) % self.some:
            return super().request(to, frames, timeout)
        future = self._pending.add(to, timeout)
        self.otherwise(self._opened().find(to), frames, future)
        return future

    def otherwise(self, peer: LocalTransport, frames: Frames, future: Future[Frames]) -> None:
        raise NotImplementedError


class DropsOneInAThousand(OneInSome):
    """Loses a request now and then; its caller hears nothing."""

    some = 1000

    @override
    def otherwise(self, peer: LocalTransport, frames: Frames, future: Future[Frames]) -> None:
        pass


@rejected_by("test_every_call_is_answered_once", "test_order")
class TestDropsOneInAThousand(TransportSuite):
    config = backends.config(DropsOneInAThousand)


class DeliversTwice(OneInSome):
    """Sends again what was not acknowledged in time, though it had arrived."""

    @override
    def otherwise(self, peer: LocalTransport, frames: Frames, future: Future[Frames]) -> None:
        for _ in range(2):
            peer.deliver(self.name, frames, future)


@rejected_by("test_each_request_is_handled_once")
class TestDeliversTwice(TransportSuite):
    config = backends.config(DeliversTwice)


class LosesAReply(OneInSome):
    """Has a reply overwritten by the next now and then."""

    @override
    def otherwise(self, peer: LocalTransport, frames: Frames, future: Future[Frames]) -> None:
        peer.deliver(self.name, frames, Future())


@rejected_by("test_every_call_is_answered_once", "test_each_request_is_handled_once")
class TestLosesAReply(TransportSuite):
    config = backends.config(LosesAReply)


class SwapsReplies(OneInSome):
    """Gives the reply to one request to the one before, and the other way round."""

    def __init__(self, config: LocalTransportConfig, *, member: Any) -> None:
        super().__init__(config, member=member)
        self._held: tuple[Future[Frames], Future[Frames]] | None = None

    @override
    def otherwise(self, peer: LocalTransport, frames: Frames, future: Future[Frames]) -> None:
        reply: Future[Frames] = Future()
        peer.deliver(self.name, frames, reply)
        if self._held is None:
            self._held = future, reply
        else:
            before, its_reply = self._held
            follow(before, reply)
            follow(future, its_reply)
            self._held = None


@rejected_by("test_every_call_is_answered_once", "test_each_request_is_handled_once")
class TestSwapsReplies(TransportSuite):
    config = backends.config(SwapsReplies)


class LosesWhatAnothersHandlerRaises(LocalTransport):
    """Lets an exception through only where it need not travel."""

    @override
    def deliver(self, sender: str, frames: Frames, future: Future[Frames]) -> None:
        reply: Future[Frames] = Future()
        if sender == self.name:
            reply = future
        else:
            reply.add_done_callback(
                lambda done: None if done.exception() else settle(future, done.result())
            )
        super().deliver(sender, frames, reply)


@rejected_by("test_a_handler_that_fails")
class TestLosesWhatAnothersHandlerRaises(TransportSuite):
    config = backends.config(LosesWhatAnothersHandlerRaises)


class CutsHugeFrames(LocalTransport):
    """Counts the bytes of what goes to another member in 26 bits."""

    @override
    def deliver(self, sender: str, frames: Frames, future: Future[Frames]) -> None:
        if sender != self.name:
            frames = [memoryview(each).cast("B")[: 2**26] for each in frames]
        super().deliver(sender, frames, future)


@rejected_by("test_huge_frames_arrive_as_sent")
class TestCutsHugeFrames(TransportSuite):
    config = backends.config(CutsHugeFrames)


class ForgetsOneAtClose(LocalTransport):
    """Ends all but the oldest of the requests that wait when it closes."""

    @override
    def close(self) -> None:
        if self._pending._waiting:
            del self._pending._waiting[next(iter(self._pending._waiting))]
        super().close()


@rejected_by("test_close_ends_what_waits")
class TestForgetsOneAtClose(TransportSuite):
    patience = 0.5
    config = backends.config(ForgetsOneAtClose)


class SwapsTwo(OneInSome):
    """Has a second way to a member, on which a request is overtaken by the next."""

    @override
    def otherwise(self, peer: LocalTransport, frames: Frames, future: Future[Frames]) -> None:
        threading.Timer(0.01, peer.deliver, args=(self.name, frames, future)).start()


@rejected_by("test_order")
class TestSwapsTwo(TransportSuite):
    config = backends.config(SwapsTwo)


class RepliesInOrder(LocalTransport):
    """Takes each reply for that to the oldest request: it sends no request ids."""

    def __init__(self, config: LocalTransportConfig, *, member: Any) -> None:
        super().__init__(config, member=member)
        self._asked: defaultdict[str, deque[Future[Frames]]] = defaultdict(deque)

    @override
    def request(self, to: str, frames: Frames, timeout: float | None = None) -> Future[Frames]:
        peer = self._opened().find(to)
        future = self._pending.add(to, timeout)
        asked = self._asked[to]
        asked.append(future)
        reply: Future[Frames] = Future()
        reply.add_done_callback(lambda done: follow(asked.popleft(), done))
        peer.deliver(self.name, frames, reply)
        return future


@rejected_by("test_each_reply_is_that_to_its_request", "test_every_call_is_answered_once")
class TestRepliesInOrder(TransportSuite):
    config = backends.config(RepliesInOrder)


class Memory(LocalTransport):
    """Does something with the memory of requests and replies."""

    def passed_on(self, frames: Frames) -> list[Buffer]:
        raise NotImplementedError

    def passed_back(self, frames: Frames) -> list[Buffer]:
        return self.passed_on(frames)

    @override
    def open(self, handler: Handler) -> None:
        self._handler = handler
        super().open(handler)

    @override
    def deliver(self, sender: str, frames: Frames, future: Future[Frames]) -> None:
        reply = self._handler(sender, self.passed_on(frames))
        if not isinstance(reply, Future):
            settle(future, self.passed_back(reply))
            return

        def replied(source: Future[Frames]) -> None:
            if error := source.exception():
                fail(future, RemoteError(self.name, type(error).__name__, str(error), ""))
            else:
                settle(future, self.passed_back(source.result()))

        reply.add_done_callback(replied)


def own(frames: Frames) -> list[Buffer]:
    return [bytearray(each) for each in frames]


class PassesTheSendersMemory(Memory):
    """Saves the copy of a request."""

    @override
    def passed_on(self, frames: Frames) -> list[Buffer]:
        return list(frames)

    @override
    def passed_back(self, frames: Frames) -> list[Buffer]:
        return own(frames)


@rejected_by("test_what_arrives_is_the_receivers_own", "test_tensors_are_the_receivers_own")
class TestPassesTheSendersMemory(TransportSuite):
    config = backends.config(PassesTheSendersMemory)


class PassesTheRepliersMemory(Memory):
    """Saves the copy of a reply."""

    @override
    def passed_on(self, frames: Frames) -> list[Buffer]:
        return own(frames)

    @override
    def passed_back(self, frames: Frames) -> list[Buffer]:
        return list(frames)


@rejected_by("test_what_arrives_is_the_receivers_own", "test_tensors_are_the_receivers_own")
class TestPassesTheRepliersMemory(TransportSuite):
    config = backends.config(PassesTheRepliersMemory)


class PassesReadOnlyMemory(Memory):
    """Hands out what it received as it lies there."""

    @override
    def passed_on(self, frames: Frames) -> list[Buffer]:
        return [bytes(each) for each in frames]


@rejected_by("test_what_arrives_is_the_receivers_own")
class TestPassesReadOnlyMemory(TransportSuite):
    config = backends.config(PassesReadOnlyMemory)


class SharesEqualMemory(Memory):
    """Keeps one copy of equal frames, for all who receive them."""

    copies: ClassVar[dict[bytes, bytearray]] = {}

    @override
    def passed_on(self, frames: Frames) -> list[Buffer]:
        return [
            self.copies.setdefault(bytes(each), bytearray(each))
            if memoryview(each).nbytes > 1000
            else bytearray(each)
            for each in frames
        ]


@rejected_by("test_what_arrives_is_the_receivers_own", "test_tensors_are_the_receivers_own")
class TestSharesEqualMemory(TransportSuite):
    config = backends.config(SharesEqualMemory)


class ReusesMemory(Memory):
    """Receives large frames into an arena of a few places, taken in turn."""

    places: ClassVar[defaultdict[tuple[str, int], deque[bytearray]]] = defaultdict(deque)

    @override
    def passed_on(self, frames: Frames) -> list[Buffer]:
        return [self._placed(memoryview(each)) for each in frames]

    def _placed(self, frame: memoryview) -> bytearray:
        free = self.places[self.name, frame.nbytes]
        if frame.nbytes < 100_000 or len(free) < 3:
            copy = bytearray(frame)
        else:
            copy = free.popleft()
            copy[:] = frame
        free.append(copy)
        return copy


@rejected_by("test_what_arrives_is_the_receivers_own")
class TestReusesMemory(TransportSuite):
    config = backends.config(ReusesMemory)


class DropsEmptyFrames(Memory):
    """Sends what there is to send."""

    @override
    def passed_on(self, frames: Frames) -> list[Buffer]:
        return [bytearray(each) for each in frames if memoryview(each).nbytes]


@rejected_by("test_frames_arrive_as_sent", "test_what_arrives_is_the_receivers_own")
class TestDropsEmptyFrames(TransportSuite):
    config = backends.config(DropsEmptyFrames)


class IgnoresTimeouts(LocalTransport):
    """Waits as long as it takes."""

    @override
    def request(self, to: str, frames: Frames, timeout: float | None = None) -> Future[Frames]:
        return super().request(to, frames)

    @override
    def call(self, to: str, frames: Frames, timeout: float | None = None) -> Frames:
        return super().call(to, frames)


@rejected_by("test_timeout", "test_a_late_reply_is_dropped")
class TestIgnoresTimeouts(TransportSuite):
    config = backends.config(IgnoresTimeouts)


class ReportsNobodyLost(LocalTransport):
    """Fails what waits for a member that left, and leaves it at that."""

    @override
    def peer_left(self, name: str) -> None:
        self._pending.lose(name, "has left")


@rejected_by("test_a_member_that_leaves", "test_names_of_a_member_that_leaves")
class TestReportsNobodyLost(TransportSuite):
    config = backends.config(ReportsNobodyLost)


class ReportsTwice(LocalTransport):
    """Sees the end of a member in two ways."""

    @override
    def peer_left(self, name: str) -> None:
        super().peer_left(name)
        self.lost(name, "does not answer")


@rejected_by("test_a_member_that_leaves")
class TestReportsTwice(TransportSuite):
    config = backends.config(ReportsTwice)


class ForgetsWhatWaitsForTheLost(LocalTransport):
    """Reports a member that left; what waits for it goes on until its time-out."""

    @override
    def peer_left(self, name: str) -> None:
        self.lost(name, "has left")


@rejected_by("test_a_member_that_leaves")
class TestForgetsWhatWaitsForTheLost(TransportSuite):
    config = backends.config(ForgetsWhatWaitsForTheLost)


class NamesAllMembers(LocalTransport):
    """Takes the configured members for those that are connected."""

    @override
    def members(self) -> list[str]:
        self._opened()
        return list(self._member.names)


@rejected_by("test_a_member_that_leaves")
class TestNamesAllMembers(TransportSuite):
    config = backends.config(NamesAllMembers)


class NamesOnlyOthers(LocalTransport):
    """Counts its connections."""

    @override
    def members(self) -> list[str]:
        return [name for name in super().members() if name != self.name]


@rejected_by("test_use_before_and_after", "test_a_member_that_leaves")
class TestNamesOnlyOthers(TransportSuite):
    config = backends.config(NamesOnlyOthers)


class CloseLeavesRequestsWaiting(LocalTransport):
    """Disconnects, and no more."""

    @override
    def close(self) -> None:
        self.closed = True
        if self._hub is not None:
            self._hub.leave(self)


@rejected_by("test_close_ends_what_waits", "test_nothing_waits_after_the_end")
class TestCloseLeavesRequestsWaiting(TransportSuite):
    patience = 0.5
    config = backends.config(CloseLeavesRequestsWaiting)


class ClosesOnce(LocalTransport):
    """Minds being closed again."""

    @override
    def close(self) -> None:
        if self.closed:
            raise ClosedError(f"transport of {self.name!r}")
        super().close()


@rejected_by("test_use_before_and_after")
class TestClosesOnce(TransportSuite):
    config = backends.config(ClosesOnce)


class IsForOneThread(LocalTransport):
    """Puts frames together in a place that all threads use."""

    _out: Frames = ()

    @override
    def request(self, to: str, frames: Frames, timeout: float | None = None) -> Future[Frames]:
        self._out = frames
        threading.Event().wait(0.0002)  # another thread runs, as it may at any time
        return super().request(to, self._out, timeout)


@rejected_by("test_many_threads")
class TestIsForOneThread(TransportSuite):
    config = backends.config(IsForOneThread)


class BlocksTheSender(LocalTransport):
    """Returns a future that is always done."""

    @override
    def request(self, to: str, frames: Frames, timeout: float | None = None) -> Future[Frames]:
        future = super().request(to, frames, timeout)
        future.exception()
        return future


@rejected_by("test_a_request_does_not_wait_for_its_reply")
class TestBlocksTheSender(TransportSuite):
    config = backends.config(BlocksTheSender)


class ServesOneAtATime(LocalTransport):
    """Answers each request before it takes the next."""

    def __init__(self, config: LocalTransportConfig, *, member: Any) -> None:
        super().__init__(config, member=member)
        self._serving = threading.Lock()

    @override
    def deliver(self, sender: str, frames: Frames, future: Future[Frames]) -> None:
        threading.Thread(target=self._serve, args=(sender, frames, future), daemon=True).start()

    def _serve(self, sender: str, frames: Frames, future: Future[Frames]) -> None:
        with self._serving:
            super().deliver(sender, frames, future)
            future.exception()


@rejected_by("test_a_request_does_not_wait_for_its_reply")
class TestServesOneAtATime(TransportSuite):
    config = backends.config(ServesOneAtATime)


class LosesWhatTheHandlerRaises(LocalTransport):
    """Answers when there is something to answer."""

    @override
    def deliver(self, sender: str, frames: Frames, future: Future[Frames]) -> None:
        reply: Future[Frames] = Future()
        reply.add_done_callback(
            lambda done: None if done.exception() else settle(future, done.result())
        )
        super().deliver(sender, frames, reply)


@rejected_by("test_a_handler_that_fails")
class TestLosesWhatTheHandlerRaises(TransportSuite):
    config = backends.config(LosesWhatTheHandlerRaises)


class LeaksADescriptor(LocalTransport):
    """Opens something for each request."""

    @override
    def request(self, to: str, frames: Frames, timeout: float | None = None) -> Future[Frames]:
        os.open(os.devnull, os.O_RDONLY)
        return super().request(to, frames, timeout)


@rejected_by("test_a_handler_that_fails")
class TestLeaksADescriptor(TransportSuite):
    patience = 0.5
    config = backends.config(LeaksADescriptor)


class LeaksAThread(LocalTransport):
    """Has a timer for each request, and does not cancel it when the reply is there."""

    @override
    def request(self, to: str, frames: Frames, timeout: float | None = None) -> Future[Frames]:
        future = super().request(to, frames, timeout)
        timer = threading.Timer(60.0, fail, args=(future, TimeoutError()))
        timer.daemon = True
        timer.start()
        return future


@rejected_by("test_a_handler_that_fails")
class TestLeaksAThread(TransportSuite):
    patience = 0.5
    config = backends.config(LeaksAThread)
