"""The operations of a group through shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from typing_extensions import override

from pparallel.interfaces.collective import Operation, ReduceOp
from pparallel_shm import misfits
from pparallel_shm.copies import lay_out, take
from pparallel_shm.intents import Intent
from pparallel_shm.pieces import fill_from, room_for, run_of
from pparallel_shm.reducing import reduce, reduce_scatter

if TYPE_CHECKING:
    from torch import Tensor

    from pparallel.interfaces.collective.messages import Messages
    from pparallel_shm.place import Place


class Strand:
    """The elements of a run, which go through a part of a slot, as much as it holds in each round.

    Args:
        run: the elements.
        slot: whose slot.
        start: at which byte of it.
        room: how many bytes of it.

    Attributes:
        slot: whose slot.
        nbytes: of all elements.
    """

    def __init__(self, run: Tensor, slot: int, start: int, room: int) -> None:
        self._run, self.slot, self.nbytes = run, slot, run.nbytes
        self._address, self._start, self._room = run.data_ptr(), start, room

    @property
    def rounds(self) -> int:
        """How many rounds it takes."""
        return -(-self.nbytes // self._room)

    def write(self, number: int, slot: int) -> None:
        """Copy what belongs to the round of that number into the slot at an address."""
        first = number * self._room
        if (left := self.nbytes - first) > 0:
            lay_out(slot + self._start, self._address + first, min(self._room, left))

    def read(self, number: int, slot: int) -> None:
        """Copy what belongs to the round of that number out of the slot at an address."""
        first = number * self._room
        if (left := self.nbytes - first) > 0:
            nbytes = min(self._room, left)
            take(self._address + first, slot + self._start, nbytes, self.nbytes)


class ShmOperation(Operation):
    """Lays tensors out in slots that all members see, in rounds.

    What is combined is combined in the order of positions, and is the same in all members.
    """

    def __init__(self, group: Messages, place: Place, tag: int) -> None:
        super().__init__(group, tag, place.ranks, place.me)
        self._place, self._agreement = place, place.agreement

    @override
    def broadcast(self, tensor: Tensor, root: int) -> None:
        intent = self._intent(f"broadcast from rank {self._ranks[root]}", [tensor])
        with self._agreement.on(intent):
            if self.me == root:
                self._move([self._whole(run_of(tensor), root)], [])
            else:
                run = room_for(tensor)
                self._move([], [self._whole(run, root)])
                fill_from([tensor], [run])

    @override
    def all_reduce(self, tensor: Tensor, how: ReduceOp) -> None:
        self._reduce(self._intent(f"all_reduce by {how.name}", [tensor]), [tensor], how)

    @override
    def all_reduce_coalesced(self, tensors: Sequence[Tensor], how: ReduceOp) -> None:
        intent = self._intent(f"all_reduce_coalesced by {how.name}", tensors)
        self._reduce(intent, tensors, how)

    @override
    def reduce(self, tensor: Tensor, root: int, how: ReduceOp) -> None:
        intent = self._intent(f"reduce by {how.name} to rank {self._ranks[root]}", [tensor])
        self._reduce(intent, [tensor], how, takes=self.me == root)

    @override
    def reduce_scatter(self, output: Tensor, inputs: Sequence[Tensor], how: ReduceOp) -> None:
        refuse_others([output])
        intent = self._intent(f"reduce_scatter by {how.name}", inputs)
        with self._agreement.on(misfits.own(intent, output, inputs[self.me], self.me)):
            run = room_for(output)
            reduce_scatter(self._place, [run_of(each) for each in inputs], run, how)
            fill_from([output], [run])

    @override
    def all_gather(self, outputs: Sequence[Tensor], tensor: Tensor) -> None:
        refuse_others([tensor])
        intent = self._intent("all_gather", outputs)
        with self._agreement.on(misfits.own(intent, outputs[self.me], tensor, self.me)):
            runs = [room_for(each) for each in outputs]
            self._move(
                [self._whole(run_of(tensor), self.me)],
                # Its own too, and first: that slot is in the caches.
                [self._whole(runs[each], each) for each in (self.me, *self._others())],
            )
            fill_from(outputs, runs)

    @override
    def gather(self, tensor: Tensor, into: Sequence[Tensor] | None, root: int) -> None:
        given = [tensor] if into is None else into
        refuse_others([tensor, *given])
        intent = self._intent(f"gather to rank {self._ranks[root]}")
        if into is not None:
            intent = misfits.own(intent, into[root], tensor, self.me)
        with self._agreement.on(intent):
            like = self._place.intents.like
            self._agreement.lay_out(misfits.to_one(self.me, root, given, self.size, like))
            if into is None:
                self._move([self._whole(run_of(tensor), self.me)], [])
                return
            runs = [room_for(each) for each in into]
            self._move([], [self._whole(runs[each], each) for each in self._others()])
            runs[root].copy_(tensor.reshape(-1))
            fill_from(into, runs)

    @override
    def scatter(self, tensor: Tensor, parts: Sequence[Tensor] | None, root: int) -> None:
        given = [tensor] if parts is None else parts
        refuse_others([tensor, *given])
        intent = self._intent(f"scatter from rank {self._ranks[root]}")
        if parts is not None:
            intent = misfits.own(intent, tensor, parts[root], self.me)
        with self._agreement.on(intent):
            like = self._place.intents.like
            self._agreement.lay_out(misfits.from_one(self.me, root, given, self.size, like))
            if parts is None:
                run = room_for(tensor)
                self._move([], [self._whole(run, self.me)])
                fill_from([tensor], [run])
                return
            # Each part through its receiver's slot, so that all take as few rounds as one.
            self._move([self._whole(run_of(parts[each]), each) for each in self._others()], [])
            tensor.copy_(parts[root])

    @override
    def exchange(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
        refuse_others([*outputs, *inputs])
        intent = misfits.own(self._intent("all_to_all"), outputs[self.me], inputs[self.me], self.me)
        with self._agreement.on(intent):
            like = self._place.intents.like
            self._agreement.lay_out(misfits.to_each(self.me, inputs, outputs, like))
            runs, sources = [room_for(each) for each in outputs], list(map(run_of, inputs))
            self._move(
                [self._part(sources[each], self.me, each) for each in self._others()],
                [self._part(runs[each], each, self.me) for each in self._others()],
            )
            runs[self.me].copy_(sources[self.me])
            fill_from(outputs, runs)

    @override
    def barrier(self) -> None:
        with self._agreement.on(self._intent("barrier")):
            self._agreement.meet()

    def _intent(self, operation: str, tensors: Sequence[Tensor] = ()) -> Intent:
        refuse_others(tensors)
        return self._place.intents.of(operation, tensors)

    def _reduce(
        self, intent: Intent, tensors: Sequence[Tensor], how: ReduceOp, *, takes: bool = True
    ) -> None:
        with self._agreement.on(intent):
            runs = [run_of(each) for each in tensors]
            reduce(self._place, intent, runs, how, takes)
            if takes:
                fill_from(tensors, runs)

    def _whole(self, run: Tensor, slot: int) -> Strand:
        return Strand(run, slot, 0, self._place.memory.plan.slot)

    def _part(self, run: Tensor, slot: int, part: int) -> Strand:
        room = self._place.memory.plan.slot // self.size
        return Strand(run, slot, part * room, room)

    def _move(self, given: Sequence[Strand], taken: Sequence[Strand]) -> None:
        """Write and read strands until all members have read theirs."""
        agreement, addresses = self._agreement, self._place.memory.addresses
        strands = [*given, *taken]
        self._place.make_ready(max([each.nbytes for each in strands], default=0))
        agreement.need(max([each.rounds for each in strands], default=1))
        number, needed = 0, 1
        while number < needed:
            parity = agreement.parity
            for each in given:
                each.write(number, addresses[each.slot][parity])
            agreement.meet()
            for each in taken:
                each.read(number, addresses[each.slot][parity])
            number += 1
            needed = needed if number > 1 else agreement.needed


def refuse_others(tensors: Sequence[Tensor]) -> None:
    """Refuse tensors that are not in the machine's memory.

    Raises:
        ValueError: one is on a GPU.
    """
    for each in tensors:
        if not each.is_cpu:
            raise ValueError(
                f"the collective 'shm' takes CPU tensors, not one on {each.device}:"
                " choose the collective 'nccl', or move it with .cpu()"
            )
