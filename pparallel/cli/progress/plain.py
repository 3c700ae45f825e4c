"""A line of text for each report."""

from __future__ import annotations

import logging
import threading
from typing import TextIO

from typing_extensions import override

from pparallel.cli.progress import short
from pparallel.cli.progress.counting import KINDS
from pparallel.cli.progress.tally import Tally
from pparallel.cli.progress.watch import Watch
from pparallel.runtime.events import Event, Reported

logger = logging.getLogger(__name__)

WIDTH = 200  #: characters of one value


class ReportLines(Watch):
    """Writes ``[worker-0] step=100 loss=0.31``, for files, pipes and simple terminals."""

    kinds = KINDS

    def __init__(self, tally: Tally, stream: TextIO) -> None:
        self._tally = tally
        self.log = self._stream = stream
        self._lock = threading.Lock()
        self._gone = False

    @override
    def hear(self, event: Event) -> None:
        self._tally.hear(event)
        if isinstance(event, Reported) and not self._gone:
            values = " ".join(f"{key}={short.value(e, WIDTH)}" for key, e in event.values.items())
            self._write(f"[{event.member}] {values}\n")

    def _write(self, line: str) -> None:
        try:
            with self._lock:
                self._stream.write(line)
                self._stream.flush()
        except (OSError, ValueError) as error:  # the reader of the pipe has gone
            self._gone = True
            logger.warning("Reports are not written any more: %s", error)
