"""The gradients and buffers of one share in flat memory: one member's, or the sum of several."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

from typing_extensions import Buffer, override

from pparallel.machine.cpus import affinity
from pparallel.runtime.memory import writable
from pparallel.runtime.rpc import RpcGroup
from pparallel_reducers.grad_server.image import Image, Key
from pparallel_reducers.gradients import references

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_MANY = 4  #: pieces from which on it is worth while to start a thread
_KEPT = 3  #: how many flats are kept to be used again


class Flat:
    """Flat tensors in the pieces of an image.

    Attributes:
        image: what lies where.
        pieces: the flat tensors in each piece.
        own: whether it may be changed.
        memory: the memory of each piece, on the CPU; none where it lies in one run.
        whole: the one run of bytes, if it lies in one.
        count: how many gradients were combined in it.
        references: how many tensors share that run while nobody else holds one; None where torch
            does not tell.
    """

    def __init__(
        self,
        image: Image,
        pieces: list[list[Tensor]],
        *,
        own: bool = True,
        memory: Sequence[memoryview] = (),
        whole: Tensor | None = None,
        home: Wholes | None = None,
    ) -> None:
        self.image, self.pieces, self.own = image, pieces, own
        self.memory, self.whole, self._home = memory, whole, home
        self.count = 1
        self._views: list[list[tuple[str, Tensor]]] | None = None
        self.references: int | None = None

    @classmethod
    def over(cls, image: Image, memory: Sequence[Buffer], count: int = 1) -> Flat:
        """Return what lies in *memory*, which arrived: its own, unless it is read-only.

        Args:
            image: where its tensors lie.
            memory: of each piece.
            count: how many gradients were combined in it.

        Raises:
            ValueError: its number or sizes are not the image's.
        """
        views = [memoryview(each).cast("B") for each in memory]
        if len(views) != len(image.pieces):
            message = f"{len(views)} pieces arrived, and should be {len(image.pieces)}"
            raise ValueError(message)
        own = not any(each.readonly for each in views)
        # Tensors cannot be read-only: that nobody writes to these is for *own* to say.
        usable = [writable(each) if each.readonly else each for each in views]
        pieces = [image.flats(index, each) for index, each in enumerate(usable)]
        flat = cls(image, pieces, own=own, memory=views)
        flat.count = count
        return flat

    @classmethod
    def all_over(
        cls, images: Sequence[Image], memory: Sequence[Buffer], count: int = 1
    ) -> list[Flat]:
        """Return what lies in *memory*, which has the pieces of all *images*; as :meth:`over`."""
        found, at = [], 0
        for image in images:
            end = at + len(image.pieces)
            found.append(cls.over(image, memory[at:end], count))
            at = end
        if at != len(memory):
            message = f"{len(memory)} pieces arrived, and should be {at}"
            raise ValueError(message)
        return found

    @classmethod
    def of(cls, image: Image, flats: Mapping[Key, Tensor]) -> Flat:
        """Return whole flat tensors, which are given away, as one."""
        left = dict(flats)
        pieces = []
        for windows in image.windows:
            pieces.append([left[each.key][: each.size] for each in windows])
            left.update({each.key: left[each.key][each.size :] for each in windows})
        return cls(image, pieces)

    def pack(self, tensor: Callable[[str], Tensor]) -> None:
        """Copy the tensors that *tensor* returns by name."""
        for index, flats in enumerate(self.pieces):
            self.image.fill(index, flats, tensor)

    def combine(self, terms: Sequence[Flat], *, mean: bool) -> None:
        """Become the mean of *terms*, of which this may be one, or their sum.

        Each term weighs as many gradients as were combined in it. Values are weighted before they
        are added, so that a mean of finite values is finite in two bytes too. Buffers become their
        mean always; of those that have none, such as counters of batches, the last one holds.

        Args:
            terms: read once, and what is written stays in the caches meanwhile.
            mean: whether gradients become their mean, and not their sum.
        """
        count = sum(each.count for each in terms)
        weights = [each.count / count for each in terms]

        def combine_piece(index: int) -> None:
            for number, window in enumerate(self.image.windows[index]):
                out = self.pieces[index][number]
                found = [
                    each.pieces[index][number].to(out.device) if each is not self else out
                    for each in terms
                ]
                is_gradient, _ = window.key
                if not window.sums:
                    found = found[-1:]
                weighted = window.sums and (mean or not is_gradient)
                _combine(out, found, weights if weighted else [1.0] * len(found))

        _each(len(self.pieces), combine_piece)
        self.count = count

    def views(self) -> list[list[tuple[str, Tensor]]]:
        """Return name and place of each gradient, and of each buffer, where it lies in one run."""
        if self._views is None:
            assert self.whole is not None
            flats: dict[bool, dict[torch.dtype, Tensor]] = {True: {}, False: {}}
            for (is_gradient, dtype), start, end in self.image.segments:
                flats[is_gradient][dtype] = self.whole[start:end].view(dtype)
            layout = self.image.layout
            self._views = [
                list(layout.gradients.views(flats[True])),
                list(layout.buffers.views(flats[False])),
            ]
            del flats
            self.references = references(self.whole)
        return self._views

    def is_kept(self) -> bool:
        """Return whether somebody, such as a hook, may still hold a gradient that lies in it."""
        assert self.whole is not None
        return self._views is not None and (
            self.references is None or references(self.whole) != self.references
        )

    def release(self) -> None:
        """Let its memory be used again, if it came from where such is kept."""
        self.count = 1
        if self._home is not None:
            self._home.give(self)


def _combine(out: Tensor, terms: Sequence[Tensor], weights: Sequence[float]) -> None:
    """Have *out* become the weighted sum of *terms*, of which it may be any one."""
    import torch

    order = sorted(range(len(terms)), key=lambda place: terms[place] is not out)
    first, *rest = order
    if weights[first] != 1:
        torch.mul(terms[first], weights[first], out=out)
    elif terms[first] is not out:
        out.copy_(terms[first])
    for place in rest:
        out.add_(terms[place], alpha=weights[place])


def _each(count: int, do: Callable[[int], None]) -> None:
    """Call *do* for each piece; where there are many a second thread takes every other one.

    While a batch is summed and stepped on, members wait for it, and cores are idle.
    """
    if count < _MANY or affinity() < 2:
        for index in range(count):
            do(index)
        return

    def do_from(first: int) -> None:
        for index in range(first, count, 2):
            do(index)

    with ThreadPoolExecutor(1, "reducer-second") as second:
        odd = second.submit(do_from, 1)
        do_from(0)
        odd.result()


class Source(Protocol):
    """Gives flats to sum in; what is in them is not said."""

    def take(self) -> Flat:
        """Return one."""


class Wholes(Source):
    """Flats that lie in one run of bytes on a device; those released are given again."""

    def __init__(self, image: Image, device: str) -> None:
        self._image, self._device = image, device
        self._kept: deque[Flat] = deque(maxlen=_KEPT)

    @override
    def take(self) -> Flat:
        for _ in range(len(self._kept)):
            flat = self._kept.pop()
            if not flat.is_kept():
                return flat
            self._kept.appendleft(flat)  # a hook holds a gradient, perhaps not for long
        return self._new()

    def give(self, flat: Flat) -> None:
        """Take back what :meth:`take` returned."""
        self._kept.append(flat)

    def _new(self) -> Flat:
        import torch

        image = self._image
        whole = torch.empty(image.nbytes, dtype=torch.uint8, device=self._device)
        pieces = [
            [
                whole[start + each.offset :][: each.size * each.key[1].itemsize].view(each.key[1])
                for each in windows
            ]
            for (start, _), windows in zip(image.pieces, image.windows, strict=True)
        ]
        return Flat(image, pieces, whole=whole, home=self)


class Sendables(Source):
    """Flats in memory that is not copied when it is sent, where members share memory."""

    def __init__(self, image: Image, group: RpcGroup) -> None:
        self._image, self._group = image, group

    @override
    def take(self) -> Flat:
        memory = [self._group.memory(end - start) for start, end in self._image.pieces]
        return Flat.over(self._image, memory)


def sendable(flat: Flat, group: RpcGroup) -> Iterator[memoryview]:
    """Yield the memory of each piece, which nobody changes any more, to be sent."""
    if flat.memory:
        for each in flat.memory:
            if flat.own:
                group.publish(each)
            yield each
        return
    for index, (start, end) in enumerate(flat.image.pieces):
        memory = group.memory(end - start)
        for mine, theirs in zip(flat.image.flats(index, memory), flat.pieces[index], strict=True):
            mine.copy_(theirs)
        group.publish(memory)
        yield memory
