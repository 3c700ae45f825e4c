"""What of a model may change between start and stop, and what not."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import Module, Parameter
from torch.nn.utils import parametrizations, prune
from typing_extensions import override

from pparallel_reducers.layout import ModelTensors, parameters_of


class Net(nn.Module):
    """Two layers, and a place for a parameter that there is not."""

    absent: Parameter | None

    def __init__(self) -> None:
        super().__init__()
        self.idle = nn.Identity()
        self.first = nn.Linear(2, 2)
        self.first.register_buffer("mean", torch.ones(2))
        self.inner = nn.ModuleDict({"second": nn.Linear(2, 2, bias=False)})
        self.register_parameter("absent", None)

    @property
    def second(self) -> nn.Linear:
        found = self.inner["second"]
        assert isinstance(found, nn.Linear)
        return found

    @override
    def forward(self, values: Tensor) -> Tensor:
        found: Tensor = self.second(self.first(values))
        return found


def _alias(found: Net) -> None:
    found.alias = found.first


def _tie(found: Net) -> None:
    found.second.other = found.first.weight


def _second_name_that_comes_first(found: Net) -> None:
    found.cached = found.first.weight


def _second_name_of_a_buffer(found: Net) -> None:
    found.register_buffer("cached", found.first.get_buffer("mean"))


def _buffer(found: Net) -> None:
    found.first.register_buffer("other", torch.zeros(2), persistent=False)


def _gradients(found: Net) -> None:
    found(torch.ones(1, 2)).sum().backward()


def _optimized(found: Net) -> None:
    _gradients(found)
    torch.optim.SGD(found.parameters(), 0.1).step()


def _load(found: Net) -> None:
    found.load_state_dict(Net().state_dict())


@pytest.mark.parametrize(
    "change",
    [
        _alias,
        _tie,
        _second_name_that_comes_first,
        _second_name_of_a_buffer,
        _buffer,
        _gradients,
        _optimized,
        _load,
        Module.eval,
        Module.float,
    ],
)
def test_what_leaves_the_parameters_what_they_are(change: Callable[[Net], object]) -> None:
    found = Net()
    tensors = ModelTensors(found)
    change(found)
    assert not tensors.has_changed(found)
    tensors.validate(found)
    assert [name for name, _ in tensors.buffers(found)] == ["first.mean"]


def _freeze(found: Net) -> None:
    found.second.weight.requires_grad_(False)


def _replace(found: Net) -> None:
    found.first.weight = Parameter(torch.zeros(2, 2))


def _add(found: Net) -> None:
    found.add_module("third", nn.Linear(2, 2))


def _fill(found: Net) -> None:
    found.absent = Parameter(torch.zeros(2))


def _remove(found: Net) -> None:
    found.first.register_parameter("bias", None)


def _replace_by_another_of_the_model(found: Net) -> None:
    found.second.weight = found.first.weight


def _rename(found: Net) -> None:
    found.renamed = found.first
    del found.first


def _change_places(found: Net) -> None:
    modules = found._modules
    modules["idle"], modules["first"] = modules["first"], modules["idle"]


def _move_into_the_next_module(found: Net) -> None:
    found.idle.bias = found.first.bias
    del found.first.bias


def _swap(found: Net) -> None:
    found.first.weight, found.second.weight = found.second.weight, found.first.weight


def _move(found: Net) -> None:
    found.first.weight.data = found.first.weight.data.double()


def _prune(found: Net) -> None:
    prune.l1_unstructured(found.first, "weight", 0.5)


def _parametrize(found: Net) -> None:
    parametrizations.weight_norm(found.first)


@pytest.mark.parametrize(
    "change",
    [
        _freeze,
        _replace,
        _add,
        _fill,
        _remove,
        _replace_by_another_of_the_model,
        _swap,
        _rename,
        _change_places,
        _move_into_the_next_module,
        _move,
        _prune,
        _parametrize,
        Module.double,
    ],
)
def test_what_gives_the_model_other_parameters(change: Callable[[Net], object]) -> None:
    found = Net()
    tensors = ModelTensors(found)
    change(found)
    assert tensors.has_changed(found)
    with pytest.raises(ValueError, match=r"since start\(\)"):
        tensors.validate(found)


def test_a_model_that_names_its_parameters_itself() -> None:
    class Half(Net):
        @override
        def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Parameter]]:
            yield from self.first.named_parameters()

    found = Half()
    tensors = ModelTensors(found)
    found.second.requires_grad_(False)
    assert not tensors.has_changed(found)
    found.first.weight.requires_grad_(False)
    assert tensors.has_changed(found)


def test_a_parameter_with_another_name_is_told_so() -> None:
    found = Net()
    tensors = ModelTensors(found)
    _rename(found)
    with pytest.raises(ValueError, match=r"'first.weight' became 'renamed.weight' since start\(\)"):
        tensors.validate(found)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("whole", [True, False])
def test_scripted_models_and_modules(whole: bool) -> None:
    inner = torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)))
    found = inner if whole else nn.Sequential(nn.Linear(2, 2), inner)
    tensors = ModelTensors(found)
    assert len(parameters_of(found)) == len(list(found.parameters()))
    assert not tensors.has_changed(found)
    next(found.parameters()).requires_grad_(False)
    assert tensors.has_changed(found)


def test_a_buffer_that_is_not_persistent_stays_so_under_each_name_of_its_module() -> None:
    found = Net()
    found.first.register_buffer("cache", torch.zeros(2), persistent=False)
    found.alias = found.first
    assert [name for name, _ in ModelTensors(found).buffers(found)] == ["first.mean"]


def test_a_module_without_parameters_that_was_added_is_looked_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = Net()
    tensors = ModelTensors(found)
    found.inner["dropout"] = nn.Dropout()
    named = Module.named_parameters
    calls = []

    def counted(self: Module, *args: Any, **options: Any) -> Iterator[tuple[str, Parameter]]:
        calls.append(self)
        return named(self, *args, **options)

    monkeypatch.setattr(Module, "named_parameters", counted)
    assert [tensors.has_changed(found) for _ in range(3)] == [False] * 3
    assert len(calls) == 1
    found.second.weight.requires_grad_(False)
    assert tensors.has_changed(found)


def test_a_buffer_with_a_second_name_that_is_not_persistent_is_kept_by_its_first() -> None:
    found = Net()
    found.register_buffer("cached", found.first.get_buffer("mean"), persistent=False)
    assert [name for name, _ in ModelTensors(found).buffers(found)] == ["first.mean"]
