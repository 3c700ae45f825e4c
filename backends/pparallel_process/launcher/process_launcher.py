"""Launcher whose ranks are processes of this machine."""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import override

from pparallel.interfaces.launcher import LaunchContext, Launcher, RankSpec, StartMethod
from pparallel.interfaces.serializer import Serializer
from pparallel.runtime.member import Member
from pparallel_process.config import ProcessLauncherConfig
from pparallel_process.launcher.context import ProcessLaunchContext
from pparallel_process.launcher.starting import started


class ProcessLauncher(Launcher):
    """Runs each rank in a process of its own, which ends with this one at the latest.

    What a rank runs and returns goes through the serializer; with ``fork`` the function and its
    arguments are inherited as they are. Objects of :mod:`multiprocessing` may be arguments. Logs
    and warnings of ranks go to this process's loggers, and so does what they print where standard
    output has been replaced. With ``daemon`` the program does not wait for its ranks as it ends,
    and takes them along.
    """

    def __init__(
        self, config: ProcessLauncherConfig, *, member: Member, serializer: Serializer
    ) -> None:
        self.config = config
        self._serializer = serializer

    @override
    def start(
        self, ranks: Sequence[RankSpec], *, daemon: bool, start_method: StartMethod
    ) -> LaunchContext:
        processes = started(ranks, self.config, self._serializer, start_method)
        return ProcessLaunchContext(ranks, processes, self._serializer, daemon=daemon)
