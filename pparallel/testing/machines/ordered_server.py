"""The machine of ordered servers."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from typing_extensions import override

from pparallel.builder import build as build_component
from pparallel.errors import ClosedError, SerializationError
from pparallel.interfaces.ordered_server import OrderedServer, OrderedServerConfig
from pparallel.testing.linearizability.model import MODEL, State
from pparallel.testing.machines.machine import Machine
from pparallel.testing.machines.values import (
    HAS_NUMPY,
    KEYS,
    PUSHES,
    VERSIONS,
    Push,
    anew,
    are_equal,
    array_of,
    spoil,
    unhashable,
    value_of,
)
from pparallel.testing.machines.waiter import Waiter
from pparallel.testing.suite import changed

Config = OrderedServerConfig | Callable[[], OrderedServerConfig]

MOST_WAITERS = 3
MOST_PUSHES = 4  #: in a row

_clients = _which = st.integers(0, 63)
_seldom = st.integers(0, 1)  #: 0: do it, so that there is something to undo
_depths = st.sampled_from([3, 2, 4, 3, 2, 1])
_maybe = st.none() | VERSIONS


class OrderedServerMachine(Machine):
    """Does what a server's users do, and does the same to a model that is a dictionary.

    The model holds, for each key, its versions with the number of the value pushed under each.
    Subclasses are made by :func:`ordered_server_machine`.

    Attributes:
        config: returns the server's config, for each sequence.
        build: makes a server of a config.
        clients: how many servers of the same config share what is held.
        durable: whether what is held outlives the server.
    """

    config: ClassVar[Callable[[], OrderedServerConfig]]
    build: ClassVar[Callable[..., OrderedServer]] = staticmethod(build_component)
    clients: ClassVar[int] = 1
    durable: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.depth = 1
        self.servers: list[OrderedServer] = []
        self.opened: list[ExitStack] = []
        self.held: dict[Hashable, State] = {}
        self.waiters: list[Waiter] = []
        self.made: dict[int, tuple[bool, int]] = {}  # of each value: whether an array, and its size

    @initialize(
        depth=st.sampled_from([3, 2, 4, 3, 2, 1]), pushes=st.lists(PUSHES, max_size=MOST_PUSHES)
    )
    def begin(self, depth: int, pushes: list[Push]) -> None:
        """Open the servers, delete what an earlier sequence left, and push something."""
        self.depth = depth
        self._config = changed(type(self).config(), version_depth=depth)
        for _ in range(self.clients):
            self.opened.append(ExitStack())
            self.servers.append(self._open(self.opened[-1]))
        for key in self.servers[0].keys():  # noqa: SIM118 - a server is no mapping
            self.servers[0].delete(key)
        for each in pushes:
            self._push(self.servers[0], "k", each)

    # -- compare and push ---------------------------------------------------------------------

    @rule(client=_clients, key=KEYS, pushes=st.lists(PUSHES, min_size=1, max_size=MOST_PUSHES))
    def push(self, client: int, key: Hashable, pushes: list[Push]) -> None:
        """Push, mostly after the newest version."""
        for each in pushes:
            self._push(self._at(client), key, each)
            self._see_who_wakes()

    @rule(client=_clients, key=KEYS, version=VERSIONS, what=st.integers(0, 4))
    def push_what_is_refused(
        self, client: int, key: Hashable, version: Hashable, what: int
    ) -> None:
        """Push what is no version, key or value: it changes nothing."""
        held = self.held.get(key)
        newest = held[-1][0] if held else None
        refused: list[tuple[type[Exception], tuple[Any, ...]]] = [
            (ValueError, (key, 0, None, newest)),
            (TypeError, (key, 0, unhashable(version), newest)),
            (TypeError, (unhashable(key), 0, version, newest)),
            (SerializationError, (key, _unstorable(), version, newest)),
            (SerializationError, (key, [0, _unstorable()], newest or version, newest)),
        ]
        error, arguments = refused[what]
        with pytest.raises(error):
            self._at(client).push(*arguments)

    # -- read ---------------------------------------------------------------------------------

    @rule(client=_clients, key=KEYS, version=_maybe)
    def pull(self, client: int, key: Hashable, version: Hashable | None) -> None:
        """Pull a version or the newest, held or not, and ask for what is newer."""
        self._pull(self._at(client), key, version)

    @rule(client=_clients)
    def pull_all(self, client: int) -> None:
        """Pull every version of every key."""
        for key, state in list(self.held.items()):
            for version, _ in (*state, (None, 0)):
                self._pull(self._at(client), key, version)

    @precondition(lambda _: HAS_NUMPY)
    @rule(client=_clients, key=KEYS, which=_which, fits=st.booleans())
    def pull_into(self, client: int, key: Hashable, which: int, fits: bool) -> None:
        """Pull a version into an array, which is filled as a whole or not at all."""
        held = [None, *(each for each, _ in self.held.get(key, ()))]
        version = held[which % len(held)]
        expected = self._model(key, "pull", version)
        is_array, size = self.made[expected[0]] if expected else (True, 3)
        into = array_of(-1, size if fits else size + 1)
        server = self._at(client)
        if expected is not None and not (fits and is_array):
            with pytest.raises(ValueError, match="value"):
                server.pull(anew(key), anew(version), into=into)
            assert (into == -1).all(), "something was copied into what does not fit"
            return
        found = server.pull(anew(key), anew(version), into=into)
        if expected is None:
            assert found is None
            assert (into == -1).all()
        else:
            assert found is not None
            assert found[0] is into
            assert (into == expected[0]).all(), f"{into} is not what was pushed: {expected[0]}"
            assert found[1] == expected[1]

    @precondition(lambda self: len(self.waiters) < MOST_WAITERS)
    @rule(client=_clients, key=KEYS, version=_maybe, newest=st.booleans())
    def begin_to_wait(
        self, client: int, key: Hashable, version: Hashable | None, newest: bool
    ) -> None:
        """Have a thread wait, mostly for what is newer than the newest."""
        held = self.held.get(key)
        if newest and held:
            version = held[-1][0]
        self.waiters.append(Waiter(self._at(client), anew(key), anew(version)))
        self._see_who_wakes()

    # -- delete, and open again ---------------------------------------------------------------

    @rule(client=_clients, key=KEYS, unless=_seldom)
    def delete(self, client: int, key: Hashable, unless: int) -> None:
        """Delete a key, now and then."""
        if unless:
            return
        assert self._at(client).delete(anew(key)) is self._model(key, "delete")

    @precondition(lambda self: self.durable)
    @rule(client=_clients, unless=_seldom)
    def open_again(self, client: int, unless: int) -> None:
        """Close one server, whose waiters wake, and open another in its place."""
        if unless:
            return
        which = client % len(self.servers)
        self._close(which)
        self.servers[which] = self._open(self.opened[which])

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        """Compare the keys and versions that each server lists; spoil the lists."""
        for server in self.servers:
            keys = server.keys()
            assert sorted(map(repr, keys)) == sorted(map(repr, self.held))
            keys.append("not a key")
            for key, state in self.held.items():
                versions = server.versions(anew(key))
                assert versions == [version for version, _ in state], f"versions of {key!r}"
                versions.clear()

    @invariant()
    def nobody_wakes_for_nothing(self) -> None:
        """Look that those who wait do."""
        for each in self.waiters:
            assert each.is_waiting(), (
                f"wait({each.key!r}, {each.version!r}) ended with {each.outcome()!r}, and the "
                f"versions are {[version for version, _ in self.held.get(each.key, ())]}"
            )

    @override
    def end(self, *, check: bool) -> None:
        try:
            while self.servers:
                self._close(len(self.servers) - 1, check=check)
                self.servers.pop()
        finally:
            for each in self.opened:
                each.close()

    # -- inside -------------------------------------------------------------------------------

    def _at(self, client: int) -> OrderedServer:
        return self.servers[client % len(self.servers)]

    def _open(self, stack: ExitStack) -> OrderedServer:
        server: OrderedServer = stack.enter_context(type(self).build(self._config))
        return server

    def _close(self, which: int, *, check: bool = True) -> None:
        """Close a server: those who wait for it wake with ``ClosedError``."""
        self.opened[which].close()
        ended = [each for each in self.waiters if each.server is self.servers[which]]
        self.waiters = [each for each in self.waiters if each not in ended]
        for each in ended if check else ():
            outcome = each.outcome()
            assert isinstance(outcome, ClosedError), f"a waiter of a closed server got {outcome!r}"

    def _model(self, key: Hashable, name: str, *arguments: Any) -> Any:
        """Do the same to the model; return what it returns."""
        result, state = MODEL[name](self.held.get(key, ()), self.depth, *arguments)
        if state:
            self.held[key] = state
        else:
            self.held.pop(key, None)
        return result

    def _push(self, server: OrderedServer, key: Hashable, push: Push) -> None:
        """Push, and spoil the value afterwards."""
        held = [each for each, _ in self.held.get(key, ())]
        version, prev_version = push.version, push.prev_version
        if held and push.after != "any":
            prev_version = held[-1]
        if push.after == "stale":
            prev_version = held[-2] if len(held) > 1 else push.prev_version
        if held and push.after == "itself":
            version = held[-1]
        if held and push.after == "oldest":
            version = held[0]
        number = len(self.made) + 1
        self.made[number] = (push.is_array and HAS_NUMPY, push.size)
        value = self._value(number)
        found = server.push(anew(key), value, anew(version), anew(prev_version))
        spoil(value)
        accepted = self._model(key, "push", number, version, prev_version)
        assert found is accepted, (
            f"push({key!r}, ..., {version!r}, {prev_version!r}) returned {found!r}, and the "
            f"versions were {held}"
        )

    def _pull(self, server: OrderedServer, key: Hashable, version: Hashable | None) -> None:
        """Pull a version, and ask for what is newer than it; spoil what comes."""
        found = server.pull(anew(key), anew(version))
        self._check_found(found, self._model(key, "pull", version))
        found = server.wait(anew(key), anew(version), timeout=0)
        self._check_found(found, self._model(key, "wait", version, 0))

    def _value(self, number: int) -> Any:
        is_array, size = self.made[number]
        return array_of(number, size) if is_array else value_of(number, size)

    def _see_who_wakes(self) -> None:
        """Have those return whose key has a newer version than theirs."""
        woken = list(self._with_news())
        self.waiters = [each for each in self.waiters if each not in woken]
        for each in woken:
            found = each.outcome()
            assert not isinstance(found, BaseException), f"a waiter got {found!r}"
            self._check_found(found, self._model(each.key, "wait", each.version, 0))

    def _with_news(self) -> Iterator[Waiter]:
        for each in self.waiters:
            if self._model(each.key, "wait", each.version, 0) is not None:
                yield each

    def _check_found(self, found: Any, expected: tuple[int, Hashable] | None) -> None:
        """Compare what came with the model's number and version, and spoil it."""
        if expected is None:
            assert found is None, f"{found!r} came, and nothing was to"
            return
        assert found is not None, f"nothing came, and version {expected[1]!r} was to"
        number, version = expected
        assert found[1] == version, f"version {found[1]!r} came instead of {version!r}"
        value, pushed = found[0], self._value(number)
        # Not compared in the assertion: pytest would list what differs, line by line, when it is
        # verbose or runs in CI, and of large values that takes minutes.
        is_same = are_equal(value, pushed)
        assert is_same, (
            f"version {version!r} has another value: {reprlib.repr(value)}, and "
            f"{reprlib.repr(pushed)} was pushed"
        )
        spoil(value)


def ordered_server_machine(
    config: Config,
    *,
    build: Callable[..., OrderedServer] = build_component,
    clients: int = 1,
    durable: bool = False,
) -> type[OrderedServerMachine]:
    """Return a machine for the server of *config*, for :func:`run_machine`.

    Each sequence starts with an empty server of a depth between 1 and 4: what an earlier one left
    is deleted, so give it a place of its own.

    Args:
        config: the server's config, or a function that returns one for each sequence.
        build: makes a server of a config; for a backend that is not registered.
        clients: how many servers are built of the config and share what is held, as those of one
            file or database do.
        durable: whether what is held outlives the servers, which are now and then closed then.
    """
    if callable(config):  # which in a class would be taken for a method
        make = config
    else:

        def make() -> OrderedServerConfig:
            return config

    attributes = {
        "config": staticmethod(make),
        "build": staticmethod(build),
        "clients": clients,
        "durable": durable,
        "__doc__": OrderedServerMachine.__doc__,
    }
    return type("OrderedServerMachine", (OrderedServerMachine,), attributes)


def _unstorable() -> Iterator[int]:
    yield 0
