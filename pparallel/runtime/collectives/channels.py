"""Channels: what one member knows of one group: messages that came, receives that wait, the end."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pparallel.errors import is_consequence
from pparallel.runtime.collectives.matching import Message, Queues, Receive

#: Which group: () is that of all members; another is its parent's, with its ranks and a number.
GroupId = tuple[tuple[tuple[int, ...], int], ...]


class Failed(NamedTuple):
    """A receive to which nothing will come, and why."""

    receive: Receive
    error: BaseException


class Channel:
    """One group, as one member sees it; the mailbox's lock guards it.

    Args:
        ranks: the group's members.
        me: this member.

    Attributes:
        ended: what whoever uses it here is told, once this member has ended it.
        left: what whoever waits for these members is told.
    """

    def __init__(self, ranks: Sequence[int], me: int) -> None:
        self.ranks = ranks
        self.ended: BaseException | None = None
        self.left: dict[int, BaseException] = {}
        self._me = me
        self._came: Queues[Message] = Queues()
        self._waiting: Queues[Receive] = Queues()

    def check(self, needed: Sequence[int] = ()) -> None:
        """Raise what a use of the group is told, for which *needed* members must be there."""
        if self.ended is not None:
            raise copy.copy(self.ended)
        for rank in needed:
            if rank in self.left:
                raise copy.copy(self.left[rank])

    def come(self, message: Message, source: int, tag: int) -> Receive | None:
        """Take in what *source* sent; return the receive that waits for it, if one does."""
        if self.ended is not None:
            return None
        found = self._waiting.take(tag, (source, None))
        if found is not None:
            return found[1]
        self._came.add(tag, source, message)
        return None

    def want(self, receive: Receive) -> tuple[int, Message] | None:
        """Return source and message for *receive*, if it has come; else let it wait.

        Raises:
            PeerLostError: nothing can come any more.
        """
        self.check()
        found = self._came.take(receive.tag, self._sources(receive.source))
        if found is None:
            if (lost := self._lost(receive.source)) is not None:
                raise copy.copy(lost)
            self._waiting.add(receive.tag, receive.source, receive)
        return found

    def give_up(self, receive: Receive) -> bool:
        """Take *receive* out; return whether it was waiting."""
        return bool(self._waiting.remove(lambda _, each: each is receive))

    def end(self, reason: BaseException) -> list[Failed]:
        """End it for this member; the first reason counts."""
        if self.ended is None:
            self.ended = reason
        self._came = Queues()
        removed = self._waiting.remove(lambda *_: True)
        return [Failed(each, copy.copy(self.ended)) for each in removed]

    def lose(self, rank: int, error: BaseException) -> list[Failed]:
        """Note that *rank* has left, and will send nothing more; the first error counts."""
        if rank not in self.ranks or rank in self.left:
            return []
        self.left[rank] = error
        removed = self._waiting.remove(lambda source, _: self._lost(source) is not None)
        return [Failed(each, copy.copy(self._why(each.source))) for each in removed]

    def _sources(self, source: int | None) -> list[int]:
        return [each for each in self.ranks if each != self._me] if source is None else [source]

    def _lost(self, source: int | None) -> BaseException | None:
        """Return why nothing can come from *source*, or from anyone; ``None`` if it can."""
        return None if set(self._sources(source)) - self.left.keys() else self._why(source)

    def _why(self, source: int | None) -> BaseException:
        errors = [self.left[each] for each in self._sources(source)]
        return next((each for each in errors if not is_consequence(each)), errors[0])


def family(channels: dict[GroupId, Channel], parent: GroupId) -> Iterator[Channel]:
    """Yield the channel *parent* and those of all groups that were made of it."""
    for key, channel in channels.items():
        if key[: len(parent)] == parent:
            yield channel
