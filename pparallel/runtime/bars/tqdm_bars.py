"""Bars of tqdm, in a terminal or in a notebook."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from tqdm.utils import ObjectWrapper

from pparallel.interfaces.pool import Bar, MakeBar


def maker(kind: bool | str) -> MakeBar:
    """Return what makes tqdm's bars.

    Args:
        kind: ``tqdm`` or ``notebook``; ``True`` for whichever form suits.
    """
    base = _base(kind)

    class Tqdm(base):  # type: ignore[misc, valid-type]
        monitor_interval = 0  # a thread that draws bars which stand still: we have one

        def __del__(self) -> None:
            with contextlib.suppress(Exception):  # one that could not be made cannot be closed
                super().__del__()

    def widget(name: str, total: int | None) -> Bar:
        bar: Bar = Tqdm(total=total, desc=name, mininterval=0, miniters=1)
        return bar

    def line(name: str, total: int | None) -> Bar:
        return _Line(Tqdm, name, total)

    return widget if any(each.__module__ == "tqdm.notebook" for each in base.__mro__) else line


class _Line:
    """A bar in a terminal; one that is inside another makes way when it is done."""

    def __init__(self, tqdm: type[Any], name: str, total: int | None) -> None:
        if sys.stderr is None:
            message = "there is no stderr"
            raise OSError(message)
        self._terminal = _Terminal(sys.stderr)
        self._bar = tqdm(
            total=total,
            desc=name,
            leave=None,
            mininterval=0,
            miniters=1,
            file=self._terminal,
            dynamic_ncols=True,
        )

    def update(self, n: int, /) -> None:
        self._bar.update(n)
        self._terminal.check()

    def close(self) -> None:
        self._bar.close()
        self._terminal.check()


class _Terminal(ObjectWrapper):  # type: ignore[misc] # tqdm is untyped
    """A stream whose errors are kept for later: raised inside tqdm they leave its lock locked."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self.wrapper_setattr("error", None)

    def write(self, text: str) -> int:
        try:
            return int(self._wrapped.write(text))
        except Exception as error:  # noqa: BLE001 - raised by check
            self.wrapper_setattr("error", error)
            return 0

    def flush(self) -> None:
        try:
            self._wrapped.flush()
        except Exception as error:  # noqa: BLE001 - raised by check
            self.wrapper_setattr("error", error)

    def check(self) -> None:
        """Raise the error that was kept."""
        if self.error is not None:
            raise self.error


def _base(kind: bool | str) -> type[Any]:
    if kind == "tqdm":
        from tqdm import tqdm
    elif kind == "notebook":
        from tqdm.notebook import WARN_NOIPYW, IProgress, tqdm

        if IProgress is None:
            raise ImportError(WARN_NOIPYW)
    else:
        from tqdm.auto import tqdm
    found: type[Any] = tqdm
    return found
