"""How ranks are started."""

from __future__ import annotations

import marshal
import pickle
from collections.abc import Sequence
from signal import SIGKILL
from typing import NamedTuple

from pparallel.interfaces.launcher import RankSpec, StartMethod
from pparallel.interfaces.serializer import Serializer
from pparallel.machine.threads import limit_threads
from pparallel.runtime import environment, lending, printing, processes
from pparallel.runtime.pools import forwarding, nesting
from pparallel.runtime.processes.inheritance import (
    forget_in_children,
    no_fork,
    remember_in_children,
)
from pparallel.runtime.shm import Parcels
from pparallel_process import shares
from pparallel_process.config import ProcessLauncherConfig
from pparallel_process.launcher import rank
from pparallel_process.launcher.cargo import Cargo
from pparallel_process.launcher.messages import Start
from pparallel_process.launcher.rank_process import RankProcess
from pparallel_process.wire.channel import Channel, pair
from pparallel_process.wire.outset import Outset, SharesTensors

_RANK = rank.__name__


def started(
    ranks: Sequence[RankSpec],
    config: ProcessLauncherConfig,
    serializer: Serializer,
    method: StartMethod,
) -> list[RankProcess]:
    """Start *ranks*, all or none.

    Raises:
        OSError: there are no descriptors, no memory, or no processes to be had.
        SerializationError: what they are to run cannot be sent.
        PparallelError: launches are nested too deep, or no interpreter can be started.
    """
    nesting.check("launches ranks")
    found: list[RankProcess] = []
    starter = _Starter(config, serializer, method, len(ranks))
    try:
        found += (starter.start(each) for each in ranks)
    except BaseException:
        for each in found:
            each.signal(SIGKILL)
        for each in found:
            each.bury()
        raise
    finally:
        starter.close()
    return found


class _Load(NamedTuple):
    """What a rank is to run, on its way; *lent* is memory to which it refers."""

    outset: Outset
    cargo: Cargo
    lent: list[object]

    def close(self) -> None:
        self.outset.close()
        self.cargo.close()


class _Starter:
    """Starts the ranks of one launch."""

    def __init__(
        self,
        config: ProcessLauncherConfig,
        serializer: Serializer,
        method: StartMethod,
        count: int,
    ) -> None:
        self._config, self._serializer, self._method = config, serializer, method
        self._count = count
        self._sending = _sharing(serializer)
        self._pickled = pickle.dumps(serializer)
        self._forwarding = forwarding.settings()
        self._prints = printing.is_replaced()
        self._environment = {**processes.child_environment(), **_plugins()}
        self._loads: dict[tuple[int, ...], _Load] = {}

    def close(self) -> None:
        """Give back what is not needed once all have started."""
        for each in self._loads.values():
            each.close()

    def start(self, spec: RankSpec) -> RankProcess:
        """Start one; it is not waited for."""
        threads = shares.threads(self._config.threads_per_rank, self._count, spec.env)
        limits = {} if threads is None else limit_threads(threads)
        load = self._load(spec)
        start = Start(
            spec.rank,
            spec.name or f"rank-{spec.rank}",
            self._pickled,
            load.cargo.head,
            load.outset.papers,
            spec.hear is not None,
            self._prints,
            threads,
            self._forwarding,
            nesting.depth(),
        )
        files = [*load.cargo.files, *load.outset.files]
        process = self._process(spec, start, files, {**limits, **spec.env})
        process.lent = load.lent
        return process

    def _process(
        self, spec: RankSpec, start: Start, files: Sequence[int], own: dict[str, str]
    ) -> RankProcess:
        with no_fork():  # a fork of this process must not keep the channel open
            here, there = pair()
            forget_in_children(here.fileno())
        try:
            process = processes.start(
                f"{_RANK}:main",
                marshal.dumps(tuple(start)),
                [there.fileno(), *files],
                method=self._method,
                name=start.name,
                environment={**self._environment, **own},
                preload=self._preload(spec),
            )
        except BaseException:
            with no_fork():
                remember_in_children(here.fileno())
                here.close()
            raise
        finally:
            there.close()
        return RankProcess(spec, process, Channel(here, Parcels(None, {})))

    def _load(self, spec: RankSpec) -> _Load:
        key = (id(spec.fn), *map(id, spec.args))  # the same for all ranks of a plain spawn
        if key not in self._loads:
            with lending.noted() as lent:
                outset = Outset((spec.fn, spec.args), self._sending, self._method)
            try:
                self._loads[key] = _Load(outset, Cargo(outset.buffers), lent)
            except BaseException:
                outset.close()
                raise
        return self._loads[key]

    def _preload(self, spec: RankSpec) -> Sequence[str]:
        serializer = type(self._serializer).__module__
        return (_RANK, serializer, *spec.modules, *self._config.preload)


def _sharing(serializer: Serializer) -> Serializer:
    """Return one like it that passes memory which the program has shared by reference."""
    return serializer.sharing("launched") if isinstance(serializer, SharesTensors) else serializer


def _plugins() -> dict[str, str]:
    """Return the variables by which ranks have the same plugins as this process."""
    found = {}
    if environment.strict_plugins():
        found["PPARALLEL_STRICT_PLUGINS"] = "1"
    if disabled := environment.disabled_plugins():
        found["PPARALLEL_DISABLE_PLUGINS"] = ",".join(sorted(disabled))
    return found
