"""Log records and warnings of a worker, handed on to its parent.

In the worker a handler on the root logger, and ``warnings.showwarning``, turn them into messages of
plain data; the parent gives each to the logger, or the filters, that its own would meet. The
worker takes over the parent's levels and filters, so that what nobody wants to see costs no
message. Handlers that the worker's own code adds work beside it.
"""

from __future__ import annotations

import logging
import marshal
import operator
import os
import re
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable
from types import ModuleType
from typing import Any, TextIO

from typing_extensions import override

from pparallel.runtime.pools.log_values import plain

logger = logging.getLogger(__name__)

LONGEST_MESSAGE = 48_000  #: bytes; message, traceback and stack of one record fit, cut
MOST_KEPT = 1_000  #: messages that a worker keeps while its channel is full

_REBUILT = {"args", "asctime", "exc_info", "message", "processName", "relativeCreated"}
_OWN = set(vars(logging.makeLogRecord({})))


def settings() -> bytes:
    """Return what :func:`install` needs: this process's log levels and warning filters."""
    known = [*logging.root.manager.loggerDict.items(), ("", logging.root)]
    levels = {
        name: each.level for name, each in known if isinstance(each, logging.Logger) and each.level
    }
    filters = [
        (action, _pattern(message), _names(kind)[0], _pattern(module), line)
        for action, message, category, module, line in warnings.filters
        for kind in (category if isinstance(category, tuple) else (category,))
    ]
    return marshal.dumps((levels, logging.root.manager.disable, filters))


def install(settings: bytes, worker: str, send: Callable[[bytes], bool]) -> Forwarder:
    """Hand on what this process, a worker, logs and warns of from now on.

    Handlers that it has already, because it is a fork of its parent, are the parent's: they are
    taken off.

    Args:
        settings: what the parent's :func:`settings` returned.
        worker: the worker's name.
        send: sends a message to the parent, or returns False when that would have to wait. It may
            log; it is called by one thread at a time.
    """
    levels, disabled, filters = marshal.loads(settings)
    forwarder = Forwarder(worker, send)
    for each in [*logging.root.manager.loggerDict.values(), logging.root]:
        if isinstance(each, logging.Logger):
            each.handlers.clear()
            each.propagate = True
    logging.root.addHandler(forwarder)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    logging.disable(disabled)
    _install_filters(filters)
    warnings.showwarning = forwarder.showwarning
    return forwarder


def replay(message: bytes, worker: str) -> str:
    """Log, or warn of, what *worker* did, and return it as one line; raises no ``Exception``."""
    kind, fields = marshal.loads(message)
    if kind == "warning":
        return _replay_warning(worker, **fields)
    line = _line(fields["levelname"], fields["name"], str(fields["msg"]))
    try:
        _log(worker, fields)
    except Exception:  # noqa: BLE001 - the user's filters and handlers may raise anything
        lost = logging.LogRecord(str(fields["name"]), 0, "", 0, fields["msg"], (), None)
        logging.Handler().handleError(lost)
    return line


class Forwarder(logging.Handler):
    """Sends the records and warnings of a worker, in their order.

    It never waits: what the channel has no room for is kept, and sent with what comes later, or
    when :meth:`flush` is called; what is too much is counted, and the count is logged.
    """

    def __init__(self, worker: str, send: Callable[[bytes], bool]) -> None:
        super().__init__()
        self._worker = worker
        self._send = send
        self._pid = os.getpid()
        self._kept: deque[bytes] = deque()
        self._dropped = 0
        self._counting = threading.RLock()  # a finalizer may log while its thread counts
        self._sending = threading.Lock()

    @override
    def createLock(self) -> None:
        # Sending may log, in this thread or, under a lock that it waits for, in another one.
        self.lock = None

    @override
    def handle(self, record: logging.LogRecord) -> bool:
        if wanted := bool(self.filter(record)):
            self.emit(record)
        return wanted

    @override
    def emit(self, record: logging.LogRecord) -> None:
        try:
            if os.getpid() == self._pid:
                self._hand_on(_of_record(record))
            elif (last := logging.lastResort) and record.levelno >= last.level:
                last.handle(record)  # a fork of the worker: the channel is not its own
        except Exception:  # noqa: BLE001 - arguments that do not fit the message, for one
            self.handleError(record)

    def showwarning(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        """Do what ``warnings.showwarning`` does, in the parent."""
        if file is not None or os.getpid() != self._pid:
            text = warnings.formatwarning(message, category, filename, lineno, line)
            (sys.stderr if file is None else file).write(text)
            return
        fields = {
            "text": plain(str(message)),
            "category": _names(category),
            "filename": filename,
            "lineno": lineno,
            "module": _module_of(filename),
        }
        self._hand_on(marshal.dumps(("warning", fields)))

    @override
    def flush(self) -> None:
        """Send what is kept, as far as the channel takes it."""
        # Asked again after each release: another thread may have come in vain meanwhile.
        while self._kept and self._sending.acquire(blocking=False):
            try:
                while self._kept:
                    if not self._send(self._kept[0]):
                        return
                    self._kept.popleft()
                self._tell_what_was_dropped()
            finally:
                self._sending.release()

    def _hand_on(self, message: bytes) -> None:
        if len(self._kept) >= MOST_KEPT:
            with self._counting:
                self._dropped += 1
        else:
            self._kept.append(message)
        self.flush()

    def _tell_what_was_dropped(self) -> None:
        with self._counting:
            dropped, self._dropped = self._dropped, 0
        if dropped:
            text = "%d log records and warnings of %s were dropped: there were too many at once"
            about = (logging.WARNING, __file__, 0, text, (dropped, self._worker), None)
            self._kept.append(_of_record(logging.LogRecord(__name__, *about)))


def _of_record(record: logging.LogRecord) -> bytes:
    fields = {name: plain(each) for name, each in vars(record).items() if name not in _REBUILT}
    fields["msg"] = plain(record.getMessage())
    if record.exc_info and not record.exc_text:
        fields["exc_text"] = plain(logging.Formatter().formatException(record.exc_info))
    message = marshal.dumps(("record", fields))
    if len(message) > LONGEST_MESSAGE:
        own = {name: each for name, each in fields.items() if name in _OWN}
        message = marshal.dumps(("record", own))
    return message


def _log(worker: str, fields: dict[str, Any]) -> None:
    record = logging.makeLogRecord({"processName": worker})
    before = record.created - fields["created"]
    vars(record).update(fields, relativeCreated=record.relativeCreated - before * 1000)
    target = logging.getLogger(record.name)
    if target.isEnabledFor(record.levelno):
        target.handle(record)


def _replay_warning(
    worker: str, *, text: str, category: list[str], filename: str, lineno: int, module: str
) -> str:
    kind = next((found for found in map(_category, category) if found), Warning)
    # Behind the text, whose beginning is what filters look at.
    text = f"{text} (in {worker})"
    module = _module_of(filename) or module or filename.removesuffix(".py")
    registry = _contents(sys.modules.get(module)).setdefault("__warningregistry__", {})
    try:
        warnings.warn_explicit(text, kind, filename, lineno, module, registry)
    except Warning as error:  # a filter here makes an error of it
        logger.warning("%s:%d: %s: %s", filename, lineno, type(error).__name__, error)
    except Exception:  # the user's showwarning may raise anything
        logger.exception("a warning could not be shown: %s: %s", kind.__name__, text)
    return _line("WARNING", kind.__name__, text)


def _line(level: str, name: str, text: str) -> str:
    lines = text.strip().splitlines()
    return f"{level} {name}: {lines[0] if lines else ''}"


def _module_of(filename: str) -> str:
    """Return the name of the loaded module that was read from *filename*, or nothing."""
    for name, module in [*sys.modules.items()]:
        if _contents(module).get("__file__") == filename:
            return name
    return ""


def _contents(module: object) -> dict[str, Any]:
    """Return what a module holds, without having a lazy one loaded; of anything else nothing."""
    if not issubclass(type(module), ModuleType):
        return {}
    contents: dict[str, Any] = object.__getattribute__(module, "__dict__")
    return contents


def _names(category: type[Warning]) -> list[str]:
    """Return the names of a warning's class and of those it derives from."""
    kinds = [each for each in category.__mro__ if issubclass(each, Warning)]
    return [f"{each.__module__}:{each.__qualname__}" for each in kinds]


def _category(name: str) -> type[Warning] | None:
    # Not imported for it: a worker that does no torch work does not import torch.
    module, _, qualname = name.partition(":")
    try:
        found = operator.attrgetter(qualname)(sys.modules[module])
    except Exception:  # noqa: BLE001 - it is not there, or a module that is loaded late
        return None
    return found if isinstance(found, type) and issubclass(found, Warning) else None


def _pattern(pattern: re.Pattern[str] | str | None) -> str:
    if pattern is None:
        return ""
    return rf"{re.escape(pattern)}\Z" if isinstance(pattern, str) else pattern.pattern


def _install_filters(filters: list[tuple[Any, str, str, str, int]]) -> None:
    warnings.resetwarnings()
    for action, message, name, module, line in filters:
        if category := _category(name):  # of another nothing can be issued before it is loaded
            warnings.filterwarnings(action, message, category, module, line, append=True)
