"""What members do in the tests of the servers that programs for machin know."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from reducer_models import one_weight, weight
from torch import Tensor, nn
from typing_extensions import override

import pparallel
from pparallel.compat.machin.server import PushPullGradServerImpl
from pparallel.errors import PeerLostError
from pparallel.testing.patience import until

if TYPE_CHECKING:
    from pparallel import RpcGroup
    from pparallel.builder import Runtime


class Chain(nn.Module):
    """Three numbers that are multiplied: 1, 2 and 3, with the gradients 6, 3 and 2."""

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Linear(1, 1, bias=False) for _ in range(3)]
        for value, layer in enumerate(layers, 1):
            nn.init.constant_(layer.weight, value)
        self.layers = nn.Sequential(*layers)

    @override
    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layers(x)
        return result

    def values(self) -> list[float]:
        """Return the numbers."""
        return [each.item() for each in self.parameters()]


class Subtract:
    """An optimizer that is not torch's: it takes the gradients off, and knows nothing else."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.parameters = list(parameters)

    def step(self) -> None:
        """Subtract the gradients."""
        with torch.no_grad():
            for each in self.parameters:
                assert each.grad is not None
                each.sub_(each.grad)


class Hooked(torch.optim.SGD):
    """Calls something before each step, and subtracts the gradients."""

    def __init__(self, parameters: Iterable[nn.Parameter], hook: Callable[[], object]) -> None:
        super().__init__(parameters, lr=1.0)

        def first(*_: object) -> None:
            hook()

        self.register_step_pre_hook(first)


class Shelf:
    """An ordered server of a user's own: it keeps what it is given as it is, and notes all of it.

    Attributes:
        held: the newest value and version of each key.
        pushed: key, version and previous version of each push.
        full: whether pushes are refused.
    """

    def __init__(self) -> None:
        self.held: dict[Any, tuple[Any, Any]] = {}
        self.pushed: list[tuple[Any, Any, Any]] = []
        self.full = False

    def push(self, key: Any, value: Any, version: Any, prev_version: Any) -> bool:
        """Keep *value*."""
        self.pushed.append((key, version, prev_version))
        if self.full or (key in self.held and self.held[key][1] != prev_version):
            return False
        self.held[key] = (value, version)
        return True

    def pull(self, key: Any, version: Any = None) -> tuple[Any, Any] | None:
        """Return what is kept."""
        found = self.held.get(key)
        return found if found is None or version in (None, found[1]) else None


def give(model: nn.Module, value: float = 1.0) -> nn.Module:
    """Have all gradients of *model* be *value*; return it."""
    for each in model.parameters():
        each.grad = torch.full_like(each, value)
    return model


def repeat(act: Callable[[], object]) -> None:
    """Call *act* until it raises."""
    while True:
        act()


def version(model: nn.Module) -> Any:
    """Return which version a model says it is of."""
    return model.pp_version


def run(target: Callable[..., Any], *args: Any, members: Any = ("ps", "a", "b")) -> list[Any]:
    """Run *target* in members that are threads."""
    config = {"members": list(members), "reducer": {"backend": "local"}}
    return pparallel.launch(config, target, args)


def managed(group: RpcGroup, model: nn.Module | None = None, **options: Any) -> Any:
    """Return a server in its primary, started, and the model that it manages."""
    server = PushPullGradServerImpl("server", group, **options)
    model = model or one_weight()
    server.manage_model(model, torch.optim.SGD(model.parameters(), lr=1.0))
    server.start()
    return server, model


# -- in processes ---------------------------------------------------------------------------------


def stand_by(rt: Runtime) -> None:
    """Be there, as the first member of a job must be until the others are done."""
    rt.group("servers", rt.members)


def serve(rt: Runtime, folder: Path, secondaries: list[str]) -> Any:
    """Be the primary reducer until all pushes are said to be done; return the books."""
    group = rt.group("servers", rt.members)
    server, model = managed(
        group, primary_reducer=rt.name, secondary_reducers=secondaries, reduce_batch_size=1
    )
    (folder / "serving").touch()
    until((folder / "done").exists, "the pushes were not done")
    server.watch()
    server.stop()
    counters = server.o_server.pull("model")[1], weight(model)
    (folder / "stopped").touch()
    return counters


def reduce(rt: Runtime, folder: Path) -> str:
    """Be a secondary reducer until the job, or the primary, ends; return why."""
    group = rt.group("servers", rt.members)
    server = PushPullGradServerImpl(
        "server", group, primary_reducer="ps", secondary_reducers=["s"], reduce_batch_size=1
    )
    (folder / "reducing").touch()
    try:
        until(lambda: _watched(server) or (folder / "stopped").exists(), "nothing ended")
        server.watch()
    except PeerLostError as error:
        return f"{error}"
    return "stopped"


def _watched(server: PushPullGradServerImpl) -> bool:
    server.watch()
    return False


def push_until_lost(rt: Runtime, folder: Path, until_pushed: int) -> tuple[int, str, str]:
    """Push until it fails, then pull; return how many were taken, and both errors."""
    group = rt.group("servers", rt.members)
    until((folder / "serving").exists, "the primary does not serve")
    until((folder / "reducing").exists, "the secondary does not reduce")
    server = group.get_paired("server").to_here()
    model, taken = one_weight(), 0
    while True:
        try:
            taken += server.push(give(model))
        except PeerLostError as error:
            first = f"{error}"
            break
        if taken == until_pushed:
            (folder / "pushed").touch()
    try:
        server.pull(model)
    except PeerLostError as error:
        return taken, first, f"{error}"
    return taken, first, ""


def push_many(rt: Runtime, folder: Path, count: int) -> float:
    """Push *count* gradients, and return what was pulled once all are reduced."""
    group = rt.group("servers", rt.members)
    until((folder / "serving").exists, "the primary does not serve")
    server = group.get_paired("server").to_here()
    model = one_weight()
    for _ in range(count):
        assert server.push(give(model))
    (folder / f"done by {rt.name}").touch()
    until((folder / "stopped").exists, "the primary did not stop")
    assert server.pull(model)
    return weight(model)
