"""What the members run in the tests of ``torch_rpc``."""

from __future__ import annotations

import ctypes
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any, cast

from typing_extensions import override

import pparallel
from pparallel.builder import Runtime
from pparallel.errors import ClosedError, PeerLostError, PparallelError
from pparallel.runtime.links import process
from pparallel.runtime.member import Member
from pparallel.testing.patience import PATIENCE, until
from pparallel.testing.transport.alone import Received, echo
from pparallel_torch import TorchRpcTransportConfig
from pparallel_torch.rpc import transport
from pparallel_torch.rpc.agent import Agent

NAMES = ("m0", "m1", "m2")


def runtime(rank: int, folder: Path, size: int, **options: Any) -> Runtime:
    """Return the runtime of a member of a job that meets in *folder*."""
    config = pparallel.RuntimeConfig(
        members=list(NAMES[:size]),
        launcher={"backend": "process"},
        transport=TorchRpcTransportConfig(**options),
        reducer={"backend": "local"},
        close_timeout=PATIENCE,
    )
    member = Member(NAMES[rank], rank, rank, size, NAMES[:size], f"file://{folder}/store")
    return pparallel.build(config, member=member)


def say(folder: Path, rank: int, what: str, value: object) -> None:
    """Leave something for the test."""
    whole = folder / f"{what}.{rank}.part"
    whole.write_text(json.dumps(value))
    whole.rename(folder / f"{what}.{rank}")


def heard(folder: Path, rank: int, what: str) -> Any:
    """Return what a member has left, in the test."""
    file = folder / f"{what}.{rank}"
    until(file.exists, f"member {rank} did not say {what}")
    return json.loads(file.read_text())


def seem_far(rank: int) -> None:
    """Let this process look as if it were on a machine of its own."""
    process._host_id = lambda: bytes([rank + 1]) * 16  # type: ignore[assignment]


def never() -> None:
    """Be called, and not answer."""
    until(lambda: False, "this is to be ended")


def wait_for_ever() -> None:
    """Be called, and not end."""
    threading.Event().wait()


def call_and_leave(rt: Runtime) -> None:
    """Leave while a function that the first member has called is running."""
    group = rt.group()
    if rt.rank == 0:
        group.rpc_async(1, wait_for_ever, timeout=None)
        group.rpc_sync(1, abs, (-1,), timeout=PATIENCE)


def watch_an_end(rank: int, folder: Path, size: int, far: bool, options: dict[str, Any]) -> None:
    """Call member 1 and tell how that fails; be member 1 and wait for an end."""
    if far:
        seem_far(rank)
    told: list[tuple[str, str]] = []
    try:
        with runtime(rank, folder, size, **options) as rt:
            group = rt.group()
            group.when_lost(lambda name, reason: told.append((name, reason)))
            waiting = None if rank == 1 else group.rpc_async("m1", never, timeout=None)
            group.barrier(PATIENCE)
            say(folder, rank, "pid", os.getpid())
            if waiting is not None:
                error = waiting.exception(PATIENCE)
                until(lambda: bool(told), "the end was not reported")
                say(folder, rank, "lost", (monotonic(), type(error).__name__, str(error), told))
                with suppress(ClosedError):  # the job has ended, if it was the first member's end
                    say(folder, rank, "members", rt.transport.members())
            until(lambda: rt.stopping or (folder / "go").exists(), "nothing ended")
    except PparallelError as error:
        say(folder, rank, "ended", f"{type(error).__name__}: {error}")


def hold_the_gil(rank: int, folder: Path, far: bool, bound: float, seconds: float) -> list[str]:
    """Have member 1 keep its GIL for longer than *bound*; return who is there afterwards."""
    if far:
        seem_far(rank)
    with runtime(rank, folder, 2, liveness_bound=bound, allow_insecure=far) as rt:
        rt.group().barrier(PATIENCE)
        if rank == 1:
            ctypes.PyDLL(None).usleep(int(seconds * 1e6))
        rt.group().barrier(PATIENCE)
        return rt.transport.members()


def come(rank: int, folder: Path, size: int, far: bool, options: dict[str, Any]) -> str:
    """Enter and leave; return how that ended."""
    if far:
        seem_far(rank)
    try:
        with runtime(rank, folder, size, **options) as rt:
            return "".join(rt.transport.members())
    except PparallelError as error:
        return f"{type(error).__name__}: {error}"


def open_twice(rank: int, folder: Path) -> list[str]:
    """Have a second runtime in this process, first at the same time, then afterwards."""
    found = []
    with runtime(rank, folder, 2) as rt:
        rt.group().barrier(PATIENCE)
        other = folder / "other"
        other.mkdir(exist_ok=True)
        found.append(come(rank, other, 2, False, {}))
        rt.group().barrier(PATIENCE)
    found.append(come(rank, other, 2, False, {}))
    return found


def listening(rank: int, folder: Path) -> list[str]:
    """Return the addresses on which this process listens."""
    import psutil

    with runtime(rank, folder, 2) as rt:
        rt.group().barrier(PATIENCE)
        found = psutil.Process().net_connections("inet")
        rt.group().barrier(PATIENCE)
        return [each.laddr.ip for each in found if each.status == psutil.CONN_LISTEN]


class Counted(Received):
    """Keeps with each end how many messages came before it."""

    def __init__(self) -> None:
        super().__init__(echo)
        self.ends: list[tuple[str, str, int]] = []

    @override
    def on_lost(self, name: str, reason: str) -> None:
        self.ends.append((name, reason, len(self.messages)))


def send_and_leave(rank: int, folder: Path, count: int) -> Any:
    """Send so many messages, and close as member 1; as member 0, return what came."""
    member = Member(NAMES[rank], rank, rank, 2, NAMES[:2], f"file://{folder}/store")
    own, receiver = transport.TorchRpcTransport(TorchRpcTransportConfig(), member=member), Counted()
    own.open(receiver)
    try:
        with suppress(PeerLostError):  # member 1 has left meanwhile
            for number in range(count):
                own.send(NAMES[1 - rank], [b"%d" % number, bytes(20_000 * (number % 20 == 9))])
        if not rank:
            until(lambda: bool(receiver.ends), "the end was not reported")
    finally:
        own.close()
    return [int(bytes(frames[0])) for _, frames in receiver.messages], receiver.ends


def fail_to_send_once(rt: Runtime) -> list[str]:
    """Have the second of three calls not leave; return what became of each."""
    group, found = rt.group(), list[str]()
    group.barrier()
    if rt.rank == 0:
        for n in range(3):
            error: BaseException | None
            try:
                with suppress_sending(rt, n == 1):
                    future = group.rpc_async("member-1", abs, args=(complex(n),), timeout=PATIENCE)
                error = future.exception(2 * PATIENCE)
            except (
                RuntimeError
            ) as raised:  # what it must not be: the next calls are made all the same
                error = raised
            found.append(type(error).__name__)
    group.barrier()
    return found


def fail_to_take_once(rt: Runtime) -> Any:
    """Have the second member lack memory for a call; return which errors either side has."""
    group, module = rt.group(), cast("Any", transport)
    taking = module.unpack
    group.barrier(PATIENCE)
    waiting = group.rpc_async("member-0", never, timeout=None) if rt.rank else None
    group.barrier(PATIENCE)

    def fail(*parcel: Any) -> Any:
        module.unpack = taking
        raise MemoryError("none")

    if rt.rank == 1:
        module.unpack = fail
        assert waiting is not None
        error = waiting.exception(PATIENCE)
        return f"{type(error).__name__}: {error}"
    error = None
    while error is None:  # until the other side has begun to fail
        error = group.rpc_async("member-1", abs, (1,), timeout=PATIENCE).exception(2 * PATIENCE)
    return f"{type(error).__name__}: {error}", group.rpc_sync(
        "member-1", abs, (-2,), timeout=PATIENCE
    )


@contextmanager
def suppress_sending(rt: Runtime, fails: bool) -> Iterator[None]:
    """Have the first call inside fail as torch does for want of memory."""
    call = Agent.call

    def fail(agent: Agent, *args: Any) -> Any:
        Agent.call = call  # type: ignore[method-assign]
        raise RuntimeError("torch could not send it")

    if fails:
        cast("Any", rt.transport)._peers["member-1"].calls.clear()  # else it is an answer
        Agent.call = fail  # type: ignore[assignment, method-assign]
    yield
