"""How much memory a model needs."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import nn

from pparallel import ModelSizeEstimator
from pparallel.models.tensors import held_bytes, moved_bytes

MB = 2**20


def size_of(model: nn.Module) -> int:
    """What the estimator says, in bytes."""
    return round(ModelSizeEstimator(model, size_multiplier=1).estimate_size() * MB)


class Holder(nn.Module):
    """Has what it is given as parameters or buffers."""

    def __init__(self, *parameters: torch.Tensor, **buffers: torch.Tensor) -> None:
        super().__init__()
        for at, each in enumerate(parameters):
            trains = each.is_floating_point() or each.is_complex()
            self.register_parameter(f"p{at}", nn.Parameter(each, requires_grad=trains))
        for name, each in buffers.items():
            self.register_buffer(name, each)


def test_parameters_and_buffers() -> None:
    model = nn.Sequential(nn.Linear(256, 1024), nn.BatchNorm1d(1024))
    estimator = ModelSizeEstimator(model)
    parameters = 4 * (256 * 1024 + 1024 + 2 * 1024)
    buffers = 4 * 2 * 1024 + 8
    assert estimator.get_parameter_sizes() == parameters / MB
    assert estimator.get_buffer_sizes() == buffers / MB
    assert estimator.estimate_size() == 2 * (parameters + buffers) / MB
    assert ModelSizeEstimator(model, 1).estimate_size() == (parameters + buffers) / MB


def test_a_buffer_that_is_not_saved_counts() -> None:
    model = nn.Module()
    model.register_buffer("mask", torch.ones(100), persistent=False)
    assert size_of(model) == 400


FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn]
OTHERS = [torch.complex64, torch.complex128, torch.bool, torch.uint8, torch.int16, torch.int64]


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_every_dtype(device: str) -> None:
    for dtype in (*FLOATS, *OTHERS):
        tensor = torch.empty(7, 11, dtype=dtype, device=device)
        assert size_of(Holder(tensor)) == size_of(Holder(buffer=tensor)) == 77 * dtype.itemsize


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_two_elements_in_a_byte() -> None:
    scales, zeros = torch.ones(4), torch.zeros(4)
    packed = torch.quantize_per_channel(torch.randn(4, 6), scales, zeros, 0, torch.quint4x2)
    assert size_of(Holder(buffer=packed)) == 12


def test_a_model_too_large_for_this_machine() -> None:
    with torch.device("meta"):
        model = nn.Linear(2**20, 2**20, bias=False)
    assert ModelSizeEstimator(model, 1).estimate_size() == 4 * 2**20


class TestShared:
    def test_a_module_under_two_names(self) -> None:
        linear = nn.Linear(10, 10)
        assert size_of(nn.Sequential(linear, nn.ReLU(), linear)) == 440

    def test_a_parameter_under_two_names(self) -> None:
        one, other = nn.Linear(10, 10, bias=False), nn.Linear(10, 10, bias=False)
        other.weight = one.weight
        assert size_of(nn.Sequential(one, other)) == 400

    @pytest.mark.parametrize("device", ["cpu", "meta"])
    def test_views_of_one_storage(self, device: str) -> None:
        flat = torch.zeros(100, device=device)
        whole = Holder(flat[:60], flat[40:], flat.view(10, 10), turned=flat.view(10, 10).T)
        assert size_of(whole) == 400
        assert size_of(Holder(flat[:30], flat[20:50])) == 200
        assert size_of(Holder(flat[:10], flat[90:])) == 80

    def test_a_parameter_that_is_a_buffer_too(self) -> None:
        flat = torch.zeros(100)
        estimator = ModelSizeEstimator(Holder(flat, view=flat[:50]), 1)
        assert estimator.get_parameter_sizes() * MB == 400
        assert estimator.get_buffer_sizes() * MB == 200
        assert estimator.estimate_size() * MB == 400

    def test_a_slice_does_not_count_what_it_is_cut_from(self) -> None:
        assert size_of(Holder(torch.zeros(1000, 1000)[:, :2])) == 8000
        assert size_of(Holder(torch.zeros(1000, 1000)[3])) == 4000

    def test_what_is_expanded_counts_its_memory(self) -> None:
        assert size_of(Holder(buffer=torch.zeros(1, 10).expand(1000, 10))) == 40

    def test_memory_used_again_is_not_taken_for_shared(self) -> None:
        tensors = (torch.zeros(100) for _ in range(50))  # each is gone when the next is made
        assert held_bytes(tensors) == 50 * 400


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")  # once in a process
def test_sparse_tensors_count_what_they_hold() -> None:
    dense = torch.zeros(100, 100)
    dense[3, 4] = dense[5, 6] = 1
    assert size_of(Holder(buffer=dense.to_sparse_coo())) == 2 * (2 * 8 + 4)
    rows = dense.to_sparse_csr()
    assert size_of(Holder(buffer=rows)) == 101 * 8 + 2 * (8 + 4)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_nested_tensors_count_their_parts(layout: torch.layout) -> None:
    parts = [torch.zeros(2, 30), torch.zeros(4, 30)]
    nested = torch.nested.nested_tensor(parts, layout=layout)
    offsets = 3 * 8 if layout is torch.jagged else 0
    assert size_of(Holder(buffer=nested)) == 6 * 30 * 4 + offsets
    assert size_of(Holder(nested)) == 6 * 30 * 4 + offsets
    assert size_of(Holder(one=nested, same=nested, part=nested.unbind()[1])) == 720 + offsets
    assert size_of(Holder(one=nested.transpose(1, 2))) == 720 + offsets
    assert moved_bytes(nested) == 720 + offsets


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
def test_tensors_in_memory_of_onednn_count() -> None:
    assert size_of(Holder(buffer=torch.zeros(10, 10).to_mkldnn())) == 400


def test_lstms_flat_weights() -> None:
    assert size_of(nn.LSTM(10, 20, num_layers=2)) == 4 * sum(
        4 * 20 * (inputs + 20 + 2) for inputs in (10, 20)
    )


class Packed(nn.Module):
    """As torch's quantised modules are: its weights are in no parameter."""

    def _weight_bias(self) -> tuple[torch.Tensor, None]:
        return torch.zeros(10, 10, dtype=torch.int8), None


class Around(nn.Module):
    """As torch's quantised linear module: it asks the one that holds the weights."""

    def __init__(self) -> None:
        super().__init__()
        self._packed_params = Packed()

    def _weight_bias(self) -> tuple[torch.Tensor, None]:
        return self._packed_params._weight_bias()


def test_packed_weights_count_once() -> None:
    assert size_of(Packed()) == size_of(Around()) == 100
    assert ModelSizeEstimator(Around()).get_parameter_sizes() == 0


def test_a_wrapper_counts_what_it_wraps() -> None:
    nested = torch.nested.nested_tensor([torch.zeros(3, 4), torch.zeros(5, 4)], layout=torch.jagged)
    held = size_of(Holder(buffer=nested))
    assert held >= 8 * 4 * 4


def test_a_model_of_nothing() -> None:
    assert ModelSizeEstimator(nn.ReLU()).estimate_size() == 0
    assert size_of(Holder(torch.zeros(0))) == 0


def test_lazy_models_are_refused() -> None:
    model = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(ValueError, match=r"no shape yet for 0\.weight, 0\.bias; call it once"):
        ModelSizeEstimator(model)
    model(torch.zeros(1, 5))
    assert size_of(model) == 4 * (15 + 3)


@pytest.mark.parametrize("multiplier", [0, -1, float("nan"), float("inf")])
def test_multipliers_that_are_none(multiplier: float) -> None:
    with pytest.raises(ValueError, match="size_multiplier is"):
        ModelSizeEstimator(nn.ReLU(), multiplier)


class TestActivations:
    def test_what_autograd_keeps(self) -> None:
        model = nn.Sequential(nn.Linear(10, 100), nn.Tanh(), nn.Linear(100, 1))
        estimator = ModelSizeEstimator(model, 1)
        sample = torch.zeros(32, 10)
        # the input of the first layer, and the output of tanh, which is the input of the second
        assert estimator.get_activation_sizes(sample) * MB == 4 * 32 * (10 + 100)
        parameters = estimator.get_parameter_sizes()
        assert estimator.estimate_size(sample) == parameters + estimator.get_activation_sizes(
            sample
        )

    def test_they_grow_with_the_batch(self) -> None:
        estimator = ModelSizeEstimator(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()))
        one, two = (estimator.get_activation_sizes(torch.zeros(n, 3, 32, 32)) for n in (1, 2))
        assert two == pytest.approx(2 * one)

    def test_frozen_models_keep_nothing(self) -> None:
        model = nn.Sequential(nn.Linear(10, 100), nn.Tanh()).requires_grad_(False)
        assert ModelSizeEstimator(model).get_activation_sizes(torch.zeros(32, 10)) == 0

    def test_a_model_on_meta(self) -> None:
        sample: Any = torch.zeros(32, 10, device="meta")
        with torch.device("meta"):
            model = nn.Sequential(nn.Linear(10, 100), nn.Tanh(), nn.Linear(100, 1))
        assert ModelSizeEstimator(model).get_activation_sizes(sample) * MB == 4 * 32 * 110

    def test_the_model_is_left_as_it_was(self) -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout())
        model[2].eval()
        before = {name: each.clone() for name, each in model.state_dict().items()}
        ModelSizeEstimator(model).get_activation_sizes(torch.ones(3, 4))
        assert all(torch.equal(before[name], each) for name, each in model.state_dict().items())
        assert [each.training for each in model.modules()] == [True, True, True, False]
        assert all(each.grad is None for each in model.parameters())

    def test_arguments_by_name(self) -> None:
        model = nn.Bilinear(3, 4, 5)
        estimator, (one, other) = ModelSizeEstimator(model), (torch.ones(2, 3), torch.ones(2, 4))
        sizes = {
            estimator.get_activation_sizes((one, other)),
            estimator.get_activation_sizes((one,), input2=other),
            estimator.get_activation_sizes(None, input1=one, input2=other),
        }
        assert len(sizes) == 1


def test_models_of_torch_against_their_state() -> None:
    models = [nn.TransformerDecoderLayer(16, 2, 32), nn.GRU(3, 5), nn.Conv3d(2, 3, 3)]
    for model in models:
        entries = itertools.chain(model.parameters(), model.buffers())
        assert size_of(model) == sum(each.nbytes for each in entries)
