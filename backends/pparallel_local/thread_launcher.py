"""Launcher whose ranks are threads of this process."""

from __future__ import annotations

import contextvars
import logging
import os
import threading
from collections.abc import Sequence

from typing_extensions import override

from pparallel.errors import ConfigError
from pparallel.interfaces.launcher import (
    LaunchContext,
    Launcher,
    LauncherConfig,
    RankSpec,
    StartMethod,
)
from pparallel.runtime import stopping
from pparallel.runtime.future import ended_by
from pparallel.runtime.member import Member
from pparallel.runtime.resources import start_thread
from pparallel.runtime.stopping import StopSignal, Tell

logger = logging.getLogger(__name__)


class ThreadLauncher(Launcher):
    """Runs ranks as daemon threads, each under a stop signal of its own.

    A thread cannot be ended by force: one that ignores its signal is left behind, and ends with
    the process. ``daemon`` and ``start_method`` say nothing about threads and are ignored.
    """

    def __init__(self, config: LauncherConfig, *, member: Member) -> None:
        self.config = config

    @override
    def start(
        self, ranks: Sequence[RankSpec], *, daemon: bool, start_method: StartMethod
    ) -> LaunchContext:
        for each in ranks:
            if each.env:
                raise ConfigError(
                    f"rank {each.rank} asks for environment variables"
                    f" ({', '.join(sorted(each.env))}), but threads share one environment;"
                    " to give each its own: launcher: {backend: process}"
                )
        return ThreadLaunchContext(ranks)


class ThreadLaunchContext(LaunchContext):
    """Threads that were started as ranks."""

    def __init__(self, ranks: Sequence[RankSpec]) -> None:
        super().__init__(ranks)
        self._signals = [StopSignal() for _ in ranks]
        self._threads = [
            threading.Thread(
                target=contextvars.copy_context().run,
                args=(self._run, signal, each),
                name=f"rank-{each.rank}",
                daemon=True,
            )
            for signal, each in zip(self._signals, ranks, strict=True)
        ]
        self._forget_outer = stopping.follow(self.stop)
        try:
            for thread in self._threads:
                start_thread(thread)
        except BaseException as error:
            self._discard_unstarted(ranks, error)
            raise

    @property
    @override
    def processes(self) -> Sequence[threading.Thread]:
        return self._threads

    @override
    def pids(self) -> list[int]:
        return [os.getpid()] * len(self._threads)

    @override
    def stop(self, reason: BaseException | None = None) -> None:
        for signal in self._signals:
            signal.set(reason)

    @override
    def kill(self) -> None:
        """Leave what still runs to its signal: no thread can be ended by force."""

    @override
    def reap(self) -> None:
        super().reap()
        self._forget_outer()

    def _run(self, signal: StopSignal, spec: RankSpec) -> None:
        with stopping.running_under(signal, _heard(spec)):
            try:
                value = spec.run()
            except BaseException as error:  # noqa: BLE001 - raised where the ranks are joined
                self.failed(spec.rank, ended_by(error))
            else:
                self.succeeded(spec.rank, value)

    def _discard_unstarted(self, ranks: Sequence[RankSpec], error: BaseException) -> None:
        self._threads = [thread for thread in self._threads if thread.ident is not None]
        for each in ranks[len(self._threads) :]:
            self.failed(each.rank, error)
        self.terminate(error)


def _heard(spec: RankSpec) -> Tell | None:
    """Return what tells whoever wants to hear of the rank; one that fails disturbs nobody."""
    hear = spec.hear
    if hear is None:
        return None
    found = hear

    def tell(told: object) -> None:
        try:
            found(told)
        except Exception:
            logger.exception("what rank %d told could not be heard", spec.rank)

    return tell
