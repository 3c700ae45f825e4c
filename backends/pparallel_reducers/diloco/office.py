"""The member that holds the coordinator: its own desk, and what it answers the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from typing_extensions import override

from pparallel.errors import ClosedError, PeerLostError
from pparallel.runtime.future import fail, settle
from pparallel.runtime.member import Member
from pparallel.runtime.rpc import Reply, Request, RpcGroup, Service
from pparallel_reducers.config import DilocoReducerConfig
from pparallel_reducers.diloco.coordinator import Coordinator
from pparallel_reducers.diloco.desks import ROUND, STATE, Desk, Given
from pparallel_reducers.diloco.outer import OuterState, same_bits
from pparallel_reducers.diloco.packing import Packed, unpacked
from pparallel_reducers.diloco.pieces import Draft, Piece, cut
from pparallel_reducers.diloco.rounds import Outcome, Part
from pparallel_reducers.diloco.weights import Weights
from pparallel_reducers.layout import Flats, Layout
from pparallel_reducers.tally import Tally


class Office(Desk):
    """Holds the coordinator of each run, from its start to the next.

    Attributes:
        services: what it answers the others.
        taken: the outer parameters that this member took last; None before the first run.
    """

    taken: OuterState | None = None

    def __init__(
        self,
        name: str,
        config: DilocoReducerConfig,
        member: Member,
        tally: Tally,
        group: RpcGroup,
    ) -> None:
        self._thread = f"{member.name}-{name}-coordinator"
        self._config = config
        self._member = member
        self._tally = tally
        self._group = group
        self._lock = threading.Lock()
        self._lost: set[str] = set()
        self._begun: Future[Reply] = Future()
        self._coordinator: Coordinator | None = None
        self._layout = Layout(())
        self._initial: Flats | None = None  # all tensors of the model, while a run begins
        self._adopted = False  # whether another member has begun to take them
        self._state: tuple[list[Piece], int] = ([], 0)
        self._published: tuple[list[Piece], int] = ([], -1)
        self._drafts: dict[str, Draft] = {}
        self._left = False
        self.services: dict[str, Service] = {
            "begin": lambda _: self._begun,
            "fetch": self._fetched,
            "piece": self._drafted,
            "hand in": self._handed_in,
        }

    # -- life ---------------------------------------------------------------------------------

    def start(self, layout: Layout, state: Flats, outer: OuterState) -> int:
        """Begin a run with the model of this member; return the version of its parameters.

        After a start that was interrupted, one with the same goes on with that run, in which other
        members may train already.

        Args:
            layout: of the model.
            state: all its tensors.
            outer: its parameters; its version counts only in the first run.

        Raises:
            RuntimeError: they are not those of the start that was interrupted, which other members
                have.
        """
        if self._begins_with(layout, state, outer):
            return self._state[1]
        if self._adopted:
            message = (
                "other members have begun with the model of a start() that was interrupted: call"
                " start() with that model as it was then, and change it after stop()"
            )
            raise RuntimeError(message)
        if (former := self._coordinator) is not None:
            former.end(ClosedError("the reducer", "was started again"))
            former.join()
            outer = outer._replace(version=max(outer.version, former.state.version + 1))
        with self._lock:
            members = [each for each in self._member.names if each not in self._lost]
            run = (self._thread, self._config, members, self._tally, outer)
            self._coordinator = Coordinator(*run)
        if self._begun.done():
            self._begun = Future()
        self._layout, self._initial = layout, state
        self._state = (cut(layout.state.buffers(state)), outer.version)
        self.taken = outer
        self._coordinator.start()
        settle(self._begun, Reply(layout.plain()))
        return outer.version

    def all_have_begun(self) -> None:
        """Forget what only the start needs."""
        self._initial, self._adopted, self._state = None, False, ([], 0)
        self._begun = Future()

    def lose(self, member: str, _: str = "") -> None:
        """Go on without *member*; never blocks."""
        with self._lock:
            self._lost.add(member)
            self._drafts.pop(member, None)
            coordinator = self._coordinator
        if coordinator is not None:
            coordinator.lose(member)

    def end(self, reason: BaseException) -> None:
        """Make no more steps, and tell *reason* to whoever waits; never blocks."""
        fail(self._begun, reason)
        if self._coordinator is not None:
            self._coordinator.end(reason)

    def close(self) -> None:
        """End for good."""
        self._left = True
        self.end(PeerLostError(self._member.name, "has left"))
        if self._coordinator is not None:
            self._coordinator.join()

    @property
    def error(self) -> BaseException | None:
        """What ended the coordinator's thread, if something did."""
        return None if self._coordinator is None else self._coordinator.error

    # -- what this member asks itself -----------------------------------------------------------

    @override
    def hand_in(self, given: Given) -> Outcome:
        weights = given.weights
        made = None if weights is None else lambda _: weights
        part = Part(self._member.name, given.version, given.steps, given.stops, made, given.fault)
        self._running().hand_in(part)
        return self._group.wait_for(part.outcome, ROUND)

    @override
    def weights(self, layout: Layout) -> tuple[Weights, int]:
        self.taken = self._running().state
        return self.taken.weights, self.taken.version

    # -- what others ask ------------------------------------------------------------------------

    def _fetched(self, asked: Request) -> Reply:
        what, index = asked.body
        self._adopted = self._adopted or what == STATE
        pieces, version = self._state if what == STATE else self._pieces()
        piece = pieces[index] if pieces else []
        self._tally.sent(sum(each.nbytes for each in piece))
        return Reply(version, piece)

    def _drafted(self, asked: Request) -> Reply:
        number, sizes, index = asked.body
        self._draft(asked.sender, number, sizes).take(index, asked.buffers)
        return Reply()

    def _handed_in(self, asked: Request) -> Future[Reply]:
        draft, version, steps, stops, fault = asked.body
        made = None if draft is None else self._made(asked.sender, *draft)
        part = Part(asked.sender, version, steps, stops, made, fault)
        reply: Future[Reply] = Future()
        part.outcome.add_done_callback(lambda ended: self._answer(reply, ended))
        self._running().hand_in(part)
        return reply

    def _answer(self, reply: Future[Reply], ended: Future[Outcome]) -> None:
        if (error := ended.exception()) is None:
            settle(reply, Reply(tuple(ended.result())))
        elif self._left and isinstance(error, ClosedError):
            fail(reply, PeerLostError(self._member.name, "has left"))
        else:
            fail(reply, error)

    # -- inside -----------------------------------------------------------------------------------

    def _begins_with(self, layout: Layout, state: Flats, outer: OuterState) -> bool:
        """Return whether a run begins with these, whose start() has not returned here."""
        if self._initial is None or self.taken is None or layout.plain() != self._layout.plain():
            return False
        former = (self._initial, self.taken.parameters, self.taken.momentum)
        return all(map(_same, former, (state, outer.parameters, outer.momentum)))

    def _made(
        self, sender: str, number: int, sizes: Sequence[int], body: object
    ) -> Callable[[Weights], Weights]:
        memory = self._draft(sender, number, sizes).whole()
        with self._lock:
            del self._drafts[sender]
        return unpacked(self._layout, Packed(body, memory))

    def _draft(self, sender: str, number: int, sizes: Sequence[int]) -> Draft:
        """Return the draft of that number, in which pieces may be that came before."""
        with self._lock:
            draft = self._drafts.get(sender)
            if draft is None or draft.number != number:
                draft = self._drafts[sender] = Draft(number, sizes)
            return draft

    def _pieces(self) -> tuple[list[Piece], int]:
        """Return the pieces of the outer parameters, cut once for each version."""
        state = self._running().state
        if self._published[1] != state.version:
            self._published = (cut(state.weights.memory(self._layout)), state.version)
        return self._published

    def _running(self) -> Coordinator:
        if self._coordinator is None:
            raise ClosedError("the reducer", "is not started, or was stopped")
        return self._coordinator


def _same(one: Flats, other: Flats) -> bool:
    return one.keys() == other.keys() and all(same_bits(one[each], other[each]) for each in one)
