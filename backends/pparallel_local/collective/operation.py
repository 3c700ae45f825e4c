"""The operations of a collective between threads: each touches the tensors of all directly."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from types import EllipsisType
from typing import TYPE_CHECKING

from typing_extensions import override

from pparallel.interfaces.collective import Operation, ReduceOp, is_plain
from pparallel.runtime.collectives import check_fit, fill, finish
from pparallel_local.collective.rounds import Job, Layout, Plan

if TYPE_CHECKING:
    from torch import Tensor

    from pparallel.interfaces.collective import Collective
    from pparallel_local.collective.place import Place

#: Bytes that one job is worth: with fewer, what it costs to share them out shows.
BLOCK = 2**21

Where = slice | EllipsisType


class LocalOperation(Operation):
    """Lays out tensors in rounds, in which all members share the work.

    What is combined is computed once for all members, in the order of their positions: it is the
    same in all of them, and on each run.
    """

    def __init__(self, group: Collective, place: Place, tag: int, me: int, timeout: float) -> None:
        super().__init__(group, tag, place.ranks, me)
        self._place = place
        self._timeout = timeout
        self._steps = itertools.count()

    @override
    def broadcast(self, tensor: Tensor, root: int) -> None:
        def plan(layouts: Sequence[Layout]) -> list[Job]:
            tensors, blocks = _split([each.outputs[0] for each in layouts])
            source = tensors.pop(root)
            return [partial(_spread, block, source, tensors) for block in blocks]

        self._meet(f"broadcast from position {root}", Layout(outputs=[tensor]), plan)

    @override
    def all_reduce(self, tensor: Tensor, how: ReduceOp) -> None:
        def plan(layouts: Sequence[Layout]) -> list[Job]:
            tensors, blocks = _split([each.outputs[0] for each in layouts])
            return [partial(_combine, block, tensors, tensors, how) for block in blocks]

        self._meet(f"all_reduce by {how.name}", Layout(outputs=[tensor]), plan)

    @override
    def reduce(self, tensor: Tensor, root: int, how: ReduceOp) -> None:
        def plan(layouts: Sequence[Layout]) -> list[Job]:
            tensors, blocks = _split([each.outputs[0] for each in layouts])
            return [partial(_combine, block, tensors, [tensors[root]], how) for block in blocks]

        what = f"reduce by {how.name} to position {root}"
        self._meet(what, Layout(outputs=[tensor]), plan)

    @override
    def gather(self, tensor: Tensor, into: Sequence[Tensor] | None, root: int) -> None:
        def plan(layouts: Sequence[Layout]) -> list[Job]:
            return _fills(layouts[root].outputs, [each.inputs[0] for each in layouts])

        self._meet(f"gather to position {root}", Layout([tensor], into or ()), plan)

    @override
    def scatter(self, tensor: Tensor, parts: Sequence[Tensor] | None, root: int) -> None:
        def plan(layouts: Sequence[Layout]) -> list[Job]:
            return _fills([each.outputs[0] for each in layouts], layouts[root].inputs)

        self._meet(f"scatter from position {root}", Layout(parts or (), [tensor]), plan)

    @override
    def exchange(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
        def plan(layouts: Sequence[Layout]) -> list[Job]:
            targets = [output for each in layouts for output in each.outputs]
            sources = [each.inputs[to] for to in range(self.size) for each in layouts]
            return _fills(targets, sources)

        self._meet("an exchange", Layout(inputs, outputs), plan)

    @override
    def reduce_scatter(self, output: Tensor, inputs: Sequence[Tensor], how: ReduceOp) -> None:
        def plan(layouts: Sequence[Layout]) -> list[Job]:
            jobs: list[Job] = []
            for to, receiver in enumerate(layouts):
                tensors, blocks = _split(
                    [*receiver.outputs, *(each.inputs[to] for each in layouts)]
                )
                target = [tensors.pop(0)]
                jobs += [partial(_combine, block, tensors, target, how) for block in blocks]
            return _joined(jobs, output.nbytes)

        self._meet(f"reduce_scatter by {how.name}", Layout(inputs, [output]), plan)

    @override
    def barrier(self) -> None:
        self._meet("barrier", Layout(), lambda _: [])

    def _meet(self, what: str, layout: Layout, plan: Plan) -> None:
        finish(*layout.inputs, *layout.outputs)
        key, rank = (self.tag, next(self._steps)), self._place.ranks[self.me]
        self._place.meet(key, what, rank, layout, plan, self._timeout)


def _split(tensors: list[Tensor]) -> tuple[list[Tensor], list[Where]]:
    """Return views of the tensors, and the indices by which these fall into blocks."""
    for each in tensors:
        check_fit(tensors[0], each)
    if not all(map(is_plain, tensors)):
        return tensors, [...]
    step = max(1, BLOCK // tensors[0].itemsize)
    starts = range(0, max(1, tensors[0].numel()), step)
    return [each.view(-1) for each in tensors], [slice(at, at + step) for at in starts]


def _spread(block: Where, source: Tensor, targets: Sequence[Tensor]) -> None:
    for each in targets:
        each[block].copy_(source[block])


def _combine(
    block: Where, sources: Sequence[Tensor], targets: Sequence[Tensor], how: ReduceOp
) -> None:
    first = sources[0][block]
    total = first.new_empty(first.shape)
    how.combine([each[block].to(first.device) for each in sources], total)
    for each in targets:
        each[block].copy_(total)


def _fills(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> list[Job]:
    """Return jobs that copy each of *sources* into the target of the same place."""
    jobs: list[Job] = [partial(fill, *each) for each in zip(targets, sources, strict=True)]
    return _joined(jobs, max(each.nbytes for each in sources))


def _joined(jobs: list[Job], nbytes: int) -> list[Job]:
    """Return *jobs*; as a single one, if at *nbytes* each it is quicker done than shared."""
    return jobs if nbytes * len(jobs) > BLOCK else [lambda: [job() for job in jobs]]
