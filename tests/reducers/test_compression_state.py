"""What compression has left out: in each state, and asked for where one is loaded."""

from __future__ import annotations

import gc
import io
import threading
from typing import TYPE_CHECKING, Any
from weakref import ref

import pytest
import torch
from reducer_models import begun, launch
from torch import nn

from pparallel.errors import PeerLostError
from pparallel.testing.patience import until
from pparallel_reducers import (
    DilocoReducerConfig,
    GradServerReducerConfig,
    PowerSgdCompressionConfig,
    TopKCompressionConfig,
)
from pparallel_reducers.compression import CompressionConfig
from pparallel_reducers.grad_server.pusher import Pusher
from pparallel_reducers.grad_server.routes import Routes
from pparallel_reducers.grad_server.squeezed import Squeezer

if TYPE_CHECKING:
    from pparallel.builder import Runtime

KINDS: dict[str, CompressionConfig] = {
    "topk": TopKCompressionConfig(ratio=0.01),
    "powersgd": PowerSgdCompressionConfig(rank=1),
}


@pytest.fixture(params=KINDS)
def config(request: pytest.FixtureRequest) -> GradServerReducerConfig:
    return GradServerReducerConfig(max_staleness=0, compression=KINDS[request.param])


def square() -> nn.Linear:
    model = nn.Linear(10, 10, bias=False)
    nn.init.zeros_(model.weight)
    return model


def saved(state: dict[str, Any]) -> dict[str, Any]:
    """Return *state* as a checkpoint gives it back."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


def train(rt: Runtime, steps: range, states: list[dict[str, Any]] | None) -> dict[str, Any]:
    """Train a model that is gone when the state of the reducer is asked for."""
    managed = square() if rt.reducer.manages else None
    if states is not None:
        if managed is not None:
            managed.load_state_dict(states[rt.rank]["model"])
        rt.reducer.load_state_dict(states[rt.rank]["reducer"])
    begun(rt, managed if managed is not None else square())

    def pass_over() -> tuple[dict[str, Any], ref[nn.Module]]:
        model = square()
        for step in steps if rt.reducer.trains else ():
            rt.reducer.pull(model)
            random = torch.Generator().manual_seed(step)
            model.weight.grad = torch.randn(10, 10, generator=random)
            rt.reducer.push(model)
        rt.reducer.pull(model)
        return model.state_dict(), ref(model)

    _, trained = pass_over()
    gc.collect()
    assert trained() is None
    copy = square()
    if rt.reducer.trains:
        rt.reducer.pull(copy)  # a copy for evaluation has left out nothing
    state = saved({"reducer": rt.reducer.state_dict()})
    rt.reducer.stop()
    rt.reducer.pull(copy)
    return {**state, "model": copy.state_dict()}


def test_what_was_left_out_is_kept_when_the_trained_model_is_gone(
    config: GradServerReducerConfig,
) -> None:
    members = ["ps", "worker"]
    whole = launch(members, config, train, range(6), None)
    first = launch(members, config, train, range(3), None)
    assert first[1]["reducer"]["compression"], "it is gone with the model"
    assert first[0]["reducer"] == {"backend": "grad_server", "compression": {}}
    left_out = first[1]["reducer"]["compression"]["memories"]["float32"]["owed"]
    assert left_out.abs().sum() > 0
    again = launch(members, config, train, range(3, 6), first)
    for one, other in zip(whole, again, strict=True):
        for each in (one, other):
            each["left out"] = each.pop("reducer")["compression"].get("memories", {})
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def load_states(rt: Runtime) -> dict[str, object]:
    before = rt.reducer.state_dict()
    for state in (before, saved(before)):
        rt.reducer.load_state_dict(state)  # it was saved before the first push, and says so
    lacking: list[dict[str, Any]] = [
        {"backend": "grad_server"},
        {"backend": "grad_server", "compression": None},
    ]
    for state in lacking:
        with pytest.raises(ValueError, match="lacks 'compression'"):
            rt.reducer.load_state_dict(state)
    with pytest.raises(ValueError, match="'another' is not that of a 'grad_server'"):
        rt.reducer.load_state_dict({})
    model = begun(rt, square())
    for _ in range(2):
        model.weight.grad = torch.arange(100.0).view(10, 10)
        rt.reducer.step(model)
    rt.reducer.stop()
    state = dict(rt.reducer.state_dict())
    rt.reducer.load_state_dict(state)
    assert rt.reducer.state_dict() == state
    return before


def test_a_state_without_what_was_left_out_is_refused(config: GradServerReducerConfig) -> None:
    (before,) = launch(1, config, load_states)
    assert before == {"backend": "grad_server", "compression": {}}


def load_another_kind(rt: Runtime) -> None:
    """The first push refuses what is of another kind, and so does the next."""
    rt.reducer.load_state_dict(
        {"backend": "grad_server", "compression": {"kind": "bf16", "memories": {}}}
    )
    model = begun(rt, square())
    for _ in range(2):
        model.weight.grad = torch.ones(10, 10)
        with pytest.raises(ValueError, match="of kind 'bf16'"):
            rt.reducer.push(model)
    rt.reducer.stop()


def test_a_state_of_another_kind_is_refused_by_each_push(config: GradServerReducerConfig) -> None:
    launch(1, config, load_another_kind)


def load_without_the_key(rt: Runtime) -> None:
    begun(rt, square())
    rt.reducer.stop()
    state = dict(rt.reducer.state_dict())
    if rt.rank == 1:
        del state["compression"]
    rt.reducer.load_state_dict(state)
    try:
        rt.reducer.start()
    except ValueError as error:
        raise LookupError(rt.rank) from error  # the other waits for this member


def test_diloco_refuses_a_state_without_what_was_left_out() -> None:
    config = DilocoReducerConfig(compression=KINDS["topk"])
    with pytest.raises(LookupError, match="1") as caught:
        launch(2, config, load_without_the_key)
    assert "saved without compression" in str(caught.value.__cause__)


# -- nothing is lost silently ----------------------------------------------------------------------

SUMS = GradServerReducerConfig(reduce_method="sum", compression=KINDS["topk"])


def books(rt: Runtime, model: nn.Linear) -> tuple[float, float]:
    """Return what was applied, and what is owed, after the end."""
    rt.reducer.stop()
    rt.reducer.pull(model)
    memories: Any = rt.reducer.state_dict()["compression"]
    owed = sum(float(each["owed"].sum()) for each in memories.get("memories", {}).values())
    return -model.weight.sum().item(), owed


def push_ones(rt: Runtime, model: nn.Linear) -> None:
    model.weight.grad = torch.ones(10, 10)
    assert rt.reducer.push(model)


class EnoughError(Exception):
    """Raised where a push waits, as by a handler of a signal."""


def leave_the_second(rt: Runtime, repeats: bool) -> tuple[float, float]:
    """The second push is interrupted once the secondary has it, and repeated or given up."""
    model = begun(rt, square())
    for step in range(4 if rt.reducer.trains else 0):
        try:
            push_ones(rt, model)
        except EnoughError:
            assert step == 1
            if repeats:
                assert rt.reducer.push(model)
            else:
                model.zero_grad()
    return books(rt, model)


@pytest.mark.parametrize("repeats", [True, False])
@pytest.mark.parametrize("members", [["ps", "worker"], ["ps"]], ids=" ".join)
def test_a_push_that_is_interrupted_leaves_out_nothing_for_good(
    monkeypatch: pytest.MonkeyPatch, members: list[str], repeats: bool
) -> None:
    send, sent = Routes._send, list[bool | None]()

    def interrupted(*args: Any) -> bool | None:
        sent.append(send(*args))
        if len(sent) == 2:
            raise EnoughError
        return sent[-1]

    monkeypatch.setattr(Routes, "_send", interrupted)
    results = launch(members, SUMS, leave_the_second, repeats)
    applied, owed = results[0][0], results[-1][1]
    assert applied + owed == 400
    assert owed > 0


def lose_the_second(rt: Runtime) -> tuple[float, float]:
    """The secondary is lost once it has handed on the second gradient, unacknowledged."""
    model, copy = begun(rt, square()), square()
    send, sent = Routes._send, list[bool | None]()

    def lost(routes: Routes, to: str, *args: Any) -> bool | None:
        sent.append(send(routes, to, *args))
        if len(sent) == 2:
            until(lambda: rt.reducer.pull(copy) and -copy.weight.sum().item() > 1, "no step")
            raise PeerLostError(to, "is gone")
        return sent[-1]

    if rt.name == "a":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Routes, "_send", lost)
            for _ in range(4):
                push_ones(rt, model)
        assert len(sent) == 4
    return books(rt, model)


def test_a_secondary_that_ends_leaves_out_nothing_for_good() -> None:
    config = SUMS.model_copy(update={"secondaries": ("a", "b"), "reduce_batch_size": 1})
    results = launch(["ps", "a", "b"], config, lose_the_second)
    assert results[0][0] + results[1][1] == 400


def push_by_two(rt: Runtime) -> tuple[float, float]:
    """Another thread pushes another model just as the push of the first is acknowledged."""
    model, other = begun(rt, square()), square()
    if rt.reducer.trains:
        with pytest.MonkeyPatch.context() as patch:
            push = Pusher.push

            def push_and_another(*args: Any) -> bool:
                patch.setattr(Pusher, "push", push)
                accepted = push(*args)
                thread = threading.Thread(target=push_ones, args=(rt, other))
                thread.start()
                thread.join()
                return accepted

            patch.setattr(Pusher, "push", push_and_another)
            push_ones(rt, model)
    return books(rt, model)


def test_two_threads_that_push_share_what_was_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    pushers, made, make, init = [], list[bool](), Squeezer.__init__, Pusher.__init__

    def noted(self: Pusher, *args: Any) -> None:
        init(self, *args)
        pushers.append(self)

    def locked(self: Squeezer, *args: Any) -> None:
        made.append(any(each._pushing.locked() for each in pushers))
        make(self, *args)

    monkeypatch.setattr(Pusher, "__init__", noted)
    monkeypatch.setattr(Squeezer, "__init__", locked)
    (applied, _), (_, owed) = launch(["ps", "worker"], SUMS, push_by_two)
    assert applied + owed == 200
    assert made == [True]
