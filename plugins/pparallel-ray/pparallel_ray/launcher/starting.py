"""How ranks are started."""

from __future__ import annotations

import os
import pickle
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from pparallel.errors import PparallelError, SerializationError
from pparallel.interfaces.launcher import RankSpec
from pparallel.interfaces.serializer import Serializer
from pparallel.runtime import environment
from pparallel.runtime.pools import forwarding, nesting
from pparallel.runtime.processes import main_module
from pparallel_ray.cluster.connecting import address
from pparallel_ray.launcher.config import RayLauncherConfig
from pparallel_ray.launcher.messages import Start, Surroundings
from pparallel_ray.launcher.placing import Places
from pparallel_ray.launcher.ray_rank import RayRank
from pparallel_ray.launcher.supervisor import Supervisor

_AT_ONCE = 8  #: calls of a supervisor: one listens all the time
_LARGE = 100_000  #: bytes of a call from which on ranks that share it share its copy


def started(
    ranks: Sequence[RankSpec],
    config: RayLauncherConfig,
    serializer: Serializer,
    places: Places,
) -> list[RayRank]:
    """Start *ranks* in their places, all or none.

    Raises:
        SerializationError: what they are to run cannot be sent.
        PparallelError: launches are nested too deep, or a process cannot be started.
    """
    nesting.check("launches ranks")
    calls = _calls(ranks, serializer)
    deadline = monotonic() + config.start_timeout
    found: list[RayRank] = []
    try:
        found += (RayRank(each, _supervisor(config, places, at)) for at, each in enumerate(ranks))
        _arrive(found, config, deadline)
        _begin(found, serializer, calls, deadline)
    except BaseException:
        for each in found:
            each.end_supervisor()
        raise
    return found


def _calls(ranks: Sequence[RankSpec], serializer: Serializer) -> list[Any]:
    """Return what each rank is to run as buffers, or as a reference to such in Ray's store."""
    known: dict[tuple[int, ...], Any] = {}
    for spec in ranks:
        key = (id(spec.fn), *map(id, spec.args))  # the same for all ranks of a plain spawn
        if key not in known:
            try:
                buffers = [bytes(each) for each in serializer.dumps((spec.fn, spec.args))]
            except SerializationError as error:
                error.add_note(f"it is what rank {spec.rank} is to run")
                raise
            known[key] = ray.put(buffers) if sum(map(len, buffers)) > _LARGE else buffers
    return [known[(id(each.fn), *map(id, each.args))] for each in ranks]


def _supervisor(config: RayLauncherConfig, places: Places, at: int) -> Any:
    options = places.options(at)
    if config.runtime_env:
        options["runtime_env"] = dict(config.runtime_env)
    actor = ray.remote(Supervisor)
    limits = {"max_restarts": 0, "max_task_retries": 0, "max_concurrency": _AT_ONCE}
    return actor.options(**options, **limits).remote()


def _arrive(ranks: Sequence[RayRank], config: RayLauncherConfig, deadline: float) -> None:
    prepared = {**config.cluster.runtime_env, **config.runtime_env}
    directory = "" if "working_dir" in prepared else os.getcwd()
    path = tuple(str(each) or os.getcwd() for each in sys.path)
    surroundings = Surroundings(directory, path, tuple(sys.argv))
    arrivals = [each.actor.arrive.remote(tuple(surroundings)) for each in ranks]
    for each, (node, host) in zip(ranks, _got(arrivals, ranks, deadline), strict=True):
        each.node, each.host = node, host


def _begin(
    ranks: Sequence[RayRank], serializer: Serializer, calls: Sequence[Any], deadline: float
) -> None:
    pickled, settings = pickle.dumps(serializer), forwarding.settings()
    place = nesting.depth(), main_module.describe()
    shared = {"RAY_ADDRESS": address(), **_plugins()}
    begun: Counter[str] = Counter()
    pids = []
    for each, call in zip(ranks, calls, strict=True):
        spec, local_rank = each.spec, begun[each.node]
        begun[each.node] += 1
        hears = spec.hear is not None
        start = Start(spec.rank, local_rank, each.name, pickled, hears, settings, *place)
        own = {**shared, **spec.env}
        pids.append(each.actor.begin.remote(pickle.dumps(tuple(start)), each.name, own, call))
    for each, pid in zip(ranks, _got(pids, ranks, deadline), strict=True):
        each.pid = pid


def _got(references: Sequence[Any], ranks: Sequence[RayRank], deadline: float) -> list[Any]:
    """Return what supervisors answer.

    Raises:
        PparallelError: one cannot, or does not in time.
    """
    try:
        found: list[Any] = ray.get(list(references), timeout=max(0.0, deadline - monotonic()))
    except GetTimeoutError as error:
        ready, _ = ray.wait(list(references), num_returns=len(references), timeout=0)
        late = [each.name for each, it in zip(ranks, references, strict=True) if it not in ready]
        message = (
            f"Ray has not started {', '.join(late)} in time; raise the launcher's start_timeout"
        )
        raise PparallelError(message) from error
    except RayError as error:
        message = f"Ray cannot start the ranks: {error}"
        raise PparallelError(message) from error
    return found


def _plugins() -> Mapping[str, str]:
    """Return the variables by which ranks have the same plugins as this process."""
    found = {}
    if environment.strict_plugins():
        found["PPARALLEL_STRICT_PLUGINS"] = "1"
    if disabled := environment.disabled_plugins():
        found["PPARALLEL_DISABLE_PLUGINS"] = ",".join(sorted(disabled))
    return found
