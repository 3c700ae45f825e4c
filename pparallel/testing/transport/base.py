"""What the parts of the transport's suite share."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

import pparallel
from pparallel.interfaces.launcher import LauncherConfig
from pparallel.interfaces.transport import TransportConfig
from pparallel.runtime.rpc import RpcGroup
from pparallel.testing.patience import PATIENCE
from pparallel.testing.suite import Suite, changed
from pparallel.testing.transport.called import GATES, SEEN

if TYPE_CHECKING:
    from pparallel.builder import Runtime

Run = Callable[..., list[Any]]


def first_member(program: Callable[..., None]) -> Callable[..., None]:
    """Have the first member run *program*, with the group of all, until which the others wait."""

    @wraps(program)
    def run(rt: Runtime, *args: Any) -> None:
        group: RpcGroup = rt.group()
        group.barrier(PATIENCE)
        if rt.rank == 0:
            program(group, *args)
        group.barrier(PATIENCE)

    return run


class TransportTests(Suite):
    """Starts members that are connected by the transport under test."""

    interface: ClassVar[str] = "transport"

    @pytest.fixture(autouse=True)
    def _forget(self) -> None:
        SEEN.clear()
        GATES.clear()

    @pytest.fixture
    def run(self, config: TransportConfig, launcher: LauncherConfig) -> Run:
        """Run a program in members, as many or as a config describes them; return its results.

        What is given by other names are changes of the transport's config.
        """

        def run(
            program: Callable[..., Any],
            *args: Any,
            members: Any = 2,
            serializer: str = "dill",
            transport: TransportConfig = config,
            **changes: Any,
        ) -> list[Any]:
            if isinstance(members, int):
                members = [f"m{rank}" for rank in range(members)]
            # A request that a broken transport loses must fail before the test's own limit.
            parts: dict[str, Any] = {
                "launcher": launcher,
                "transport": changed(transport, timeout=PATIENCE, **changes),
                "members": members,
                "serializer": {"backend": serializer},
                "close_timeout": PATIENCE,
                "reducer": {"backend": "local"},
            }
            try:
                return pparallel.launch(pparallel.RuntimeConfig(**parts), program, args)
            finally:
                for gate in list(GATES.values()):
                    gate.set()
                SEEN.clear()  # what arrived may lie in memory that lives as long as it does

        return run
