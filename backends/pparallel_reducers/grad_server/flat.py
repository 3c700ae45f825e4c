"""The gradients and buffers of one share in flat memory: one member's, or the sum of several."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

from typing_extensions import Buffer, override

from pparallel.machine.cpus import affinity
from pparallel.runtime.rpc import RpcGroup
from pparallel.runtime.shm import writable
from pparallel_reducers.grad_server.image import Image, Key
from pparallel_reducers.gradients import averages

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
        self._views: list[list[tuple[str, Tensor]]] | None = None

    @classmethod
    def over(cls, image: Image, memory: Sequence[Buffer]) -> Flat:
        """Return what lies in *memory*, which arrived: its own, unless it is read-only.

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
        return cls(image, pieces, own=own, memory=views)

    @classmethod
    def all_over(cls, images: Sequence[Image], memory: Sequence[Buffer]) -> list[Flat]:
        """Return what lies in *memory*, which has the pieces of all *images*; as :meth:`over`."""
        found, at = [], 0
        for image in images:
            end = at + len(image.pieces)
            found.append(cls.over(image, memory[at:end]))
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

    def become_sum(self, terms: Sequence[Flat], count: int = 1, mean: bool = False) -> None:
        """Become the sum of *terms*, of which this may be one, and then the mean.

        Of what cannot be averaged, such as counters of batches, become the last of them.

        Args:
            terms: what is summed; read once, and what is written stays in the caches meanwhile.
            count: by how many the sum is divided.
            mean: whether the gradients are divided too, and not the buffers alone.
        """
        others = [each for each in terms if each is not self]
        mine_too = len(others) < len(terms)

        def add_up(index: int) -> None:
            for number, window in enumerate(self.image.windows[index]):
                out = self.pieces[index][number]
                if not window.sums:
                    out.copy_(terms[-1].pieces[index][number])
                    continue
                added = [each.pieces[index][number].to(out.device) for each in others]
                is_gradient, dtype = window.key
                divides = mean if is_gradient else averages(dtype)
                _add_up(out, [out, *added] if mine_too else added, count if divides else 1)

        _each(len(self.pieces), add_up)

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
        return self._views

    def release(self) -> None:
        """Let it be used again, if it came from where such are kept."""
        if self._home is not None:
            self._home.give(self)


def _add_up(out: Tensor, terms: Sequence[Tensor], count: int) -> None:
    """Have *out* become the mean of *terms*, of which it may be the first."""
    import torch

    first, *rest = terms
    if rest:
        torch.add(first, rest[0], out=out)
    elif first is not out:
        out.copy_(first)
    for each in rest[1:]:
        out.add_(each)
    if count & (count - 1):
        out.div_(count)
    elif count > 1:
        out.mul_(1 / count)  # as exact, and quicker


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
        try:
            return self._kept.pop()
        except IndexError:
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
