"""A world: named processes that call one another and compute together."""

from __future__ import annotations

import contextvars
import multiprocessing.util
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NoReturn, TypeVar

from typing_extensions import override

from pparallel.builder import Runtime, build, load
from pparallel.compat.machin.distributed import current
from pparallel.compat.machin.distributed.collective_group import CollectiveGroup
from pparallel.compat.machin.distributed.joining import joined
from pparallel.compat.machin.distributed.rpc_group import RpcGroup
from pparallel.compat.machin.distributed.settings import FOREVER, Settings, check_backend
from pparallel.errors import ClosedError
from pparallel.interfaces.collective import Collective, CollectiveConfig
from pparallel.runtime import rpc

T = TypeVar("T")

_EARLY = 100  #: the priority of leaving the world as the process ends: before its queues close


class World:
    """This process's place among the members of a job, each of which makes its own.

    A process is in one world at a time. The first member that comes waits for the others, and all
    go on together. Members on one machine may be started in any way: rank 0 hands each fresh keys
    over a private socket. For members on several machines, see ``PPARALLEL_MACHIN_KEYS``.

    A process that ends without :meth:`stop` leaves the world as it ends, and the others are told;
    the end of rank 0 ends the world.

    Attributes:
        name: the name of this member.
        rank: its rank.
        world_size: how many members there are.
        runtime: the :class:`pparallel.Runtime` that does the work.
    """

    def __init__(
        self,
        name: str,
        rank: int = -1,
        world_size: int = -1,
        init_dist: bool = True,
        init_rpc: bool = True,
        dist_backend: str = "gloo",
        dist_init_method: str = "tcp://localhost:9100",
        rpc_init_method: str = "tcp://localhost:9101",
        dist_timeout: float = 60,
        rpc_timeout: float = 60,
    ) -> None:
        """Join the world, and return when all members have.

        Args:
            name: of this member, unique in the world.
            rank: its number, from 0; -1: ``RANK``, which torchrun sets.
            world_size: how many members there are; -1: ``WORLD_SIZE``, likewise.
            init_dist: whether :meth:`create_collective_group` is to be used.
            init_rpc: whether :meth:`create_rpc_group` is to be used.
            dist_backend: of collective groups that do not say: ``gloo``, ``nccl`` or ``shm``.
            dist_init_method: where members meet, ``tcp://HOST:PORT`` or ``env://``, the same in
                all; another in each world of a machine.
            rpc_init_method: where calls meet, likewise.
            dist_timeout: seconds that members wait for one another here; 0: no limit.
            rpc_timeout: seconds that a call may take that does not say; 0: no limit.

        Raises:
            RuntimeError: this process is in a world already.
            ConfigError: an argument cannot be, what members say does not fit together, or a port
                is in use; the message says what to write.
            CallTimeoutError: some members did not come in time; it names their ranks.
            PeerLostError: a member ended meanwhile.
        """
        settings = Settings.of(
            name,
            rank,
            world_size,
            # The members meet at both addresses, and need one.
            dist_init_method if init_dist or not init_rpc else rpc_init_method,
            rpc_init_method if init_rpc else dist_init_method,
            dist_timeout,
            rpc_timeout,
        )
        self.name, self.rank, self.world_size = name, settings.rank, settings.size
        self._init_dist, self._init_rpc = init_dist, init_rpc
        self._allow_insecure = settings.allow_insecure
        self._dist_backend = check_backend(dist_backend, "dist_backend")
        if init_dist:
            self._collective_config(self._dist_backend, settings.dist_timeout)
        self._lock = threading.Lock()
        self._stopped = False
        self._made: Counter[tuple[int, ...]] = Counter()
        self._collectives: list[Collective] = []
        self._groups: dict[str, RpcGroup] = {}
        # The runtime is left by whatever thread comes, as if by the one that entered it.
        self._context = contextvars.copy_context()
        self._scope = ExitStack()
        self._scope.callback(current.give_up, self)
        current.claim(self)
        try:
            config, member = joined(settings, self._scope)
            self.runtime: Runtime = build(config, member=member)
            self._run(self.runtime.open)
        except BaseException:
            self._scope.close()
            raise
        self._at_exit = multiprocessing.util.Finalize(
            None, self._leave_at_exit, exitpriority=_EARLY
        )

    @override
    def __reduce__(self) -> NoReturn:
        message = "a World is not picklable: make one in each process"
        raise RuntimeError(message)

    def stop(self) -> None:
        """Leave the world, when all members that live do so; safe to call again.

        Raises:
            PeerLostError: rank 0 has ended before.
        """
        with self._lock:
            if self._stopped or current.get_world() is not self:  # or it is the parent's, forked
                return
            self._stopped = True
        self._at_exit.cancel()
        with self._scope, ExitStack() as rest:
            rest.callback(self._run, self.runtime.close)
            for each in list(self._collectives):
                rest.callback(each.close)
                each.depart()
            self.runtime.group().meet("leave the world")

    def create_collective_group(
        self, ranks: Sequence[int], timeout: float = 60, backend: Any = None
    ) -> CollectiveGroup:
        """Return a group of some members that compute together, when all of them call this.

        A process that is not among *ranks* may call this too, as it must in torch; it gets a group
        in which nothing happens.

        Args:
            ranks: of its members.
            timeout: seconds that they wait for one another, here and in operations; 0: no limit.
            backend: ``gloo``, ``nccl`` or ``shm``; by default the world's.

        Raises:
            RuntimeError: the world was made without ``init_dist``.
            ConfigError: the backend cannot be had.
            CallTimeoutError: a member did not come in time.
            PeerLostError: a member ended.
            ValueError: there are no such ranks.
        """
        if not self._init_dist:
            message = "this world was made with init_dist=False: leave that out to have collectives"
            raise RuntimeError(message)
        wanted = self._checked(ranks)
        name = self._dist_backend if backend is None else check_backend(backend, "backend")
        config = self._collective_config(name, timeout or FOREVER)
        if self.rank not in wanted:
            return CollectiveGroup(None, None)
        native, group = self._opened(config, wanted, timeout)
        made = CollectiveGroup(native, wanted.index(self.rank))
        made.when_destroyed = partial(self._forget, native, group)
        return made

    def create_rpc_group(self, group_name: str, members: Sequence[str]) -> RpcGroup:
        """Return a group of some members that call one another, when all of them call this.

        Args:
            group_name: its name, unique in the world.
            members: the names of its members.

        Raises:
            RuntimeError: this process is not among *members*, is in a group of that name already,
                or the world was made without ``init_rpc``.
            PeerLostError: a member ended before it came.
            ValueError: others gave other members, or there is no such member.
        """
        if not self._init_rpc:
            message = "this world was made with init_rpc=False: leave that out to have RPC groups"
            raise RuntimeError(message)
        if unknown := sorted(set(members) - set(self.runtime.members)):
            message = f"{unknown[0]!r} is no member of this world; those are {self.get_members()}"
            raise ValueError(message)
        known = self._groups.get(group_name)
        if known is not None and not known.native.destroyed:
            message = (
                f"group {group_name!r} exists already: destroy() it first, or take another name"
            )
            raise RuntimeError(message)
        group = self._groups[group_name] = RpcGroup(group_name, members)
        return group

    def get_ranks(self) -> list[int]:
        """Return the ranks of all members."""
        return list(range(self.world_size))

    def get_members(self) -> list[str]:
        """Return the names of all members, sorted."""
        return sorted(self.runtime.members)

    # -- inside -------------------------------------------------------------------------------

    def _run(self, what: Callable[..., T], *args: Any) -> T:
        return self._context.run(what, *args)

    def _leave_at_exit(self) -> None:
        """Leave when no other thread of the program is left.

        Where multiprocessing calls this, in a child, those that run are yet to be waited for; some
        end only when the interpreter has told them to, right after this.
        """
        own = (threading.current_thread(), threading.main_thread())
        running = [each for each in threading.enumerate() if not (each.daemon or each in own)]
        if not running:
            self._abandon()
            return

        def leave() -> None:
            for each in running:
                each.join()
            self._abandon()

        threading.Thread(target=leave, name="leave-the-world").start()

    def _abandon(self) -> None:
        """Leave without waiting for anybody: the process ends."""
        why = "was left without stop(), for the process ended"
        error = ClosedError(f"the world of {self.name!r}", why, consequence=True)
        with self._scope, ExitStack() as rest:
            for each in list(self._collectives):
                rest.callback(each.close)
            self._run(self.runtime.__exit__, type(error), error, None)

    def _collective_config(self, backend: str, timeout: float) -> CollectiveConfig:
        raw = {"backend": backend, "timeout": timeout}
        if backend != "shm":
            raw["allow_insecure"] = self._allow_insecure
        return load(CollectiveConfig, raw)

    def _checked(self, ranks: Sequence[int]) -> list[int]:
        wanted = sorted(ranks)
        strangers = [rank for rank in wanted if rank not in range(self.world_size)]
        if strangers or not wanted or len(set(wanted)) < len(wanted):
            message = (
                f"a group has some of the ranks from 0 to {self.world_size - 1}, each once, "
                f"not {list(ranks)}"
            )
            raise ValueError(message)
        return wanted

    def _opened(
        self, config: CollectiveConfig, ranks: Sequence[int], timeout: float
    ) -> tuple[Collective, rpc.RpcGroup]:
        """Return an open collective of these ranks, and the group of calls that it stands on."""
        with self._lock:
            self._made[tuple(ranks)] += 1
            number = self._made[tuple(ranks)]
        runtime = self.runtime
        members = [runtime.members[rank] for rank in ranks]
        group = runtime.group(f"collective {list(ranks)} {number}", members, timeout=timeout)
        native = build(
            config,
            member=runtime.member,
            group=group,
            serializer=runtime.serializer,
            name="collective",
        )
        try:
            native.open()
        except BaseException:
            group.destroy()
            raise
        with self._lock:
            self._collectives.append(native)
        return native, group

    def _forget(self, native: Collective, group: rpc.RpcGroup) -> None:
        """Take note that a collective has been closed."""
        with self._lock:
            if native not in self._collectives:
                return
            self._collectives.remove(native)
        group.destroy()
