"""Tensors on the way through serializers, queues, pools, calls and launches."""

from __future__ import annotations

import gc
import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from serializers_sent import each_serializer as each_serializer
from serializers_sent import run_script, sent
from serializers_sent import serializer as serializer
from typing_extensions import override

import pparallel
from pparallel import Runtime, SimpleQueue
from pparallel.errors import SerializationError
from pparallel.interfaces.serializer import Serializer
from pparallel.testing.patience import PATIENCE
from pparallel_process import ProcessLauncherConfig, ProcessPoolConfig
from pparallel_serializers import DillSerializerConfig

jit: Any = torch.jit

# -- tensors of a graph ---------------------------------------------------------------------------


def hidden() -> torch.Tensor:
    """Return a tensor in the midst of a graph."""
    return torch.ones(3, requires_grad=True) * 2


def backward(tensor: torch.Tensor) -> str:
    """Return what becomes of a ``backward()`` from *tensor* in the process that received it."""
    try:
        tensor.sum().backward()
    except RuntimeError as error:
        return str(error)
    return "nothing was raised"


@pytest.mark.parametrize("make", [hidden, lambda: hidden().to_sparse()], ids=["strided", "sparse"])
def test_a_tensor_of_a_graph_arrives_detached(serializer: Serializer, make: Any) -> None:
    tensor = make()
    tensor.note = "kept"
    found, again = sent(serializer, [tensor, tensor])
    assert found is again
    assert (found.requires_grad, found.is_leaf, found.layout) == (False, True, tensor.layout)
    assert found.to_dense().tolist() == [2, 2, 2]


def test_leaves_require_gradients_as_before(each_serializer: Serializer) -> None:
    leaf, fixed = torch.ones(3, requires_grad=True), torch.nn.Parameter(torch.ones(3), False)
    weight: Any = torch.nn.Parameter(torch.ones(3))
    found = sent(each_serializer, [leaf, fixed, weight, leaf.detach(), weight * 1])
    assert [each.requires_grad for each in found] == [True, False, True, False, False]
    assert [type(each) for each in found[1:3]] == [torch.nn.Parameter] * 2


def test_a_backward_from_a_tensor_of_a_graph_says_so_where_it_arrived() -> None:
    why = "does not require grad"
    queue = SimpleQueue()
    queue.put({"hidden": hidden()})
    assert why in backward(queue.get(timeout=PATIENCE)["hidden"])
    queue.close()
    with pparallel.build(ProcessPoolConfig(size=1, preload=("torch",))) as pool:
        assert why in pool.apply(backward, (hidden(),))
        assert why in backward(pool.apply(hidden))
    assert pparallel.launch(TWO_MEMBERS, call_the_other) == [[True, True]] * 2


TWO_MEMBERS = {"members": 2, "launcher": {"backend": "thread"}, "transport": {"backend": "ipc"}}


def call_the_other(rt: Runtime) -> list[bool]:
    group, why = rt.group(), "does not require grad"
    group.barrier(PATIENCE)
    found = [
        why in group.rpc_sync(1 - rt.rank, backward, (hidden(),), timeout=PATIENCE),
        why in backward(group.rpc_sync(1 - rt.rank, hidden, timeout=PATIENCE)),
    ]
    group.barrier(PATIENCE)
    return found


def test_keep_shared_refuses_a_tensor_of_a_graph() -> None:
    keeps: Serializer = pparallel.build(DillSerializerConfig(keep_shared=True))
    for bad in (hidden(), hidden().to_sparse(), hidden()[1:]):
        with pytest.raises(SerializationError, match="non-leaf tensor") as caught:
            keeps.dumps({"loss": bad})
        assert type(caught.value.__cause__) is RuntimeError
    assert sent(keeps, torch.ones(3, requires_grad=True)).requires_grad


# -- TorchScript ----------------------------------------------------------------------------------


def scaled(x: torch.Tensor, n: int) -> torch.Tensor:
    """Return *n* times *x*."""
    return x * n


class Net(torch.nn.Module):
    """A module with more methods than ``forward``."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((2,), 3.0))

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        more: torch.Tensor = self.other(x)
        return more * self.weight

    @jit.export  # type: ignore[untyped-decorator]
    def other(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def made_in_torch_script() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its age
        example = (torch.zeros(2),)
        return [jit.script(scaled), jit.script(Net()), jit.trace(Net(), example)]


def test_functions_and_modules_in_torch_script_are_sent(serializer: Serializer) -> None:
    function, net, traced = sent(serializer, made_in_torch_script())
    x = torch.ones(2)
    assert function(x, 5).tolist() == [5, 5]
    assert net(x).tolist() == traced(x).tolist() == [6, 6]
    assert net.other(x).tolist() == [2, 2]
    assert [name for name, each in net.named_parameters() if each.requires_grad] == ["weight"]


def run_script_module(net: Any, x: torch.Tensor) -> tuple[Any, list[float]]:
    return net, net(x).tolist()


def test_a_module_in_torch_script_goes_to_a_worker_and_back() -> None:
    net = made_in_torch_script()[1]
    with pparallel.build(ProcessPoolConfig(size=1, preload=("torch",))) as pool:
        back, values = pool.apply(run_script_module, (net, torch.ones(2)))
    assert values == back(torch.ones(2)).tolist() == [6, 6]


# -- memory that the program has shared -----------------------------------------------------------


def train(rank: int, model: torch.nn.Module, plain: torch.Tensor) -> None:
    plain += 1
    with torch.no_grad():
        for each in model.parameters():
            each[rank] += 1 + rank


def test_ranks_train_the_weights_that_the_program_has_shared() -> None:
    """Hogwild, as with torch.multiprocessing."""
    model = torch.nn.Linear(1, 2)
    for each in model.parameters():
        torch.nn.init.zeros_(each)
    model.share_memory()
    plain = torch.zeros(2)
    with pparallel.build(ProcessLauncherConfig(preload=("torch",))) as launcher:
        launcher.spawn(train, (model, plain), 2, start_method="forkserver")
    assert [each.flatten().tolist() for each in model.parameters()] == [[1, 2], [1, 2]]
    assert plain.tolist() == [0, 0]


def test_a_member_trains_the_module_level_model_of_the_script(tmp_path: Path) -> None:
    script = """
    import torch, pparallel

    model = torch.nn.Linear(1, 2, bias=False)
    torch.nn.init.zeros_(model.weight)
    model.share_memory()
    alike = torch.zeros(2)

    def train(rt, given):
        alike[rt.rank] += 1
        with torch.no_grad():
            model.weight[rt.rank] += 1
            given[rt.rank] += 2

    given = torch.zeros(2).share_memory_()
    config = {"members": 2, "launcher": {"backend": "process", "preload": ["torch"]}}
    pparallel.launch(config, train, args=(given,))
    print(model.weight.flatten().tolist(), given.tolist(), alike.tolist())
    """
    assert run_script(script, tmp_path) == "[1.0, 1.0] [2.0, 2.0] [0.0, 0.0]\n"


def total(rank: int, tensors: list[torch.Tensor]) -> float:
    return sum(each.sum().item() for each in tensors)


def test_what_ranks_share_outlives_what_the_program_drops() -> None:
    tensors = [torch.full((3,), 2.0).share_memory_()]
    with pparallel.build(ProcessLauncherConfig()) as launcher:
        context = launcher.spawn(total, (tensors,), 2, join=False, start_method="spawn")
        tensors.clear()
        gc.collect()
        assert context.results() == [6.0, 6.0]
    files = [os.path.realpath(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd")]
    assert not any("torch_" in each for each in files), "it is never given back"


def test_a_rank_is_given_a_tensor_of_a_graph_detached() -> None:
    with pparallel.build(ProcessLauncherConfig(preload=("torch",))) as launcher:
        (found,) = launcher.spawn(needs_grad, (hidden(),), 1, start_method="forkserver")
    assert found is False


def needs_grad(rank: int, tensor: torch.Tensor) -> bool:
    return tensor.requires_grad


def add_one(tensor: torch.Tensor) -> None:
    tensor += 1


def test_tasks_have_a_copy_of_shared_memory_unless_the_serializer_keeps_it() -> None:
    shared = torch.zeros(3).share_memory_()
    for keep, expected in ((False, 0), (True, 1)):
        keeps = DillSerializerConfig(keep_shared=keep)
        config = ProcessPoolConfig(size=1, preload=("torch",), serializer=keeps)
        with pparallel.build(config) as pool:
            pool.apply(add_one, (shared,))
        assert shared.tolist() == [expected] * 3
