"""``PushPullGradServer``: members push gradients, reducers step on them, all pull the result."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from pparallel.builder import build, load
from pparallel.compat.machin.server.groups import Group, needed, parts_in, require_member
from pparallel.compat.machin.server.ordered_server import (
    FromFirstStep,
    OrderedServerSimple,
    OrderedServerSimpleImpl,
    as_native,
)
from pparallel.errors import ClosedError, DirectoryError
from pparallel.interfaces.reducer import Reducer, ReducerConfig
from pparallel.runtime.events import Event, Events, Reduced

if TYPE_CHECKING:
    import torch
    from torch.nn import Module

__all__ = ["PushPullGradServer", "PushPullGradServerImpl"]

logger = logging.getLogger(__name__)


class PushPullGradServer:
    """Pushes gradients to the reducers of a server, and pulls parameters, from any member.

    It can be sent to other members, and asks nothing of anybody before it is used.

    Args:
        server_name: of the server.
        group: in which that was made.
        model_name: the key on the ordered server.
        secondary_reducers: names of the members that take gradients.
        o_server: where the parameters are: any object with ``push`` and ``pull``.
    """

    def __init__(
        self,
        server_name: str,
        group: Group,
        model_name: str,
        secondary_reducers: Sequence[str],
        o_server: Any,
    ) -> None:
        self.server_name, self.group, self.model_name = server_name, group, model_name
        self.secondary_reducers, self.o_server = list(secondary_reducers), o_server
        self._primary: str | None = None
        self._client: Reducer | None = None
        self._lock = threading.Lock()

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        args = (self.server_name, self.group, self.model_name, self.secondary_reducers)
        return _of_primary, (self._primary, *args, self.o_server)

    def push(self, model: Module) -> bool:
        """Hand in the gradients of *model*, then pull; they are cleared.

        It waits for the server to start, and while as many gradients wait as it lets wait.

        Returns:
            Whether they were taken: then they are reduced, unless the reducer that has them ends.
            False: the server was stopped.

        Raises:
            ValueError: a trainable parameter has no gradient, or *model* is not like the one that
                is managed.
            CallTimeoutError: the server has not been started in the time that calls have.
            DirectoryError: a member that is to reduce has not made its server.
            PeerLostError: the primary reducer ended, or all secondary ones.
        """
        client = self._reducer()
        try:
            taken = client.push(model)
        except DirectoryError as error:
            message = (
                f"{error}: a PushPullGradServerImpl {self.server_name!r} is to be made in each of"
                f" its reducers, {', '.join(self.secondary_reducers)}"
            )
            raise DirectoryError(message) from error
        except ClosedError as error:
            if needed(self.group).closed:
                raise
            logger.warning("A gradient for server %r was not taken: %s", self.server_name, error)
            taken = False
        self.pull(model)
        return taken

    def pull(self, model: Module) -> bool:
        """Take the newest parameters into *model*; its gradients are cleared.

        Returns:
            Whether there are any: there are none before the first step is reduced, and the model
            stays as it is.

        Raises:
            ValueError: they do not fit the model.
            PeerLostError: the member that keeps the parameters ended.
        """
        model.zero_grad(set_to_none=True)
        return self._reducer().pull(model)

    def _reducer(self) -> Reducer:
        """Return this member's end of the server, which is made when it is first used."""
        with self._lock:
            if self._client is None:
                native = needed(self.group)
                if self._primary is None:
                    self._primary = native.get_paired(self.server_name).owner_name()
                self._client = _reducer(self, self._primary, {"role": "client"})
                self._client.open()
                # Who ends is told to it for as long as it lives; nobody asks to be rid of it.
                weakref.finalize(self, self._client.close).atexit = False
            return self._client


class PushPullGradServerImpl:
    """Reduces gradients in the member that makes it; made on the primary and all secondaries.

    The primary names a :class:`PushPullGradServer` *server_name*, which the others get by
    ``group.get_paired(server_name).to_here()``. When the primary starts, so do the secondaries that
    were made; when it stops, they hand on what they have, and it steps on that.

    Args:
        server_name: under which the accessor is paired.
        group: of the reducers and those that will push.
        model_name: the key on the ordered server.
        primary_reducer: name of the member that steps the optimizer; by default the first.
        secondary_reducers: names of those that take gradients and sum them; by default all members.
        o_server: where the parameters are published: any object with ``push`` and ``pull`` that can
            be sent to those that will pull; by default one that the primary keeps.
        reduce_method: ``"sum"`` or ``"mean"``.
        reduce_device: where sums are made.
        reduce_batch_size: how many messages make a sum, at each level.
        max_queue_size: how many may wait at each level; who pushes more waits.

    Attributes:
        started: whether :meth:`start` was called.

    Raises:
        ConfigError: an option is wrong, or a reducer is not in *group*.
        DirectoryError: the name is taken.
        ValueError: this member is not in *group*.
    """

    REDUCE_MASTER = 0
    REDUCE_SLAVE = 1

    def __init__(
        self,
        server_name: str,
        group: Group,
        model_name: str = "model",
        primary_reducer: str | None = None,
        secondary_reducers: Sequence[str] | None = None,
        o_server: Any = None,
        reduce_method: str = "sum",
        reduce_device: torch.device | str = "cpu",
        reduce_batch_size: int = 4,
        max_queue_size: int = 64,
    ) -> None:
        require_member(group)
        members = group.get_group_members()
        self.server_name, self.group, self.model_name = server_name, group, model_name
        self.primary_reducer = primary_reducer or members[0]
        self.secondary_reducers = list(
            members if secondary_reducers is None else secondary_reducers
        )
        self.started = False
        self._is_primary = group.get_cur_name() == self.primary_reducer
        self.o_server = self._own_o_server() if o_server is None else o_server
        self._model: Module | None = None
        self._reducer = _reducer(
            self,
            self.primary_reducer,
            {
                "role": "server",
                "reduce_method": reduce_method,
                "reduce_device": str(reduce_device),
                "reduce_batch_size": reduce_batch_size,
                "max_queue_size": max_queue_size,
            },
            self._stepped,
        )
        # The name is taken first: to open a second server under it would hide the first.
        group.register(f"{server_name}/{group.get_cur_name()}/counters", self._reducer.counters)
        self._reducer.open()
        if self._is_primary:
            args = (server_name, group, model_name, self.secondary_reducers, self.o_server)
            group.pair(server_name, _of_primary(self.primary_reducer, *args))

    def start(self) -> None:
        """Begin to reduce; on the primary, which all others follow.

        Raises:
            RuntimeError: the primary was given no model, or was stopped before.
        """
        self._reducer.start()
        self.started = True

    def stop(self) -> None:
        """Take no more, and reduce what was taken; on the primary for all reducers.

        Raises:
            Exception: what kept gradients from being reduced.
        """
        self._reducer.stop()

    def watch(self) -> None:
        """Raise what the reducing thread raised; do nothing if all is well.

        Raises:
            Exception: what it raised.
            PeerLostError: the primary reducer ended.
        """
        self._reducer.watch()

    def manage_model(self, model: Module, optimizer: Any, lr_scheduler: Any = None) -> None:
        """Have *optimizer* step *model* on the gradients that come; before :meth:`start`.

        Nobody else may change *model* until :meth:`stop`. Its ``pp_version`` says how many steps
        were made of it.

        Args:
            model: the model.
            optimizer: anything whose ``step()`` steps the model's parameters.
            lr_scheduler: anything with ``step()``, which is called after each step.

        Raises:
            RuntimeError: this member is not the primary reducer, or it has started.
        """
        self._reducer.manage_model(model, optimizer, lr_scheduler)
        model.pp_version = 0  # type: ignore[assignment]
        self._model = model

    def _own_o_server(self) -> OrderedServerSimple:
        name = f"{self.server_name}_o_server"
        if self._is_primary:
            return OrderedServerSimpleImpl(name, self.group).accessor
        return OrderedServerSimple.at(name, self.group, self.primary_reducer)

    def _stepped(self, event: Event) -> None:
        if isinstance(event, Reduced) and self._model is not None:
            self._model.pp_version = event.version  # type: ignore[assignment]


def _reducer(
    of: PushPullGradServer | PushPullGradServerImpl,
    primary: str,
    options: dict[str, Any],
    listener: Any = None,
) -> Reducer:
    """Return one member's part in a gradient server, not open yet."""
    native = needed(of.group)
    parts = parts_in(native, of.server_name)
    events = Events(native.get_cur_name())
    if listener is not None:
        events.subscribe(listener, Reduced)
    config = {
        "backend": "grad_server",
        "primary": primary,
        "secondaries": of.secondary_reducers,
        "key": of.model_name,
        **options,
    }
    o_server = as_native(of.o_server)
    if options["role"] == "server":
        o_server = FromFirstStep(o_server)
    return build(
        load(ReducerConfig, config),
        ordered_server=o_server,
        name=of.server_name,
        events=events,
        **parts,
    )


def _of_primary(primary: str | None, *args: Any) -> PushPullGradServer:
    accessor = PushPullGradServer(*args)
    accessor._primary = primary
    return accessor
