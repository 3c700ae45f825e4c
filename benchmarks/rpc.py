"""Remote calls between two processes, beside torch's RPC, a manager's proxy and bare ZeroMQ.

The functions do nothing, or give their argument back. All but torch's RPC are called from this
process; that one, and our transport on it, from a process of its own, which stands still while
others are measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

from benchmarks.away import away
from benchmarks.calls import METHODS, Caller, Recipe, many_at_once, method, one_by_one, tensors
from benchmarks.harness import Aim, Contest, Making, Setting, Turn, timed
from benchmarks.members import our_job, our_members, transports
from benchmarks.rpc_peers import manager_proxy, torch_job, torch_rpc, zmq_echo
from benchmarks.tasks import add_seven, adder

TORCH, MANAGER, BARE = "torch RPC", "manager's proxy", "DEALER and ROUTER"
OTHERS = {MANAGER: manager_proxy, BARE: zmq_echo}
OURS = transports()
LATENCY = ("one", "apart")


@contextmanager
def calls(
    recipe: Callable[[Setting], Recipe],
    setting: Setting,
    *,
    others: Sequence[str] = (),
    aims: Sequence[Aim] = (),
    pins: Sequence[str] = ("two",),
    rounds: int = 9,
) -> Iterator[Contest]:
    """Open ours on each transport, torch's RPC and the others, and have all do the same."""
    made = recipe(setting)
    with ExitStack() as stack:
        contenders = {name: made(stack.enter_context(our_members(name))) for name in OURS}
        for name in others:
            contenders[name] = made(stack.enter_context(OTHERS[name]()))
        contenders[TORCH] = stack.enter_context(away(torch_rpc)).turn(made)
        yield _contest(contenders, aims, pins, rounds)


@contextmanager
def closure(transport: str, setting: Setting) -> Iterator[Contest]:
    """A lambda as the function beside a plain one, both ours; the first call does not count."""
    calls = setting.count(400, 20)
    recipes: dict[str, Recipe] = {
        f"{transport}, lambda": partial(lambdas, calls),
        f"{transport}, plain function": partial(plain, calls),
    }
    with ExitStack() as stack:
        if transport in OURS:
            caller = stack.enter_context(our_members(transport))
            contenders = {name: recipe(caller) for name, recipe in recipes.items()}
        else:
            there = stack.enter_context(away(partial(our_members, transport)))
            contenders = {name: there.turn(recipe) for name, recipe in recipes.items()}
        yield Contest(
            contenders=contenders,
            aims=[Aim(f"{transport}, plain function", 0.5, "p50")],
            pins=LATENCY,
            rounds=9,
        )


def lambdas(calls: int, caller: Caller) -> Turn:
    """Call a function that has no name."""
    return one_by_one(calls, caller, adder(7))


def plain(calls: int, caller: Caller) -> Turn:
    """Call one that does the same and has a name."""
    return one_by_one(calls, caller, add_seven)


@contextmanager
def job(_: Setting) -> Iterator[Contest]:
    """The whole life of a job of two members that wait for one another and end."""

    def turn(run: Callable[[], int]) -> Turn:
        return timed(lambda _: run(), int, lambda _, ended: ended == 2)

    contenders = {name: turn(partial(our_job, name)) for name in OURS}
    contenders[TORCH] = turn(torch_job)
    yield _contest(contenders, _aims(None, None, "wall"), ("two",), 5)


def _contest(
    contenders: dict[str, Turn], aims: Sequence[Aim], pins: Sequence[str], rounds: int
) -> Contest:
    """Return a contest with the aims of those of ours that contend."""
    present = [aim for aim in aims if aim.ours in contenders]
    return Contest(contenders=contenders, aims=present, pins=pins, rounds=rounds)


def _aims(ipc: float | None, zmq: float | None, metric: str, *further: Aim) -> list[Aim]:
    """Return what each transport has to reach beside torch's RPC, and further aims."""
    return [Aim(TORCH, ipc, metric, "ipc"), Aim(TORCH, zmq, metric, "zmq"), *further]


def _methods(kind: str, setting: Setting) -> Recipe:
    return partial(method, kind, setting.count(400, 5))


CONTESTS: dict[str, Making] = {
    "empty call": partial(
        calls,
        lambda setting: partial(one_by_one, setting.count(400, 5)),
        others=[MANAGER, BARE],
        aims=_aims(
            1 / 0.15,
            1 / 0.7,
            "p50",
            Aim(MANAGER, 1, "p50", "ipc"),
            Aim(BARE, 1 / 1.5, "p50", "zmq"),
        ),
        pins=LATENCY,
    ),
    **{
        kind: partial(
            calls,
            partial(_methods, kind),
            aims=_aims(1 / 0.15, 1 / 0.7, "p50"),
            pins=LATENCY,
        )
        for kind in METHODS
    },
    "64 calls in flight": partial(
        calls,
        lambda setting: partial(many_at_once, setting.count(2000, 80)),
        others=[BARE],
        aims=_aims(20, 5, "wall", Aim(BARE, None, "wall", "zmq")),
    ),
    "1 MB tensor": partial(
        calls,
        lambda setting: partial(tensors, 1, setting.count(16, 2)),
        others=[MANAGER, BARE],
        aims=_aims(3, None, "p50", Aim(BARE, None, "p50", "zmq")),
    ),
    "64 MB tensor": partial(
        calls,
        lambda setting: partial(tensors, setting.count(64, 1), 1),
        others=[MANAGER, BARE],
        aims=_aims(4.5, 1, "wall", Aim(BARE, None, "wall", "zmq")),
    ),
    **{f"lambda, {name}": partial(closure, name) for name in (*OURS, "torch_rpc")},
    "start, first barrier, end": job,
}
