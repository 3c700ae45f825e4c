"""What members run in the reducers' suite."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from pparallel.interfaces.reducer import Counters, Reducer
from pparallel.runtime.events import (
    Event,
    GradientsLost,
    GradientsRefused,
    Pulled,
    Pushed,
    Reduced,
    ReducerEvent,
)
from pparallel.testing.reducer.models import (
    backward,
    descent,
    fill,
    line,
    manage,
    parameters,
    recording,
    set_gradient,
    weight,
)

if TYPE_CHECKING:
    from torch import nn

    from pparallel.builder import Runtime

STEPS = 20
GRADIENTS = 60  #: of each member that trains: whoever loses one in a hundred loses one


def train(
    rt: Runtime, reducer: Reducer, target: float, seed: int
) -> tuple[nn.Module, float, Counters]:
    """Train towards *target*; return the model, its loss, and the counters."""
    model = line(seed + rt.rank)
    manage(reducer, model, lr=0.05)
    reducer.start()
    reducer.pull(model)
    if reducer.trains:
        for step in range(STEPS):
            backward(model, step * rt.world_size + rt.rank, target)
            reducer.step(model)
    reducer.stop()
    reducer.watch()
    return model, float(backward(model, 0, target).detach()), reducer.counters()


def train_as_member(rt: Runtime) -> list[list[float]]:
    """Train; return the parameters."""
    model, _, _ = train(rt, rt.reducer, 1.0, 0)
    return parameters(model)


def train_early_or_late(rt: Runtime, late: int) -> list[list[float]]:
    """Train as member *late*, which asks for its reducer when all others have, or as another."""
    if rt.rank == late:
        rt.group().barrier()
    reducer = rt.reducer
    if rt.rank != late:
        rt.group().barrier()
    model, _, counters = train(rt, reducer, 1.0, 0)
    assert counters.pushed == (STEPS if reducer.trains else 0)
    return parameters(model)


def train_two(rt: Runtime) -> tuple[Any, Any]:
    """Train an actor, a critic, and the actor again; return the parameters of both."""
    _, actors_loss, _ = train(rt, rt.reducer, 1.0, 0)
    critic, critics_loss, _ = train(rt, rt["critic"], -1.0, 50)
    again, agains_loss, _ = train(rt, rt.reducer, 1.0, 0)
    assert max(actors_loss, agains_loss) < 0.5, "the actor was not trained towards 1"
    assert critics_loss < 0.5, "the critic was not trained towards -1"
    return parameters(again), parameters(critic)


def train_two_at_once(rt: Runtime) -> tuple[Any, Any]:
    """Train an actor and a critic in turns; return the parameters of both."""
    reducers = {1.0: rt.reducer, -1.0: rt["critic"]}
    models = {target: line(int(target)) for target in reducers}
    for target, reducer in reducers.items():
        manage(reducer, models[target], lr=0.05)
        reducer.start()
        reducer.pull(models[target])
    for step in range(STEPS):
        for target, reducer in reducers.items():
            if reducer.trains:
                backward(models[target], step, target)
                reducer.step(models[target])
    for reducer in reducers.values():
        reducer.stop()
    losses = [float(backward(model, 0, target).detach()) for target, model in models.items()]
    assert max(losses) < 0.5, "what one reducer learnt went into the other's model"
    return parameters(models[1.0]), parameters(models[-1.0])


def manage_everywhere(rt: Runtime) -> str:
    """Return whether this member may manage a model."""
    model = line()
    if rt.reducer.manages:
        manage(rt.reducer, model)
        return "managed"
    with pytest.raises(RuntimeError, match="manage_model"):
        rt.reducer.manage_model(model, descent(model))
    return "refused"


class Books(NamedTuple):
    """What one member handed in, and what its optimizer made of what came to it.

    Attributes:
        pushed: the sum of the gradients that it pushed.
        reduced: the sum of the gradients in its steps, had they not been averaged.
        pushes: how many it pushed.
        counters: the reducer's.
    """

    pushed: float
    reduced: float
    pushes: int
    counters: Counters


def push_numbers(rt: Runtime) -> Books:
    """Push gradients of different values, and keep the books of the steps."""
    reducer, model = rt.reducer, weight()
    means: list[float] = []
    counts: list[int] = []
    rt.events.subscribe(lambda event: counts.append(_gradients(event)), Reduced)
    if reducer.manages:
        reducer.manage_model(model, recording(model, means))
    reducer.start()
    count = GRADIENTS + 4 * rt.rank if reducer.trains else 0
    values = [float(1 + 1000 * rt.rank + n * n) for n in range(count)]
    for each in values:
        set_gradient(model, each)
        assert reducer.push(model)
    reducer.stop()
    reduced = sum(mean * count for mean, count in zip(means, counts, strict=True))
    return Books(sum(values), reduced, count, reducer.counters())


class Told(NamedTuple):
    """What one member told of, and what it counted.

    Attributes:
        events: gradients by the kind of event; ``late`` are those that came at the wrong time.
        staleness: of the gradients reduced here, summed.
        versions: of the parameters after each step.
        pulls: how many pulls were told of, and how many returned true.
        members: who told, and of which reducer.
        counters: the reducer's.
    """

    events: Counter[str]
    staleness: float
    versions: list[int]
    pulls: tuple[int, int]
    members: set[tuple[str, str]]
    counters: Counters


def train_and_listen(rt: Runtime) -> Told:
    """Train, have a gradient refused, and compare what is told with what is counted."""
    seen: list[ReducerEvent] = []
    rt.events.subscribe(seen.append, ReducerEvent)  # type: ignore[arg-type]
    reducer, model, other = rt.reducer, line(), line(outputs=2)
    manage(reducer, model)
    reducer.start()
    pulls = int(reducer.pull(model))
    for step in range(STEPS if reducer.trains else 0):
        backward(model, step)
        reducer.push(model)
        pulls += reducer.pull(model)
    if reducer.trains:
        backward(other, 1)
        with pytest.raises(ValueError, match=r".+"):
            reducer.push(other)
    reducer.stop()
    steps = [each for each in seen if isinstance(each, Reduced)]
    return Told(
        _gradients_by_kind(seen),
        sum(each.staleness * each.gradients for each in steps),
        [each.version for each in steps],
        (sum(isinstance(each, Pulled) for each in seen), pulls),
        {(each.member, each.reducer) for each in seen},
        reducer.counters(),
    )


def _gradients_by_kind(events: list[ReducerEvent]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for each in events:
        if isinstance(each, Pushed):
            counts["pushed"] += 1
        elif isinstance(each, GradientsRefused):
            counts["late" if each.late else "refused"] += each.gradients
        elif isinstance(each, GradientsLost):
            counts["lost"] += each.gradients
        elif isinstance(each, Reduced):
            counts["reduced"] += each.gradients
    return counts


def _gradients(event: Event) -> int:
    assert isinstance(event, Reduced)
    return event.gradients


def pull_and_scribble(rt: Runtime) -> tuple[Any, Any, Any]:
    """Pull, overwrite what was pulled, and pull again: both times, and what became of the first."""
    reducer, managed = rt.reducer, line(rt.rank)
    manage(reducer, managed)
    reducer.start()
    first, second = line(50 + rt.rank), line(70 + rt.rank)
    assert reducer.pull(first)
    pulled = parameters(first)
    fill(first, 1000.0 + rt.rank)
    rt.group().barrier()
    assert reducer.pull(second)
    again, scribbled = parameters(second), parameters(first)
    reducer.stop()
    return pulled, again, {value for each in scribbled for value in each}
