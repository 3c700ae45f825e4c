"""The lifetime that built objects share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Self


class Resource(ABC):
    """Something that is opened once, used, and closed once.

    ``__init__`` acquires nothing. Entering with ``with`` opens, leaving closes, in whatever thread
    or task; parts that were built for this resource alone are opened before it and closed after it.
    """

    _make_scope: Callable[[], AbstractContextManager[object]] | None = None
    _scope: AbstractContextManager[object] | None = None  # the one that was entered

    @property
    def hosting(self) -> bool:
        """Whether other members call this one; hosts close after their clients."""
        return False

    @abstractmethod
    def open(self) -> None:
        """Acquire sockets, threads and processes."""

    @abstractmethod
    def close(self) -> None:
        """Release what :meth:`open` acquired; safe to call again."""

    def depart(self) -> None:  # noqa: B027 - most have nobody to tell
        """Tell the others that this member is done, before it waits for them to be; never waits."""

    def release(self, error: BaseException | None) -> None:
        """Close at the end of ``with``, which *error* left if it is not None."""
        self.close()

    def opens_within(self, scope: Callable[[], AbstractContextManager[object]]) -> None:
        """Have what *scope* returns entered before this opens and left after it closes.

        Set by the builder; a second scope is refused as it is entered.
        """
        self._make_scope = scope

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            scope = None if self._make_scope is None else self._make_scope()
            if scope is not None:
                undo.enter_context(scope)
            self.open()
            self._scope = scope
            undo.pop_all()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        with ExitStack() as after:
            if self._scope is not None:
                after.push(self._scope)
            self.release(exc)
