"""Runtime: one member's components, opened and closed together with those of the others."""

from __future__ import annotations

import copy
import logging
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from pparallel.builder.blueprint import Blueprint
from pparallel.builder.components import Components
from pparallel.errors import CallTimeoutError, ClosedError, MissingDependencyError, is_consequence
from pparallel.interfaces.resource import Resource
from pparallel.registry import Registry
from pparallel.runtime import stopping
from pparallel.runtime.events import Events, MemberEnded, MemberStarted, PeerLost, Reported
from pparallel.runtime.member import Member, MemberContext, acting_for
from pparallel.runtime.streams import Streams
from pparallel.runtime.timeouts import DEFAULT

if TYPE_CHECKING:
    import torch

    from pparallel.builder.runtime_config import RuntimeConfig
    from pparallel.config import BackendConfig
    from pparallel.interfaces.collective import Collective
    from pparallel.interfaces.launcher import Launcher
    from pparallel.interfaces.ordered_server import OrderedServer
    from pparallel.interfaces.placer import Placer
    from pparallel.interfaces.pool import Pool
    from pparallel.interfaces.reducer import Reducer
    from pparallel.interfaces.serializer import Serializer
    from pparallel.interfaces.transport import Transport, TransportConfig
    from pparallel.runtime.rpc import RpcGroup
    from pparallel.runtime.rpc.endpoint import Endpoint

logger = logging.getLogger(__name__)


class Runtime:
    """One member of a job and its components; made by :func:`pparallel.build`.

    Inside ``with``, a component opens when it is first asked for. With several members, entering
    opens the transport, the ordered server, and the collectives and reducers that the config gives,
    and returns when every member has done so. Leaving, in whatever thread or task, waits until
    every live member leaves, up to the config's ``close_timeout``; leaving by exception ends the
    job in all members and waits for none.

    Attributes:
        config: what it was built from, with this member's overrides.
        member: which member it is.
    """

    def __init__(
        self, config: RuntimeConfig, member: Member, registry: Registry, *, torchrun: bool = False
    ) -> None:
        self.config = config.of_member(member.name, registry)
        self.member = member
        self._registry = registry
        self._listeners = registry.listeners(member)
        self._blueprint = Blueprint(self.config, registry, torchrun=torchrun)
        self._blueprint.check()
        self._context = MemberContext(member)
        self._connected = False  # whether the endpoint, once there is one, has been opened
        self._groups: dict[str | None, RpcGroup] = {}
        self._lock = threading.RLock()
        self._entered = False
        self._pid = 0  # of the process that has entered
        self._usable = False  # from entering until all members are done: others may call meanwhile
        self._closed = False
        self._stopping = False
        self._end: BaseException | None = None  # why the job ended before this member was done
        self._inside = ExitStack()

    # -- who ----------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """This member's name."""
        return self.member.name

    @property
    def rank(self) -> int:
        """This member's number, from 0."""
        return self.member.rank

    @property
    def local_rank(self) -> int:
        """This member's number among those of its machine."""
        return self.member.local_rank

    @property
    def world_size(self) -> int:
        """How many members the job has."""
        return self.member.world_size

    @property
    def members(self) -> list[str]:
        """The names of all members, by rank."""
        return list(self.member.names)

    @property
    def device(self) -> torch.device:
        """The device that this member should compute on: a GPU of its own, or the CPU.

        Raises:
            MissingDependencyError: torch is not installed.
        """
        try:
            import torch
        except ImportError as error:
            install = "pip install 'pparallel[torch]'"
            raise MissingDependencyError("rt.device", str(error), install) from error
        count = torch.cuda.device_count()
        return torch.device("cuda", self.local_rank % count) if count else torch.device("cpu")

    @property
    def stopping(self) -> bool:
        """Whether the job is ending; a long loop should look now and then."""
        endpoint = self._context.endpoint
        return self._stopping or (endpoint is not None and endpoint.closed)

    def report(self, **values: object) -> None:
        """Tell whoever watches how this member is doing: ``rt.report(step=3, loss=0.2)``."""
        if self.events.listening:
            self.events.emit(Reported(self.name, values))

    @cached_property
    def events(self) -> Events:
        """The stream of what happens in this member."""
        events = Events(self.name)
        for listener in self._listeners:
            events.subscribe(listener)
        return events

    @cached_property
    def streams(self) -> Streams:
        """This member's own random streams, from the job's seed."""
        return Streams(self.config.seed, "member", self.rank)

    # -- components ---------------------------------------------------------------------------

    @cached_property
    def _components(self) -> Components:
        return Components(
            self.member,
            self._registry,
            self._blueprint.component,
            self._group_of_all,
            self.streams,
            self.events,
        )

    @property
    def serializer(self) -> Serializer:
        """Turns objects into bytes and back."""
        return cast("Serializer", self["serializer"])

    @property
    def pool(self) -> Pool:
        """Runs functions on this member's workers."""
        return cast("Pool", self["pool"])

    @property
    def transport(self) -> Transport:
        """Carries the requests of :meth:`group`."""
        return cast("Transport", self["transport"])

    @property
    def ordered_server(self) -> OrderedServer:
        """The versioned store that all members share."""
        return cast("OrderedServer", self["ordered_server"])

    @property
    def reducer(self) -> Reducer:
        """Trains one model with all members."""
        return cast("Reducer", self["reducer"])

    @property
    def placer(self) -> Placer:
        """Assigns models to devices."""
        return cast("Placer", self["placer"])

    @property
    def collective(self) -> Collective:
        """Operations that all members do together; the first use is one of them."""
        return cast("Collective", self["collective"])

    @property
    def launcher(self) -> Launcher:
        """Starts ranks."""
        return cast("Launcher", self["launcher"])

    def __getitem__(self, name: str) -> Any:
        """Return the component of that name: an interface's, or one of the config's ``extra``.

        Raises:
            ClosedError: the runtime is not entered.
            KeyError: there is none of that name.
        """
        with self._lock:
            self._check_entered()
            if name == "transport":
                self._connect()
                return self._components[name]
            component = self._components[name]
            self._open_made()
            if self._end is not None:  # it came while we opened: what was missed is made up for
                self._components.terminate_pools()
                raise copy.copy(self._end)
            return component

    def group(
        self,
        name: str | None = None,
        members: Sequence[str] | None = None,
        timeout: float | None = DEFAULT,
    ) -> RpcGroup:
        """Return a group of members that call one another, by default all members.

        A new *name* is a group to be entered: this returns when all its *members* have called it.

        Args:
            name: what it is called.
            members: the names of its members.
            timeout: seconds that entering may take; ``None`` for no limit; by default the
                transport's ``timeout``.

        Raises:
            ValueError: this member is not among *members*, or others gave other members.
            PeerLostError: a member ended before it entered.
            CallTimeoutError: a member did not enter in time.
        """
        with self._lock:
            self._check_entered()
            endpoint = self._connect()
        from pparallel.runtime.rpc.directory import WORLD
        from pparallel.runtime.rpc.group import enter

        wanted = self.members if members is None else list(members)
        if name is None and members is not None:
            raise ValueError(f"a group of {wanted} needs a name")
        name = name or WORLD
        known = self._groups.get(name)
        if known is None and name == WORLD:
            known = self._groups.setdefault(name, self._group_of_all(name))
        if known is not None and (name == WORLD or not known.destroyed):
            if members is not None and sorted(wanted) != known.get_group_members():
                message = f"group {name!r} has members {known.get_group_members()}, not {wanted}"
                raise ValueError(message)
            return known
        group = self._groups[name] = enter(endpoint, name, wanted, timeout)
        return group

    # -- life ---------------------------------------------------------------------------------

    def open(self) -> None:
        """As entering with ``with``."""
        self.__enter__()

    def __enter__(self) -> Self:
        with self._lock:
            if self._entered or self._closed:
                why = "is closed: build another" if self._closed else "is entered already"
                raise ClosedError(f"the runtime of {self.name!r}", why)
            self._entered = self._usable = True
            self._pid = os.getpid()
        try:
            self._start()
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        with self._lock:
            if self._closed or not self._entered:
                return
            self._closed = True
        try:
            if exc is None:
                self._leave()
            else:
                self._fail(exc)
        finally:
            self._usable = False
            self._stopping = self._context.is_closed = True
            self.events.emit(MemberEnded(self.name, exc))
            self.events.end()
            self._inside.close()

    def close(self) -> None:
        """Leave without an exception; safe to call again."""
        self.__exit__(None, None, None)

    def make_alone(self, config: BackendConfig[Any], given: Mapping[str, Any]) -> Any:
        """Return one component that opens this runtime and its parts when it is entered."""
        name = config.interface
        component = self._components.make(name, config, given)
        has_parts = len(self._components) > 1 or self._context.endpoint is not None
        if isinstance(component, Resource) and has_parts:
            component.opens_within(lambda: self._with_parts_of(name))
        return component

    @contextmanager
    def _with_parts_of(self, name: str) -> Iterator[None]:
        if self._entered:
            what = f"the {name.replace('_', ' ')}"
            raise ClosedError(what, "cannot be opened again: build another")
        with self:
            self._open_made(but=name)
            yield

    # -- opening ------------------------------------------------------------------------------

    def _start(self) -> None:
        self._inside.enter_context(acting_for(self._context))
        _ = self._components  # and all that is made once, before other threads ask for it
        if self.config.seed is not None and self._blueprint.place != "threads":
            self.streams.seed_globals()
        self._inside.callback(stopping.follow(self._stop))
        if self.world_size > 1:
            self._connect()
            for name in self._blueprint.meeting():
                self._components[name]
            self._open_made()
            self._group_of_all().meet("entered")
        self.events.emit(MemberStarted(self.name, self.rank))

    def _open_made(self, but: str | None = None) -> None:
        """Open what was made and is not open yet, parts first; all *but* one."""
        if self._context.endpoint is not None:  # a component was handed a group
            self._connect()
        self._components.open(but)

    def _check_entered(self) -> None:
        if not self._usable:
            why = "is closed" if self._closed else "is not entered: use it inside 'with'"
            raise ClosedError(f"the runtime of {self.name!r}", why)
        if self._pid != os.getpid():
            why = f"belongs to process {self._pid}, of which this one is a fork: build another"
            raise ClosedError(f"the runtime of {self.name!r}", why)
        if self._end is not None:
            raise copy.copy(self._end)

    # -- the other members --------------------------------------------------------------------

    def _group_of_all(self, name: str | None = None) -> RpcGroup:
        """Return a group of all members, by default their world; it may not be open."""
        from pparallel.runtime.rpc import RpcGroup
        from pparallel.runtime.rpc.directory import WORLD

        return RpcGroup(self._endpoint(), name or WORLD, self.member.names)

    def _endpoint(self) -> Endpoint:
        """Return what calls the others and is called, made when it is first needed."""
        endpoint: Endpoint | None = self._context.endpoint
        if endpoint is None:
            from pparallel.runtime.rpc.endpoint import Endpoint

            config = cast("TransportConfig", self._blueprint.component("transport"))
            parts = self._components["transport"], self._components["serializer"]
            endpoint = Endpoint(*parts, self._context, config)
            endpoint.when_ended(self._ended)
            if self._end is not None:  # it came before there was an endpoint to end
                endpoint.end(self._end)
        return endpoint

    def _connect(self) -> Endpoint:
        """Return the endpoint, open."""
        endpoint = self._endpoint()
        if not self._connected:
            self._connected = True
            endpoint.open()
            endpoint.when_lost(self._lost)
            if not self._usable:  # this member has left meanwhile, in another thread
                endpoint.close()
        return endpoint

    def _lost(self, name: str, reason: str) -> None:
        if self._usable and not self.stopping:  # when the job ends, all leave
            self.events.emit(PeerLost(self.name, name, reason))

    # -- the end ------------------------------------------------------------------------------

    def _leave(self) -> None:
        """Close when all members are done: first what calls others, then what they call."""
        with ExitStack() as last:
            last.callback(self._disconnect)
            if (endpoint := self._context.endpoint) is not None:
                endpoint.leave()
            self._components.depart()
            self._meet()
            self._usable = False
            self._components.close(lambda: self._meet("leaving/closed"))
            if endpoint is not None:
                endpoint.let_others_leave()

    def _fail(self, error: BaseException) -> None:
        """Close because of *error*, which ends the job for the others too, unless it has ended."""
        if isinstance(error, ClosedError) and self._end is not None:
            error.consequence = is_consequence(self._end)  # a pool that was ended cannot know why
        self._stopping = True  # the others leave because of this: they are not lost
        if self._connected and not is_consequence(error):
            self._endpoint().fail(error)
        self._end_job(f"is ending: {error!r}")
        self._components.abandon(error)
        self._disconnect()

    def _meet(self, stage: str | None = None) -> None:
        """Wait for the others at *stage* of leaving, by default where their programs have ended."""
        if self.world_size == 1:
            return
        from pparallel.runtime.rpc.directory import DONE

        timeout = self.config.close_timeout
        try:
            self._group_of_all().meet(stage or DONE, timeout)
        except CallTimeoutError:
            message = "%s leaves after %s s although other members have not"
            logger.warning(message, self.name, timeout)

    def _disconnect(self) -> None:
        if (endpoint := self._context.endpoint) is not None:
            endpoint.close()

    def _stop(self, reason: BaseException | None) -> None:
        self._end_job(f"is ending: {reason!r}" if reason else "is ending")

    def _end_job(self, why: str) -> None:
        """Wake what this member waits for; an endpoint that is made meanwhile sees the end."""
        reason = ClosedError("the job", why, consequence=True)
        if self._context.endpoint is None:
            self._ended(reason)
        if (endpoint := self._context.endpoint) is not None:
            endpoint.end(reason)

    def _ended(self, reason: BaseException) -> None:
        """Wake what this member waits for, for the job has ended; the first reason counts."""
        self._stopping = True
        if self._end is not None or (isinstance(reason, ClosedError) and not reason.consequence):
            return  # by itself this member closes, and its pools finish what they have
        self._end = reason
        self._components.terminate_pools()
        self.events.end()
