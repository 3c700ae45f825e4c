"""How a member reaches the coordinator: directly, or by asking the member that holds it."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple, Protocol

from typing_extensions import Buffer, override

from pparallel.runtime.rpc import Reply, RpcGroup
from pparallel_reducers.compression import CompressionConfig
from pparallel_reducers.diloco.packing import Packer
from pparallel_reducers.diloco.pieces import cut, fill, pipelined
from pparallel_reducers.diloco.rounds import Outcome
from pparallel_reducers.diloco.weights import Weights
from pparallel_reducers.layout import Flats, Layout
from pparallel_reducers.tally import Tally

STATE, WEIGHTS = "state", "weights"  #: what may be fetched
ROUND = "the end of a round"  #: what is waited for, in a log


class Given(NamedTuple):
    """What a member hands in.

    Attributes:
        outer: the outer parameters that it began with.
        version: of those.
        steps: how many it made since.
        stops: whether it makes no more.
        weights: what it has now; None if that has a fault, or if it made no steps.
        fault: why it has no weights, if it made steps, and what to do.
    """

    outer: Weights
    version: int
    steps: int
    stops: bool
    weights: Weights | None
    fault: str | None = None


class Desk(Protocol):
    """What a member asks of the coordinator."""

    @abstractmethod
    def hand_in(self, given: Given) -> Outcome:
        """Take part in a round, and wait until it is over; if the member stops, until all are."""

    @abstractmethod
    def weights(self, layout: Layout) -> tuple[Weights, int]:
        """Return the outer parameters and their version."""


class RemoteDesk(Desk):
    """Asks the member that holds the coordinator.

    Attributes:
        packer: packs what is handed in; None before the first run.
    """

    def __init__(
        self, group: RpcGroup, holder: str, tally: Tally, compression: CompressionConfig | None
    ) -> None:
        self._group = group
        self._holder = holder
        self._tally = tally
        self._compression = compression
        self._numbers = itertools.count()
        self.packer: Packer | None = None

    def begin(self) -> Layout:
        """Wait until the coordinator has begun; return the layout of the model there."""
        begun = self._group.wait_for(self._ask("begin"), f"the start() of {self._holder!r}")
        layout = Layout(begun.body)
        self.packer = Packer(layout, self._compression)
        return layout

    def state(self, layout: Layout) -> tuple[Flats, int]:
        """Return all tensors of the model that training begins with, and their version."""
        flats = layout.state.empty()
        return flats, self._fetch(STATE, layout.state.buffers(flats))

    @override
    def hand_in(self, given: Given) -> Outcome:
        draft = self._send(given)
        body = (draft, given.version, given.steps, given.stops, given.fault)
        over = self._group.wait_for(self._ask("hand in", body), ROUND)
        return Outcome(*over.body)

    @override
    def weights(self, layout: Layout) -> tuple[Weights, int]:
        empty = Weights(layout.gradients.empty(), layout.buffers.empty())
        return empty, self._fetch(WEIGHTS, empty.memory(layout))

    def _send(self, given: Given) -> tuple[int, list[int], object] | None:
        """Send the weights in pieces; return what names them there."""
        if given.weights is None or self.packer is None:
            return None
        number = next(self._numbers)
        body, memory = self.packer.pack(given.weights, given.outer)
        sizes = [memoryview(each).nbytes for each in memory]
        pieces = enumerate(cut(memory))
        sends = [
            partial(self._ask, "piece", (number, sizes, index), each) for index, each in pieces
        ]
        for _ in pipelined(sends):
            pass
        self._tally.sent(sum(sizes))
        return number, sizes, body

    def _fetch(self, what: str, memory: Sequence[Buffer]) -> int:
        """Fill *memory* with what is of one version, and return that."""
        places = cut(memory) or [[]]
        while True:
            asks = [partial(self._ask, "fetch", (what, index)) for index in range(len(places))]
            versions = set()
            for place, reply in zip(places, pipelined(asks), strict=True):
                fill(place, reply.buffers)
                versions.add(int(reply.body))
            if len(versions) == 1:
                return versions.pop()

    def _ask(self, key: str, body: object = None, buffers: Sequence[Buffer] = ()) -> Future[Reply]:
        return self._group.ask_async(self._holder, key, body, buffers)
