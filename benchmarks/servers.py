"""The hosted ordered server on `ipc`, beside a dict behind torch RPC, redis, and bare copies.

A state has 60 float32 tensors; it is pushed, and then pulled. Every client, and every server, is a
process of its own; those of torch's RPC stand still while others are measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial

from benchmarks.crews import Crew, Recipe
from benchmarks.harness import Aim, Contest, Making, Setting, Turn
from benchmarks.servers_ours import hosted
from benchmarks.servers_parts import Pulls, Pushes, States
from benchmarks.servers_peers import (
    copies,
    no_redis,
    redis_server,
    redis_states,
    redis_values,
    torch_dict,
)

NEW, INTO = "hosted, new tensors", "hosted, into"
OURS, TORCH, REDIS = "hosted", "dict behind torch RPC", "redis"
FLOOR = "one copy in, one out"
LATENCY = ("one", "apart")

Opening = Callable[[int], AbstractContextManager[Crew]]


@contextmanager
def states(
    setting: Setting,
    *,
    megabytes: int,
    times: int,
    peers: Mapping[str, Opening],
    aims: Sequence[Aim],
    clients: int = 1,
) -> Iterator[Contest]:
    """Have so many clients push and pull a state each, so many times, all at once."""
    megabytes, times = setting.count(megabytes, 1), setting.count(times, 1)
    new, into = (partial(States, megabytes, times, each) for each in (False, True))
    clients = min(clients, setting.count(clients, 2))
    with ExitStack() as stack:
        ours = stack.enter_context(hosted(clients))
        contenders = {NEW: ours.turn(new), INTO: ours.turn(into)}
        for name, opening in _present(peers).items():
            recipe = into if name == FLOOR else new
            contenders[name] = stack.enter_context(opening(clients)).turn(recipe)
        yield _contest(contenders, aims, peers)


@contextmanager
def small(recipe: Callable[[int], Recipe], setting: Setting) -> Iterator[Contest]:
    """Have one client push, or pull, 100 bytes."""
    made = recipe(setting.count(1000, 20))
    peers: dict[str, Opening] = {REDIS: partial(redis_server, redis_values), TORCH: torch_dict}
    with ExitStack() as stack:
        contenders = {
            name: stack.enter_context(opening(1)).turn(made)
            for name, opening in {OURS: hosted, **_present(peers)}.items()
        }
        yield _contest(contenders, [Aim(REDIS, 2, "p50")], peers, LATENCY)


def _present(peers: Mapping[str, Opening]) -> dict[str, Opening]:
    return {name: each for name, each in peers.items() if name not in _left_out(peers)}


def _left_out(peers: Mapping[str, Opening]) -> dict[str, str]:
    return {REDIS: why} if REDIS in peers and (why := no_redis()) else {}


def _contest(
    contenders: Mapping[str, Turn],
    aims: Sequence[Aim],
    peers: Mapping[str, Opening],
    pins: Sequence[str] = ("two",),
) -> Contest:
    present = [aim for aim in aims if aim.peer in contenders]
    return Contest(
        contenders=contenders, aims=present, pins=pins, rounds=11, left_out=_left_out(peers)
    )


def _aims(peer: str, new: float | None, into: float | None) -> list[Aim]:
    """Return what has to be reached beside a peer, into new tensors and into given ones."""
    return [Aim(peer, new), Aim(peer, into, ours=INTO)]


CONTESTS: dict[str, Making] = {
    "state of 25 MB": partial(
        states,
        megabytes=25,
        times=8,
        peers={TORCH: torch_dict, FLOOR: copies},
        aims=[*_aims(TORCH, 2.5, 3), *_aims(FLOOR, None, 1 / 1.3)],
    ),
    "state of 100 MB": partial(
        states,
        megabytes=100,
        times=3,
        peers={TORCH: torch_dict, FLOOR: copies},
        aims=[*_aims(TORCH, 3.5, 3.5), *_aims(FLOOR, None, None)],
    ),
    "four clients, 25 MB each": partial(
        states,
        megabytes=25,
        times=4,
        clients=4,
        peers={TORCH: torch_dict, REDIS: partial(redis_server, redis_states)},
        aims=[*_aims(TORCH, 2, 2), *_aims(REDIS, 5, 5)],
    ),
    "push of 100 bytes": partial(small, lambda calls: partial(Pushes, calls)),
    "pull of 100 bytes": partial(small, lambda calls: partial(Pulls, calls)),
}
