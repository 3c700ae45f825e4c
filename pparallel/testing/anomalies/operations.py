"""Operations of the eight interfaces that the anomaly tests repeat, and the scenarios they run in.

An operation is prepared once, in each member of a job; what it returns performs it, checks its
result, and may be called again and again.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, cast

from pparallel.errors import CallTimeoutError

if TYPE_CHECKING:
    from pparallel.builder import Runtime
    from pparallel.interfaces.pool import Pool

Perform = Callable[[], None]
Prepare = Callable[["Runtime"], Perform]
Place = Literal["job", "alone", "whole"]

TIMEOUT = 4.0  #: seconds of a call in a scenario
LIVENESS = 3.0  #: seconds within which a member that was stopped is reported
BOUND = 15.0  #: seconds after which an operation is stuck

_performs: dict[tuple[int, str], Perform] = {}  # by rank and operation, of this process's members


class WrongResultError(AssertionError):
    """An operation returned, and its result is not what it should be."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A job, or one member alone, with its operations.

    Attributes:
        name: of the backends, as a reader knows them.
        place: ``job``: two members, of which rank 0 performs the operations; ``alone``: one
            member; ``whole``: each operation builds, uses and closes everything.
        sections: a config, as :func:`pparallel.build` takes it, without its members.
        operations: names of :data:`OPERATIONS`, or of functions, as ``module:function``: each is
            called with the runtime (or, where the scenario is ``whole``, with the sections), and
            returns a function that performs the operation and raises if its result is wrong.
        lossy: whether a failed operation may end the group, as one of a collective does.
    """

    name: str
    place: Place
    sections: Mapping[str, Any]
    operations: tuple[str, ...]
    lossy: bool = False

    @property
    def is_of_processes(self) -> bool:
        """Whether something of it lives in other processes."""
        backends = {
            each["backend"] for key, each in self.sections.items() if key in ("launcher", "pool")
        }
        return bool(backends & {"process", "p2p", "torchrun"})

    @property
    def sides(self) -> tuple[str, ...]:
        """Where faults are injected: in this process, and in the others."""
        return ("this", "peer") if self.is_of_processes else ("this",)

    def to_dict(self) -> dict[str, Any]:
        """Return what :func:`scenario_of` takes."""
        return asdict(self)


def scenario_of(raw: Mapping[str, Any]) -> Scenario:
    """Return the scenario that a mapping describes."""
    return Scenario(**{**raw, "operations": tuple(raw["operations"])})


def _expect(found: object, expected: object) -> None:
    if found != expected:
        raise WrongResultError(f"{found!r:.200} instead of {expected!r:.200}")


# -- transports -------------------------------------------------------------------------------


def _echo(value: Any) -> Any:
    return value


def _late(seconds: float) -> None:
    threading.Event().wait(seconds)


def _perform(rank: int, name: str) -> None:
    _performs[rank, name]()


def _sync(rt: Runtime) -> Perform:
    group = rt.group()
    return lambda: _expect(group.rpc_sync(1, _echo, args=("value",)), "value")


def _async(rt: Runtime) -> Perform:
    group = rt.group()

    def perform() -> None:
        futures = [group.rpc_async(1, _echo, args=(number,)) for number in range(8)]
        _expect([each.wait() for each in futures], [*range(8)])

    return perform


def _remote(rt: Runtime) -> Perform:
    group = rt.group()

    def perform() -> None:
        ref = group.remote(1, list, args=((1, 2),))
        _expect(ref.to_here(TIMEOUT), [1, 2])

    return perform


def _large(rt: Runtime) -> Perform:
    group, value = rt.group(), bytearray(range(250)) * 12_000
    return lambda: _expect(len(group.rpc_sync(1, _echo, args=(value,))), len(value))


def _tensor(rt: Runtime) -> Perform:
    import torch

    group, value = rt.group(), torch.arange(300_000.0)

    def perform() -> None:
        _expect(bool(torch.equal(group.rpc_sync(1, _echo, args=(value,)), value)), True)

    return perform


def _timed_out(rt: Runtime) -> Perform:
    """A call that lasts longer than its time-out fails in time."""
    group = rt.group()

    def perform() -> None:
        began = time.monotonic()
        try:  # an answer that has come before a busy computer looks is taken
            group.rpc_sync(1, _late, args=(1.0,), timeout=0.1)
        except CallTimeoutError:
            if time.monotonic() - began > 0.1 + LIVENESS:
                raise WrongResultError("the time-out came late") from None
            return
        raise WrongResultError("a call succeeded after its time-out")

    return perform


def _together(name: str, prepare: Callable[[Runtime], Perform]) -> Prepare:
    """Return an operation that both members perform at once."""

    def prepared(rt: Runtime) -> Perform:
        own = prepare(rt)
        _performs[rt.rank, name] = own
        group = rt.group()

        def perform() -> None:
            other = group.rpc_async(1, _perform, args=(1, name), timeout=2 * TIMEOUT)
            try:
                own()
            except CallTimeoutError as late:  # the right end where the other could not come
                error = other.exception()
                why = late if error is None or isinstance(error, CallTimeoutError) else error
                raise why from late
            finally:
                error = other.exception()
            if error is not None:
                raise error

        return perform

    return prepared


def _barrier(rt: Runtime) -> Perform:
    group = rt.group()
    return lambda: group.barrier(TIMEOUT)


# -- the other interfaces ---------------------------------------------------------------------


def _serialize(rt: Runtime) -> Perform:
    serializer = rt.serializer
    value = {"numbers": [1, 2.5], "name": "x", "bytes": bytes(100_000)}
    return lambda: _expect(
        serializer.loads([bytes(each) for each in serializer.dumps(value)]), value
    )


def _warm(rt: Runtime) -> Pool:
    """Return the pool once each of its workers has run something, and said where it is."""
    sleeping = [rt.pool.apply_async(time.sleep, (0.2,)) for _ in range(4)]
    for each in sleeping:
        each.get(TIMEOUT)
    return rt.pool


def _apply(rt: Runtime) -> Perform:
    pool = _warm(rt)
    return lambda: _expect(pool.apply_async(_echo, (3,)).get(TIMEOUT), 3)


def _map(rt: Runtime) -> Perform:
    pool = _warm(rt)
    return lambda: _expect(pool.map_async(_echo, range(6)).get(TIMEOUT), [*range(6)])


def _push_and_pull(rt: Runtime) -> Perform:
    server, versions = rt.ordered_server, iter(range(1, 1 << 30))

    def perform() -> None:
        version = next(versions)
        newest = server.pull("key")
        server.push("key", [version], version, newest[1] if newest else None)
        _expect(server.pull("key"), ([version], version))
        _expect(server.wait("key", version, 0.0), None)

    return perform


def _step(rt: Runtime) -> Perform:
    from pparallel.testing.reducer.models import backward, line, manage

    model, reducer = line(), rt.reducer
    manage(reducer, model)
    reducer.start()

    def perform() -> None:
        if not reducer.trains:
            return
        backward(model, 1)
        try:
            reducer.step(model)
        finally:
            model.zero_grad()

    return perform


def _place(rt: Runtime) -> Perform:
    from pparallel.interfaces.placer import Device

    placer = rt.placer
    devices = [Device("cuda:0", 100.0, 1.0), Device("cuda:1", 100.0, 1.0)]
    models = {"a": 10.0, "b": 20.0}

    def perform() -> None:
        _expect(placer.place(models, {("a", "b"): 1.0}, devices).models, ("a", "b"))

    return perform


def _all_reduce(rt: Runtime) -> Perform:
    import torch

    collective = rt.collective

    def perform() -> None:
        tensor = torch.full((5000,), float(rt.rank + 1))
        collective.all_reduce(tensor)
        _expect(bool((tensor == 3.0).all()), True)

    return perform


# -- what is opened and closed each time ------------------------------------------------------


def _rank_of(rt: Runtime) -> int:
    return rt.rank


def _number_of(rank: int) -> int:
    return rank


def _call_the_other(rt: Runtime) -> int:
    group = rt.group()
    value = cast("int", group.rpc_sync(1 - rt.rank, _echo, args=(rt.rank,)))
    group.barrier(TIMEOUT)
    return value


def _open_job(sections: Mapping[str, Any]) -> Perform:
    import pparallel

    raw = {**sections, "members": 2, "close_timeout": LIVENESS}
    return lambda: _expect(pparallel.launch(raw, _call_the_other), [0, 1])


def _launch(sections: Mapping[str, Any]) -> Perform:
    import pparallel
    from pparallel.interfaces.launcher import LauncherConfig

    config = pparallel.load(LauncherConfig, sections["launcher"])

    def perform() -> None:
        with cast("Any", pparallel.build(config)) as launcher:
            _expect(launcher.spawn(_number_of, nprocs=2, start_method="forkserver"), [0, 1])

    return perform


def _open_pool(sections: Mapping[str, Any]) -> Perform:
    import pparallel

    def perform() -> None:
        with pparallel.build(sections) as rt:
            _expect(rt.pool.map(_echo, range(4)), [*range(4)])

    return perform


#: by name; each is prepared with the runtime of its member
OPERATIONS: dict[str, Prepare] = {
    "rpc_sync": _sync,
    "rpc_async": _async,
    "remote": _remote,
    "large": _large,
    "tensor": _tensor,
    "time-out": _timed_out,
    "barrier": _together("barrier", _barrier),
    "dumps, loads": _serialize,
    "apply": _apply,
    "map": _map,
    "push, pull": _push_and_pull,
    "step": _step,
    "steps": _together("steps", _step),
    "place": _place,
    "all_reduce": _together("all_reduce", _all_reduce),
}

#: by name; each is prepared with the sections of its scenario
WHOLE: dict[str, Callable[[Mapping[str, Any]], Perform]] = {
    "open job": _open_job,
    "launch": _launch,
    "open pool": _open_pool,
}


def named(name: str, place: Place) -> Callable[[Any], Perform]:
    """Return an operation by its name, or by ``module:function``."""
    module, _, function = name.partition(":")
    if function:
        found: Callable[[Any], Perform] = getattr(importlib.import_module(module), function)
        return found
    return WHOLE[name] if place == "whole" else OPERATIONS[name]


CALLS = ("rpc_sync", "rpc_async", "remote", "large", "time-out", "barrier")


def _preloading(*modules: str) -> dict[str, Any]:
    return {"backend": "process", "preload": [*modules, "pparallel.testing.anomalies.faults"]}


def _transport(backend: str, **options: Any) -> dict[str, Any]:
    bounds = {"timeout": TIMEOUT, "liveness_bound": LIVENESS, "handler_threads": 2}
    return {"backend": backend, **bounds, **options}


def _job(
    name: str, launcher: Mapping[str, Any], operations: tuple[str, ...], **sections: Any
) -> Scenario:
    given = {"transport": _transport("ipc"), **sections, "launcher": launcher}
    return Scenario(name, "job", given, operations)


def built_in() -> list[Scenario]:
    """Return the scenarios of the backends that pparallel brings."""
    process, torch, thread = _preloading(), _preloading("torch"), {"backend": "thread"}
    pools = [
        {"backend": "process", "size": 2, "preload": process["preload"]},
        {"backend": "p2p", "size": 2, "preload": process["preload"]},
        {"backend": "thread", "size": 2},
    ]
    found = [
        _job("local", thread, CALLS, transport=_transport("local")),
        _job("ipc", process, CALLS),
        _job("zmq", process, CALLS, transport=_transport("zmq")),
        _job("torch_rpc", torch, CALLS, transport=_transport("torch_rpc")),
        _job("ipc, tensors", torch, ("tensor",)),
        _job("zmq, tensors", torch, ("tensor",), transport=_transport("zmq")),
        _job("hosted", process, ("push, pull",), ordered_server={"backend": "hosted"}),
        _job(
            "grad_server", torch, ("steps",), reducer={"backend": "grad_server", "dedicated": False}
        ),
    ]
    job = _job(
        "all_reduce",
        torch,
        ("steps",),
        reducer={"backend": "all_reduce"},
        collective={"backend": "shm", "timeout": TIMEOUT},
    )
    found.append(replace(job, lossy=True))
    for each in ("local", "shm", "gloo"):
        launcher = thread if each == "local" else torch
        transport = _transport("local" if each == "local" else "ipc")
        job = _job(
            f"{each} collective",
            launcher,
            ("all_reduce",),
            transport=transport,
            collective={"backend": each, "timeout": TIMEOUT},
        )
        found.append(replace(job, lossy=True))
    for each in ("dill", "pickle", "cloudpickle", "safe"):
        sections = {"serializer": {"backend": each}}
        found.append(Scenario(f"{each} serializer", "alone", sections, ("dumps, loads",)))
    for pool in pools:
        name, sections = f"{pool['backend']} pool", {"pool": pool}
        found.append(Scenario(name, "alone", sections, ("apply", "map")))
        found.append(Scenario(f"{name}, opened", "whole", sections, ("open pool",)))
    found += _alone()
    for launcher in (thread, process):
        name = f"{launcher['backend']} launcher"
        found.append(Scenario(name, "whole", {"launcher": launcher}, ("launch",)))
    for each in ("local", "ipc", "zmq"):
        sections = {"transport": _transport(each, rendezvous_timeout=TIMEOUT), "launcher": thread}
        found.append(Scenario(f"{each}, opened", "whole", sections, ("open job",)))
    sections = {"transport": _transport("ipc", rendezvous_timeout=TIMEOUT), "launcher": process}
    found.append(Scenario("ipc job, launched", "whole", sections, ("open job",)))
    return found


def _alone() -> list[Scenario]:
    servers = {"memory": {}, "sqlite": {"path": "FOLDER/values.db"}}
    found = [
        Scenario(
            f"{name} server",
            "alone",
            {"ordered_server": {"backend": name, **given}},
            ("push, pull",),
        )
        for name, given in servers.items()
    ]
    found.append(Scenario("local reducer", "alone", {"reducer": {"backend": "local"}}, ("step",)))
    found += [
        Scenario(f"{name} placer", "alone", {"placer": {"backend": name}}, ("place",))
        for name in ("greedy", "gradient", "exact")
    ]
    return found
