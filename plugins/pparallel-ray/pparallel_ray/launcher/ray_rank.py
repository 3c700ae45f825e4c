"""The process of a rank that Ray has placed."""

from __future__ import annotations

from typing import Any

import ray
from typing_extensions import override

from pparallel.interfaces.launcher import RankSpec
from pparallel.runtime.ranks.rank import Rank


class RayRank(Rank):
    """The process of a rank, and the actor that looks after it. Any thread may use it.

    Attributes:
        actor: its supervisor.
        node: Ray's id of its machine.
        host: the address of that machine.
    """

    def __init__(self, spec: RankSpec, actor: Any) -> None:
        super().__init__(spec)
        self.actor = actor
        self.node, self.host = "", ""

    def listen(self) -> Any:
        """Return a reference to what is said of it next."""
        return self.actor.listen.remote()

    def tell(self, message: bytes) -> None:
        """Send it something; never waits."""
        if self.is_alive() and ray.is_initialized():
            self.actor.tell.remote(message)

    @override
    def signal(self, number: int) -> None:
        if self.is_alive() and ray.is_initialized():
            self.actor.signal.remote(number)

    def end_supervisor(self) -> None:
        """End its supervisor by force, and so itself; safe to call again."""
        if ray.is_initialized():
            ray.kill(self.actor)

    @override
    def described(self) -> str:
        return f"{super().described()} at {self.host}"
