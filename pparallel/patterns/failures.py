"""One failure, raised in several threads and members."""

from __future__ import annotations

import copy
import traceback

from pparallel.errors import ClosedError, RemoteError, is_consequence


def one_line(error: BaseException) -> str:
    """Return type and message of *error*."""
    return traceback.format_exception_only(error)[-1].strip()


def own_copy(error: BaseException, where: str) -> BaseException:
    """Return *error*, raised in *where*, as an exception that the caller can raise and change.

    It is of the same type where that can be copied, else a :class:`RemoteError`; the original is
    its cause. What would end an interpreter does not spread.
    """
    try:
        own: BaseException | None = copy.copy(error) if isinstance(error, Exception) else None
    except Exception:  # noqa: BLE001 - the user's exception may refuse in any way
        own = None
    if own is None or type(own) is not type(error) or own is error:
        own = _as_text(error, where)
    elif notes := getattr(error, "__notes__", None):
        own.__notes__ = list(notes)
    own.__cause__ = error.__cause__ if error.__traceback__ is None else error
    return own


def keepable(error: BaseException, where: str) -> BaseException:
    """Return a copy of *error* that may be kept for long.

    Its traceback and its cause are text: they would keep alive what their frames use, among which
    are the objects whose end is watched for.
    """
    own = own_copy(error, where)
    if is_consequence(own):
        own.__cause__ = ClosedError("the job", "is ending", consequence=True)
    elif own.__cause__ is not None:
        own.__cause__ = _as_text(own.__cause__, where)
    return own


def _as_text(error: BaseException, where: str) -> RemoteError:
    text = "".join(traceback.format_exception(error))
    kind = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
    return RemoteError(where, kind, one_line(error), text)
