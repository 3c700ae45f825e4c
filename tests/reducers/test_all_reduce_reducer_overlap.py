"""The reducer ``all_reduce`` with gradients that travel during the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch
from reducer_models import begun, numbers, values
from torch import Tensor, nn

import pparallel
from pparallel.interfaces.collective import Collective, ReduceOp
from pparallel.testing.patience import until
from pparallel.testing.reducer import parameters
from pparallel_reducers.all_reduce.flats import _checksums

if TYPE_CHECKING:
    from pparallel.builder import Runtime


def launch(members: Any, target: Callable[..., Any], *args: Any, **reducer: Any) -> list[Any]:
    config = {"backend": "all_reduce", "overlap": True, "bucket": 16, **reducer}
    return pparallel.launch({"members": members, "reducer": config}, target, args)


def raised_by(call: Callable[[], object]) -> str:
    try:
        call()
    except RuntimeError as error:
        return str(error)
    return ""


class Branches(nn.Module):
    """Two parameters whose gradients come in the order that is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Parameter(torch.zeros(3, dtype=torch.float64))
        self.right = nn.Parameter(torch.zeros(3, dtype=torch.float64))

    def losses(self, rank: int) -> tuple[Tensor, Tensor]:
        """Return what the gradients of the first, and then of the second to come, are made of."""
        both = (self.right.sum(), self.left.sum())
        return both if rank % 2 else both[::-1]


class Begun:
    """The operations that members have begun, by rank: how many elements, and of which bucket."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.by_rank: dict[int, list[int]] = {}
        before = Collective.all_reduce

        def all_reduce(
            group: Collective, tensor: Tensor, op: ReduceOp = ReduceOp.SUM, async_op: bool = False
        ) -> Any:
            if async_op:
                self.by_rank.setdefault(group.rank, []).append(tensor.numel())
            return before(group, tensor, op, async_op)

        monkeypatch.setattr(Collective, "all_reduce", all_reduce)


# -- when they travel -----------------------------------------------------------------------------


def watch_the_backward_pass(rt: Runtime, seen: Begun) -> list[list[float]]:
    model = nn.Sequential(nn.Linear(2, 3, bias=False), nn.Linear(3, 1, bias=False)).double()
    for each in model.parameters():
        nn.init.ones_(each)
    begun(rt, model)
    inner = model[0](torch.ones(1, 2, dtype=torch.float64))

    def look(_: Tensor) -> None:
        """The gradients of the last layer travel before those of the first are there."""
        until(lambda: seen.by_rank.get(rt.rank) == [3], "the last layer's are not on their way")

    inner.register_hook(look)
    with rt.reducer.accumulate():  # type: ignore[attr-defined]
        model(torch.ones(1, 2, dtype=torch.float64)).sum().backward()
    assert not seen.by_rank.get(rt.rank), "what adds up travels"
    model[1](inner).sum().backward()
    assert seen.by_rank[rt.rank] == [3, 6]
    rt.reducer.step(model)
    assert seen.by_rank[rt.rank] == [3, 6]
    rt.reducer.stop()
    return parameters(model)


def test_gradients_travel_during_the_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    results = launch(2, watch_the_backward_pass, Begun(monkeypatch))
    assert results == [[[-1.0] * 6, [-3.0] * 3]] * 2


def come_in_any_order(rt: Runtime, seen: Begun) -> tuple[list[list[float]], list[int]]:
    model = Branches()
    begun(rt, model)
    for step in range(4):
        first, second = model.losses(rt.rank + step)
        first.backward()
        early = list(seen.by_rank.get(rt.rank, []))
        second.backward()
        assert len(early) in (2 * step, 2 * step + 1)
        rt.reducer.step(model)
    rt.reducer.stop()
    return parameters(model), seen.by_rank[rt.rank]


def test_they_travel_in_one_order_in_all_members(monkeypatch: pytest.MonkeyPatch) -> None:
    results = launch(3, come_in_any_order, Begun(monkeypatch), bucket=24)
    for found, sizes in results:
        assert found == [[-4.0] * 3] * 2
        assert sizes == [3, 3] * 5, "four steps, and one of nothing when all stop"


# -- what cannot be handed in any more ------------------------------------------------------------


def change_gradients(rt: Runtime) -> tuple[str, list[float]]:
    """Clip, in the second member, what is on its way."""
    model = numbers()
    begun(rt, model)
    model.weight.sum().backward()
    if rt.rank == 1:
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    error = raised_by(lambda: rt.reducer.step(model))
    assert model.weight.grad is not None
    model.weight.grad = None
    model.weight.sum().backward()
    assert rt.reducer.step(model)
    rt.reducer.stop()
    return error, values(model)


def test_gradients_that_changed_on_their_way() -> None:
    a, b = launch(["a", "b"], change_gradients)
    assert a[0].startswith("the gradient of 'weight' of member 'b' was changed after it was handed")
    assert b[0].startswith("the gradient of 'weight' was changed after it was handed in")
    assert "optimizer.register_step_pre_hook" in b[0]
    assert a[1] == b[1] == [-1.0] * 3


def change_without_a_version(rt: Runtime) -> list[str]:
    """Change, in the second member, what is on its way, as no count of versions tells."""
    model = nn.Embedding(8, 2)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    begun(rt, model, optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    errors = []
    for change in ("clamp", "unscale"):
        scaler.scale(model(torch.tensor([1, 2])).sum()).backward()
        assert model.weight.grad is not None
        if rt.rank == 1 and change == "clamp":
            model.weight.grad.data.clamp_(-1, 1)
        elif rt.rank == 1:
            scaler.unscale_(optimizer)
        errors.append(raised_by(lambda: rt.reducer.step(model)))
        model.weight.grad = None
    rt.reducer.stop()
    assert not model.weight.any()
    return errors


def test_gradients_that_changed_without_a_version() -> None:
    for errors in launch(2, change_without_a_version):
        assert len(errors) == 2
        assert all("was changed after it was handed in" in each for each in errors)


ODD: list[torch.Tensor] = [
    torch.zeros(0),
    torch.tensor(1.5),
    torch.arange(1.0, 8.0, dtype=torch.float16),
    torch.arange(1.0, 4.0, dtype=torch.bfloat16),
    torch.arange(1.0, 9.0)[1:],
    torch.arange(1.0, 10.0)[::2],
    torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last),
    torch.arange(1.0, 4.0).expand(2, 3),
    torch.ones(3, dtype=torch.complex64).conj(),
    torch.tensor([1.0, -1.0]),
    torch.eye(3).to_sparse(),
]


@pytest.mark.parametrize("place", range(len(ODD)))
def test_a_checksum_tells_of_a_change(place: int) -> None:
    tensor = ODD[place].clone()
    found = _checksums([None, tensor], torch.device("cpu"))
    assert found.equal(_checksums([None, tensor.clone()], torch.device("cpu")))
    for factor in (0.5, -1.0):
        tensor.mul_(factor)
        after = _checksums([None, tensor], torch.device("cpu"))
        assert (after != found).any(dim=1).tolist() == [False, tensor.numel() > 0]
        found = after


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.complex128])
@pytest.mark.parametrize("factor", [-1.0, 2.0**-16])
def test_a_checksum_tells_of_signs_and_powers_of_two(dtype: torch.dtype, factor: float) -> None:
    """Of 256 numbers, of which half are negative: sums of their bits alone stay as they are."""
    numbers = torch.arange(1.0, 257.0, dtype=torch.float64)
    tensor = torch.where(numbers % 2 > 0, numbers, -numbers).to(dtype)
    before, after = (_checksums([each], torch.device("cpu")) for each in (tensor, tensor * factor))
    assert not after.equal(before)


def test_a_checksum_does_not_depend_on_the_number_of_threads() -> None:
    tensor = torch.randn(1500, 1500, generator=torch.Generator().manual_seed(0))
    threads = torch.get_num_threads()
    found = []
    try:
        for each in (1, 2, 3):
            torch.set_num_threads(each)
            found.append(_checksums([tensor], torch.device("cpu")))
    finally:
        torch.set_num_threads(threads)
    assert found[0].equal(found[1])
    assert found[0].equal(found[2])


def clip_the_mean(rt: Runtime) -> list[float]:
    model = numbers()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

    def clip(*_: object) -> None:
        nn.utils.clip_grad_value_(model.parameters(), 1.5)

    optimizer.register_step_pre_hook(clip)
    begun(rt, model, optimizer)
    (model.weight.sum() * (1 + 4 * rt.rank)).backward()
    rt.reducer.step(model)
    rt.reducer.stop()
    return values(model)


def test_the_mean_is_clipped_in_a_hook() -> None:
    assert launch(2, clip_the_mean) == [[-1.5] * 3] * 2


def forget_to_accumulate(rt: Runtime) -> tuple[str, str, list[float]]:
    model = numbers()
    begun(rt, model)
    model.weight.sum().backward()
    errors = [""]
    if rt.rank == 1:
        errors = [raised_by(lambda: model.weight.sum().backward())]
    errors.append(raised_by(lambda: rt.reducer.step(model)))
    model.weight.grad = None
    model.weight.sum().backward()
    rt.reducer.step(model)
    rt.reducer.stop()
    return errors[0], errors[1], values(model)


def test_a_second_pass_is_refused() -> None:
    a, b = launch(["a", "b"], forget_to_accumulate)
    assert b[0].startswith("parameter 'weight' got a second gradient since it was handed in")
    assert "reducer.accumulate()" in b[0]
    assert a[1].startswith("the gradient of 'weight' of member 'b' came twice")
    assert b[1].startswith("the gradient of 'weight' came twice")
    assert a[2] == b[2] == [-1.0] * 3


# -- what is not a step ---------------------------------------------------------------------------


def stop_after_a_backward_pass(rt: Runtime) -> list[list[float]]:
    """The first member stops with half of a step on its way."""
    model = Branches()
    begun(rt, model)
    for step in range(3):
        first, second = model.losses(1)
        first.backward()
        if rt.rank == 0 and step == 1:
            break
        second.backward()
        rt.reducer.step(model)
    rt.reducer.stop()
    first, second = model.losses(1)
    (first + second).backward()  # nobody hears of it
    return parameters(model)


def test_a_pass_without_a_step_is_not_handed_in() -> None:
    assert launch(3, stop_after_a_backward_pass, bucket=24) == [[[-3.0] * 3] * 2] * 3


def all_stop_after_a_backward_pass(rt: Runtime) -> tuple[list[float], int]:
    model = numbers()
    begun(rt, model)
    model.weight.sum().backward()
    rt.reducer.stop()
    return values(model), rt.reducer.counters().pushed


def test_a_pass_without_a_step_in_all_members() -> None:
    assert launch(2, all_stop_after_a_backward_pass) == [([0.0] * 3, 0)] * 2


def start_again(rt: Runtime) -> list[float]:
    model = numbers()
    for _ in range(3):
        begun(rt, model)
        model.weight.sum().backward()
        rt.reducer.step(model)
        rt.reducer.stop()
    return values(model)


def test_hooks_are_of_one_run() -> None:
    assert launch(2, start_again) == [[-3.0] * 3] * 2
