"""Runtime: one member's components, opened and closed together with those of the others."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from pparallel.builder.assembly import Assembly
from pparallel.builder.blueprint import Blueprint
from pparallel.builder.components import Components
from pparallel.builder.connection import Connection
from pparallel.builder.leaving import Leaving
from pparallel.errors import ClosedError, MissingDependencyError, is_consequence
from pparallel.interfaces.pool import Pool
from pparallel.interfaces.resource import Resource
from pparallel.registry import Registry
from pparallel.runtime.events import Events, MemberEnded, MemberStarted, PeerLost, Reported
from pparallel.runtime.member import Member
from pparallel.runtime.rpc import RpcGroup, context
from pparallel.runtime.stopping import StopSignal
from pparallel.runtime.stopping import current as current_signal
from pparallel.runtime.streams import Streams

if TYPE_CHECKING:
    import torch

    from pparallel.builder.runtime_config import RuntimeConfig
    from pparallel.config import BackendConfig
    from pparallel.interfaces.collective import Collective
    from pparallel.interfaces.launcher import Launcher
    from pparallel.interfaces.ordered_server import OrderedServer
    from pparallel.interfaces.placer import Placer
    from pparallel.interfaces.reducer import Reducer
    from pparallel.interfaces.serializer import Serializer
    from pparallel.interfaces.transport import Transport


class Runtime:
    """One member of a job and its components; made by :func:`pparallel.build`.

    Inside ``with``, a component opens when it is first asked for. With several members, entering
    opens the transport and all that serves or meets others, and returns when every member has
    done so. Leaving, in whatever thread or task, waits until every live member leaves, up to the
    config's ``close_timeout``; leaving by exception ends the job in all members and waits for none.

    Attributes:
        config: what it was built from, with this member's overrides.
        member: which member it is.
        events: what happens in it.
        streams: its own random streams, from the job's seed.
    """

    def __init__(
        self, config: RuntimeConfig, member: Member, registry: Registry, *, torchrun: bool = False
    ) -> None:
        self.config = config.of_member(member.name, registry)
        self.member = member
        self.events = Events(member.name)
        for listener in registry.listeners(member):
            self.events.subscribe(listener)
        self.streams = Streams(config.seed, "member", member.rank)
        self._blueprint = Blueprint(self.config, registry, torchrun=torchrun)
        self._blueprint.check()
        self._connection = Connection(
            member,
            lambda name: self._assembly.component(name),
            self._blueprint.component,
            self._ended,
            self._lost,
        )
        self._assembly = Assembly(
            member,
            registry,
            self._blueprint.component,
            self._connection.of_component,
            self.streams,
            self.events,
        )
        self._lock = threading.RLock()
        self._entered = False
        self._usable = False  # from entering until all members are done: others may call meanwhile
        self._closed = False
        self._stopping = threading.Event()
        self._end: BaseException | None = None  # why the job ended before this member was done
        self._components = Components(self._assembly)
        timeout = self.config.close_timeout
        self._leaving = Leaving(member, self._components, self._connection, timeout)
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
        endpoint = self._connection.made
        return self._stopping.is_set() or (endpoint is not None and endpoint.closed)

    def report(self, **values: object) -> None:
        """Tell whoever watches how this member is doing: ``rt.report(step=3, loss=0.2)``."""
        if self.events.listening:
            self.events.emit(Reported(self.name, values))

    # -- components ---------------------------------------------------------------------------

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
                self._connection.open()
                return self._assembly.component(name)
            component = self._assembly.component(name)
            self._open_made()
            if self._end is not None:  # it came while we opened: what was missed is made up for
                self._components.terminate_pools()
                raise copy.copy(self._end)
            return component

    def group(
        self,
        name: str | None = None,
        members: Sequence[str] | None = None,
        timeout: float = -1,
    ) -> RpcGroup:
        """Return a group of members that call one another, by default all members.

        A new *name* is a group to be entered: this returns when all its *members* have called it.

        Args:
            name: what it is called.
            members: the names of its members.
            timeout: seconds that entering may take: -1 is the transport's default, 0 no limit.

        Raises:
            ValueError: this member is not among *members*, or others gave other members.
            PeerLostError: a member ended before it entered.
            CallTimeoutError: a member did not enter in time.
        """
        with self._lock:
            self._check_entered()
            self._connection.open()
        return self._connection.group(name, members, timeout)

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
                self._leaving.together(self._all_are_done)
            else:
                if isinstance(exc, ClosedError) and self._end is not None:
                    # A pool that was ended cannot know why.
                    exc.consequence = is_consequence(self._end)
                self._stopping.set()  # the others leave because of this: they are not lost
                self._leaving.alone(exc)
        finally:
            self._usable = False
            self.events.emit(MemberEnded(self.name, exc))
            self.events.end()
            self._inside.close()

    def close(self) -> None:
        """Leave without an exception; safe to call again."""
        self.__exit__(None, None, None)

    def make_alone(self, config: BackendConfig[Any], given: Mapping[str, Any]) -> Any:
        """Return one component that opens this runtime and its parts when it is entered."""
        component = self._assembly.make(config.interface, config, given)
        has_parts = len(self._assembly.made) > 1 or self._connection.made is not None
        if isinstance(component, Resource) and has_parts:
            component.opens_within(lambda: self._with_parts_of(config.interface))
        return component

    @contextmanager
    def _with_parts_of(self, name: str) -> Iterator[None]:
        if self._entered:
            what = f"the {name.replace('_', ' ')}"
            raise ClosedError(what, "cannot be opened again: build another")
        component = self._assembly.made.pop(name)
        with self:
            self._open_made()
            yield
        self._assembly.made[name] = component

    # -- opening ------------------------------------------------------------------------------

    def _start(self) -> None:
        self._inside.enter_context(context.acting_for(self._connection.endpoint))
        if self.config.seed is not None and self._blueprint.place != "threads":
            self.streams.seed_globals()
        signal = current_signal()
        if signal is not None:
            self._inside.callback(signal.subscribe(self._told_to_stop))
        if self.world_size > 1:
            self._connection.open()
            for name in self._blueprint.meeting():
                self._assembly.component(name)
            self._open_made()
            self._connection.world().meet("entered")
        self.events.emit(MemberStarted(self.name, self.rank))

    def _open_made(self) -> None:
        """Open what was made and is not open yet, parts first."""
        if self._assembly.grouped:
            self._connection.open()
        self._components.open()

    def _check_entered(self) -> None:
        if not self._usable:
            why = "is closed" if self._closed else "is not entered: use it inside 'with'"
            raise ClosedError(f"the runtime of {self.name!r}", why)
        if self._end is not None:
            raise copy.copy(self._end)

    # -- closing ------------------------------------------------------------------------------

    def _all_are_done(self) -> None:
        self._usable = False

    def _lost(self, name: str, reason: str) -> None:
        if self._usable and not self.stopping:  # when the job ends, all leave
            self.events.emit(PeerLost(self.name, name, reason))

    def _told_to_stop(self, signal: StopSignal) -> None:
        reason = signal.reason
        why = f"is ending: {reason!r}" if reason else "is ending"
        if self._connection.made is not None:
            self._connection.made.end(ClosedError("the job", why, consequence=True))

    def _ended(self, reason: BaseException) -> None:
        """Wake what this member waits for, for the job has ended."""
        self._stopping.set()
        if isinstance(reason, ClosedError) and not reason.consequence:
            return  # this member closes, and its pools finish what they have
        self._end = reason
        self._components.terminate_pools()
        self.events.end()
