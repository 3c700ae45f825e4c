"""The operations of a collective that torch's libraries carry out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._C import _distributed_c10d as c10d
from typing_extensions import override

from pparallel.interfaces.collective import Operation, ReduceOp, Work
from pparallel.runtime.collectives import check_fit
from pparallel_torch.collective.finishing import Finish, all_back, back, each_of
from pparallel_torch.collective.forms import lent, moved, roomy
from pparallel_torch.collective.works import NativeWork

if TYPE_CHECKING:
    from pparallel_torch.collective.native import NativeGroup, Started
    from pparallel_torch.collective.torch_collective import TorchCollective

Begin = Callable[[Any], "Started"]


class NativeOperation(Operation):
    """Hands tensors to a process group of torch's; what that cannot do goes over messages.

    What is begun by :meth:`start` is not waited for: torch carries it out in threads of its own.
    """

    def __init__(self, collective: TorchCollective, native: NativeGroup, tag: int) -> None:
        self.tag, self.me, self.size = tag, collective.position, collective.count
        self._group, self._ranks = collective, collective.ranks
        self._collective, self._native = collective, native
        self._starts = False
        self._then: Finish | None = None
        self._work: Work[None]

    @override
    def start(self, run: Callable[[Operation], None], then: Finish | None = None) -> Work[None]:
        self._starts, self._then = True, then
        run(self)
        return self._work

    # -- operations ---------------------------------------------------------------------------

    @override
    def broadcast(self, tensor: Tensor, root: int) -> None:
        self._accept(tensor)
        buffer = lent(tensor) if self.me == root else roomy(tensor)
        options = c10d.BroadcastOptions()
        options.rootRank = root
        given = [moved(buffer)]
        self._run("broadcast", lambda made: made.broadcast(given, options), back(buffer, tensor))

    @override
    def all_reduce(self, tensor: Tensor, how: ReduceOp) -> None:
        self._accept(tensor)
        found = self._collective.reductions.get((tensor.dtype, how))
        if found is None:
            self._over_messages(lambda each: each.all_reduce(tensor, how))
            return
        buffer = lent(tensor)
        how.divide(buffer, self.size)
        given, options = [found.seen(buffer)], found.options
        finish = back(buffer, tensor)
        self._run("all_reduce", lambda made: made.allreduce(given, options), finish)

    @override
    def all_reduce_coalesced(self, tensors: Sequence[Tensor], how: ReduceOp) -> None:
        self._accept(*tensors)
        known = self._collective.reductions
        if any((each.dtype, how) not in known for each in tensors):
            self._over_messages(lambda each: each.all_reduce_coalesced(tensors, how))
            return
        buffers = [lent(each) for each in tensors]
        alike: dict[torch.dtype, list[Tensor]] = {}
        for each in buffers:
            how.divide(each, self.size)
            alike.setdefault(each.dtype, []).append(each)
        begins = []
        for dtype, same in alike.items():
            found = known[dtype, how]
            options = c10d.AllreduceCoalescedOptions()
            options.reduceOp = found.op
            given = [found.seen(each) for each in same]
            begins.append(partial(_coalesced, given, options))
        self._run_all("all_reduce_coalesced", begins, all_back(buffers, tensors))

    @override
    def reduce(self, tensor: Tensor, root: int, how: ReduceOp) -> None:
        self._accept(tensor)
        found = self._collective.reductions.get((tensor.dtype, how))
        if found is None:
            self._over_messages(lambda each: each.reduce(tensor, root, how))
            return
        # Whoever is not the root has its tensor used for what is underway.
        buffer = lent(tensor) if self.me == root else lent(tensor).clone()
        how.divide(buffer, self.size)
        options = c10d.ReduceOptions()
        options.reduceOp, options.rootRank = found.op, root
        given = [found.seen(buffer)]
        finish = back(buffer, tensor) if self.me == root else None
        self._run("reduce", lambda made: made.reduce(given, options), finish)

    @override
    def all_gather(self, outputs: Sequence[Tensor], tensor: Tensor) -> None:
        self._accept(tensor, *outputs)
        check_fit(outputs[self.me], tensor)
        if any(each.shape != tensor.shape for each in outputs):  # the libraries take one shape
            self._over_messages(lambda each: each.all_gather(outputs, tensor))
            return
        rooms = _fitting(outputs, tensor)
        mine, into = [moved(lent(tensor))], [[moved(each) for each in rooms]]
        self._run("all_gather", lambda made: made.allgather(into, mine), all_back(rooms, outputs))

    @override
    def gather(self, tensor: Tensor, into: Sequence[Tensor] | None, root: int) -> None:
        self._accept(tensor, *(into or ()))
        rooms = _fitting(into or (), tensor)
        options = c10d.GatherOptions()
        options.rootRank = root
        mine = [moved(lent(tensor))]
        given = [] if into is None else [[moved(each) for each in rooms]]
        finish = all_back(rooms, into or ())
        self._run("gather", lambda made: made.gather(given, mine, options), finish)

    @override
    def scatter(self, tensor: Tensor, parts: Sequence[Tensor] | None, root: int) -> None:
        self._accept(tensor, *(parts or ()))
        _fitting(parts or (), tensor)
        options = c10d.ScatterOptions()
        options.rootRank = root
        room = roomy(tensor)
        mine = [moved(room)]
        given = [] if parts is None else [[moved(lent(each)) for each in parts]]
        self._run("scatter", lambda made: made.scatter(mine, given, options), back(room, tensor))

    @override
    def exchange(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
        self._accept(*outputs, *inputs)
        check_fit(outputs[self.me], inputs[self.me])
        self._exchange("all_to_all", outputs, inputs, None)

    @override
    def reduce_scatter(self, output: Tensor, inputs: Sequence[Tensor], how: ReduceOp) -> None:
        """Exchange, and combine in the order of positions, so that all is repeatable."""
        self._accept(output, *inputs)
        check_fit(output, inputs[self.me])
        parts = [output.new_empty(output.shape) for _ in inputs]

        def combine() -> None:
            how.combine(parts, parts[0])
            output.copy_(parts[0])

        self._exchange("reduce_scatter", parts, inputs, combine)

    @override
    def barrier(self) -> None:
        if self._collective.has_barrier:
            self._run("barrier", lambda made: made.barrier())
            return
        if not self._starts:
            self._native.settle()
        self._over_messages(lambda each: each.barrier())

    # -- inside -------------------------------------------------------------------------------

    def _exchange(
        self, what: str, outputs: Sequence[Tensor], inputs: Sequence[Tensor], then: Finish | None
    ) -> None:
        packed = torch.cat([lent(each).view(-1) for each in inputs])
        counts = [each.numel() for each in outputs]
        room = packed.new_empty(sum(counts))
        into, given = moved(room), moved(packed)
        size = room.itemsize // into.itemsize  # what is moved as bytes is counted as such
        taken, sent = ([each.numel() * size for each in several] for several in (outputs, inputs))

        def deal_out() -> None:
            for output, part in zip(outputs, room.split(counts), strict=True):
                output.copy_(part.view(output.shape))
            if then is not None:
                then()

        self._run(what, lambda made: made.alltoall_base(into, given, taken, sent), deal_out)

    def _accept(self, *tensors: Tensor) -> None:
        for each in tensors:
            if each.device.type != self._collective.device_type:
                self._collective.refuse(each)

    def _run(self, what: str, begin: Begin, finish: Finish | None = None) -> None:
        if self._starts:
            self._run_all(what, [begin], finish)
            return
        self._native.do(what, begin)
        if finish is not None:
            finish()

    def _run_all(self, what: str, begins: Sequence[Begin], finish: Finish | None) -> None:
        if self._starts:
            started = [self._native.begin(what, each) for each in begins]
            self._work = NativeWork(self._native, what, started, each_of([finish, self._then]))
            return
        for each in begins:
            self._native.do(what, each)
        if finish is not None:
            finish()

    def _over_messages(self, run: Callable[[Operation], None]) -> None:
        operation = Operation(self._collective, self.tag, self._ranks, self.me)
        if self._starts:
            self._work = Operation.start(operation, run, self._then)
        else:
            run(operation)


def _coalesced(tensors: list[Tensor], options: Any, made: Any) -> Started:
    return made.allreduce_coalesced(tensors, options)


def _fitting(tensors: Sequence[Tensor], tensor: Tensor) -> list[Tensor]:
    """Return room for *tensors*, all of which must be like *tensor*."""
    for each in tensors:
        check_fit(each, tensor)
    return [roomy(each) for each in tensors]
