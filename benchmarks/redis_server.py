"""The ordered server `redis` of pparallel-redis, beside redis-py as one would use it by hand.

All use a server of their own on a Unix socket, which writes no file. By hand a push is one `SET` of
what pickle makes of the value, or `SET`s of all tensors of a state at once, without versions; or,
with versions, a script that compares before it sets. Every client is a process of its own.
"""

from __future__ import annotations

import importlib.util
import itertools
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

import pparallel
from benchmarks.crews import Recipe
from benchmarks.harness import Aim, Contest, Making, Setting
from benchmarks.servers_parts import Pulls, Pushes, States, Store
from benchmarks.servers_peers import no_redis, redis_server, redis_states
from pparallel.interfaces.ordered_server import OrderedServerConfig

OURS, INTO = "pparallel-redis", "pparallel-redis, into"
PICKLED, VERSIONED, TENSORS = "redis-py, pickled", "redis-py, a script", "redis-py, tensors"

Opening = Callable[[str, int], AbstractContextManager[Store]]

_COMPARE_AND_SET = """
local newest = redis.call('HGET', KEYS[1], 'version')
if newest and newest ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], 'version', ARGV[1], 'value', ARGV[3])
return 1
"""


def missing() -> str:
    """Return why nothing can be measured here; nothing if it can."""
    if importlib.util.find_spec("pparallel_redis") is None:
        return "the package pparallel-redis is not installed"
    return no_redis()


# -- who keeps values --------------------------------------------------------------------------


@contextmanager
def ordered(socket: str, client: int) -> Iterator[Store]:
    """Use our ordered server."""
    raw = {"backend": "redis", "url": f"unix://{socket}"}
    versions, key = itertools.count(1), f"state {client}"
    with pparallel.build(pparallel.load(OrderedServerConfig, raw)) as server:

        def push(value: Any) -> None:
            version = next(versions)
            if not server.push(key, value, version, version - 1):
                raise RuntimeError(f"version {version} of {key!r} was refused")

        def pull(into: Any) -> Any:
            found = server.pull(key, into=into)
            return found and found[0]

        yield Store(push, pull)


@contextmanager
def pickled(socket: str, client: int) -> Iterator[Store]:
    """Keep what pickle makes of a value under one key."""
    import redis

    key = str(client)
    with redis.Redis(unix_socket_path=socket) as connection:

        def push(value: Any) -> None:
            connection.set(key, pickle.dumps(value, protocol=5))

        yield Store(push, lambda _: _unpickled(connection.get(key)))


@contextmanager
def versioned(socket: str, client: int) -> Iterator[Store]:
    """As :func:`pickled`, with a version that is compared before."""
    import redis

    key, versions = str(client), itertools.count(1)
    with redis.Redis(unix_socket_path=socket) as connection:
        script = connection.register_script(_COMPARE_AND_SET)

        def push(value: Any) -> None:
            version = next(versions)
            if not script([key], [version, version - 1, pickle.dumps(value, protocol=5)]):
                raise RuntimeError(f"version {version} of {key!r} was refused")

        yield Store(push, lambda _: _unpickled(connection.hmget(key, "version", "value")[1]))


def _unpickled(data: Any) -> Any:
    return pickle.loads(data)


# -- contests ----------------------------------------------------------------------------------


@contextmanager
def contest(
    setting: Setting,
    *,
    recipes: Callable[[Setting], dict[str, tuple[Opening, Recipe]]],
    aims: Sequence[Aim],
    pins: Sequence[str],
    clients: int = 1,
) -> Iterator[Contest]:
    """Have so many clients push and pull, all at once."""
    count = min(clients, setting.count(clients, 2))
    with ExitStack() as stack:
        contenders = {
            name: stack.enter_context(redis_server(opening, count)).turn(recipe)
            for name, (opening, recipe) in recipes(setting).items()
        }
        yield Contest(contenders=contenders, aims=aims, pins=pins, rounds=11)


def small(part: Callable[[int, Store], Any], setting: Setting) -> dict[str, tuple[Opening, Recipe]]:
    """Return who pushes, or pulls, 100 bytes."""
    recipe = partial(part, setting.count(1000, 20))
    openings = {OURS: ordered, PICKLED: pickled, VERSIONED: versioned}
    return {name: (opening, recipe) for name, opening in openings.items()}


def large(times: int, setting: Setting) -> dict[str, tuple[Opening, Recipe]]:
    """Return who pushes a state of 25 MB, and pulls it."""
    size, times = setting.count(25, 1), setting.count(times, 1)
    new, into = (partial(States, size, times, each) for each in (False, True))
    return {
        OURS: (ordered, new),
        INTO: (ordered, into),
        PICKLED: (pickled, new),
        TENSORS: (redis_states, new),
    }


_SMALL = (Aim(PICKLED, None, "p50"), Aim(VERSIONED, 0.8, "p50"))
_LARGE = (Aim(TENSORS, 1), Aim(TENSORS, 1, ours=INTO))
_pushes, _pulls = partial(small, Pushes), partial(small, Pulls)

ALL: dict[str, Making] = {
    "push of 100 bytes": partial(contest, recipes=_pushes, aims=_SMALL, pins=("one", "apart")),
    "pull of 100 bytes": partial(contest, recipes=_pulls, aims=_SMALL, pins=("one", "apart")),
    "four clients, pushes of 100 bytes": partial(
        contest, recipes=_pushes, aims=_SMALL, pins=("two",), clients=4
    ),
    "state of 25 MB": partial(contest, recipes=partial(large, 8), aims=_LARGE, pins=("two",)),
    "four clients, 25 MB each": partial(
        contest, recipes=partial(large, 4), aims=_LARGE, pins=("two",), clients=4
    ),
}
CONTESTS: dict[str, Making] = {} if missing() else ALL
