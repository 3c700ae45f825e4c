"""Compression of gradients: what arrives, what is owed, and that networks still learn."""

from __future__ import annotations

import importlib.util
import io
import math
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from typing_extensions import override

import pparallel
from pparallel.errors import ConfigError
from pparallel_reducers.compression import (
    Bf16CompressionConfig,
    Compressed,
    CompressionConfig,
    Compressor,
    PowerSgdCompressionConfig,
    Shapes,
    TopKCompressionConfig,
    shapes_of,
)
from pparallel_reducers.gradients import gradient
from pparallel_reducers.layout import Flats, Layout

KINDS: dict[str, CompressionConfig] = {
    "bf16": Bf16CompressionConfig(),
    "topk": TopKCompressionConfig(ratio=0.1),
    "powersgd": PowerSgdCompressionConfig(rank=2),
}


@pytest.fixture(params=KINDS)
def config(request: pytest.FixtureRequest) -> CompressionConfig:
    return KINDS[request.param]


def drawn(shapes: Shapes, seed: int = 0, scale: float = 1.0) -> Flats:
    """Return flat tensors of random numbers."""
    random = torch.Generator().manual_seed(seed)
    flats = {}
    for dtype, own in shapes.items():
        size = sum(map(math.prod, own))
        flats[dtype] = (scale * torch.randn(size, generator=random)).to(dtype)
    return flats


def arrived(message: Compressed, shapes: Shapes) -> Compressed:
    """Return *message* as the receiver has it."""
    memory = [bytearray(each) for each in message.memory()]
    return Compressed.received(shapes, message.body(), memory)


MATRIX: Shapes = {torch.float32: [(40, 30), (7,), (8, 3, 5)]}
SIZE = 40 * 30 + 7 + 8 * 3 * 5


# -- what is sent, and what is owed ---------------------------------------------------------------


@given(
    kind=st.sampled_from(list(KINDS)),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16]),
    pushes=st.lists(st.tuples(st.booleans(), st.floats(1e-3, 1e3)), max_size=12),
)
@settings(max_examples=60)
def test_all_that_was_accepted_and_what_is_owed_are_all_gradients(
    kind: str, dtype: torch.dtype, pushes: list[tuple[bool, float]]
) -> None:
    shapes: Shapes = {dtype: MATRIX[torch.float32]}
    compressor = Compressor(KINDS[kind], shapes)
    pushed = torch.zeros(SIZE, dtype=torch.float64)
    sent = torch.zeros(SIZE, dtype=torch.float64)
    largest = 0.0
    for seed, (accepted, scale) in enumerate(pushes):
        gradients = drawn(shapes, seed, scale)
        untouched = gradients[dtype].clone()
        message = compressor.compress(gradients)
        if accepted:
            pushed += untouched
            arrived(message, shapes).add_to({dtype: sent})
            largest = max(largest, scale)
        compressor.settle(accepted)
        assert torch.equal(gradients[dtype], untouched)
    owed = compressor.owed().get(dtype, torch.zeros(SIZE))
    torch.testing.assert_close(sent + owed, pushed, rtol=0, atol=largest * 1e-4)


def test_a_message_that_was_not_settled_counts_as_refused(config: CompressionConfig) -> None:
    compressor, twin = Compressor(config, MATRIX), Compressor(config, MATRIX)
    for each in (compressor, twin):
        each.compress(drawn(MATRIX, 1))
        each.settle(True)
    owed = compressor.owed()[torch.float32]
    compressor.compress(drawn(MATRIX, 2))
    assert torch.equal(compressor.owed()[torch.float32], owed)
    compressor.settle(False)
    compressor.settle(True)
    assert torch.equal(compressor.owed()[torch.float32], owed)
    for each in (compressor, twin):
        each.compress(drawn(MATRIX, 3))
        each.settle(True)
    if config.kind != "powersgd":  # whose approximation of the next gradient may differ
        torch.testing.assert_close(compressor.owed(), twin.owed())


def test_added_to_a_sum_it_is_what_it_is_alone(config: CompressionConfig) -> None:
    message = arrived(Compressor(config, MATRIX).compress(drawn(MATRIX, 1)), MATRIX)
    total = drawn(MATRIX, 2)
    expected = total[torch.float32] + message.dense()[torch.float32]
    message.add_to(total)
    torch.testing.assert_close(total[torch.float32], expected)


def test_bytes(config: CompressionConfig) -> None:
    message = Compressor(config, MATRIX).compress(drawn(MATRIX))
    count = round(0.1 * SIZE)
    expected = {
        "bf16": SIZE * 4 // 2,
        "topk": count * (4 + 4),
        "powersgd": 4 * (2 * (40 + 30) + 7 + 2 * (8 + 15)),
    }
    assert message.nbytes == expected[config.kind]


def test_the_largest_are_sent() -> None:
    shapes: Shapes = {torch.float32: [(10,)]}
    gradient = torch.tensor([0, -5, 1, 0, 4, 4, 0, -3, 2, 4.0])
    compressor = Compressor(TopKCompressionConfig(ratio=0.3), shapes)
    sent = compressor.compress({torch.float32: gradient}).dense()[torch.float32]
    assert sent.tolist() == [0, -5, 0, 0, 4, 4, 0, 0, 0, 0]
    compressor.settle(True)
    sent = compressor.compress({torch.float32: torch.zeros(10)}).dense()[torch.float32]
    assert sent.tolist() == [0, 0, 0, 0, 0, 0, 0, -3, 2, 4]
    compressor.settle(True)
    rest = compressor.compress({torch.float32: torch.eye(10)[6]})
    compressor.settle(True)
    assert rest.nbytes == 2 * 8, "no zeros are sent"
    assert not compressor.owed()[torch.float32].any()
    assert compressor.compress({torch.float32: torch.zeros(10)}).nbytes == 0


def test_a_matrix_of_low_rank_is_sent_as_good_as_whole() -> None:
    shapes: Shapes = {torch.float64: [(30, 20)]}
    random = torch.Generator().manual_seed(0)
    left, right = (torch.randn(n, 2, generator=random, dtype=torch.float64) for n in (30, 20))
    flat = (left @ right.T).flatten()
    sent = Compressor(KINDS["powersgd"], shapes).compress({torch.float64: flat})
    torch.testing.assert_close(sent.dense()[torch.float64], flat)


def test_a_matrix_is_approximated_the_better_the_longer_it_stays() -> None:
    flats = drawn(MATRIX)
    compressor = Compressor(KINDS["powersgd"], MATRIX)
    best = torch.linalg.svdvals(flats[torch.float32][: 40 * 30].view(40, 30))[2:].norm()
    errors = []
    for _ in range(40):
        sent = compressor.compress(flats).dense()[torch.float32]
        compressor.settle(False)
        errors.append((sent - flats[torch.float32])[: 40 * 30].norm() / best)
    assert errors[-1] < min(1.02, errors[0])


@pytest.mark.parametrize("ratio", [0.5, 1.0])
def test_nothing_is_sent_in_more_bytes_than_it_has(ratio: float) -> None:
    shapes: Shapes = {torch.float32: [(9, 2)]}
    for config in (TopKCompressionConfig(ratio=ratio), PowerSgdCompressionConfig(rank=2)):
        compressor = Compressor(config, shapes)
        message = compressor.compress(drawn(shapes))
        assert message.nbytes == 18 * 4
        assert torch.equal(message.dense()[torch.float32], drawn(shapes)[torch.float32])
        compressor.settle(True)
        assert compressor.owed() == {}


def test_dtypes_that_cannot_be_made_smaller_go_as_they_are(config: CompressionConfig) -> None:
    shapes: Shapes = {
        torch.complex64: [(20, 30)],
        torch.float8_e4m3fn: [(20, 30)],
        torch.float16: [(20, 30)],
        torch.float64: [(0, 4), ()],
        torch.float32: [(0, 4)],
    }
    flats = drawn(shapes)
    message = arrived(Compressor(config, shapes).compress(flats), shapes)
    sent = dict(zip(shapes, message.body(), strict=True))
    assert sent[torch.complex64] == sent[torch.float8_e4m3fn] == ("whole", ())
    assert sent[torch.float32] == ("whole", ())
    assert sent[torch.float16][0] == {"bf16": "whole"}.get(config.kind, config.kind)


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_is_seen_by_the_receiver_and_not_kept(
    config: CompressionConfig, bad: float
) -> None:
    compressor = Compressor(config, MATRIX)
    compressor.compress(drawn(MATRIX, 1))
    compressor.settle(True)
    owed = compressor.owed()[torch.float32]
    flats = drawn(MATRIX, 2)
    flats[torch.float32][17] = bad
    message = arrived(compressor.compress(flats), MATRIX)
    assert not message.finite()
    torch.testing.assert_close(message.dense(), flats, equal_nan=True)
    compressor.settle(True)
    assert torch.equal(compressor.owed()[torch.float32], owed)
    assert arrived(compressor.compress(drawn(MATRIX, 3)), MATRIX).finite()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_largest_numbers_stay_finite(config: CompressionConfig, dtype: torch.dtype) -> None:
    shapes: Shapes = {dtype: [(40, 30), (7,)]}
    largest = torch.finfo(dtype).max
    flats = {dtype: torch.full((40 * 30 + 7,), largest, dtype=dtype)}
    compressor = Compressor(config, shapes)
    for _ in range(3):
        message = arrived(compressor.compress(flats), shapes)
        assert message.finite()
        compressor.settle(True)
        assert all(each.isfinite().all() for each in compressor.owed().values())
        flats = drawn(shapes)


# -- gradients that are zero at first -------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rank", [1, 4])
def test_rows_that_come_after_zeros_are_sent(dtype: torch.dtype, rank: int) -> None:
    """Nothing at first, as before an open gate, and then rows beyond the first few."""
    shapes: Shapes = {dtype: [(40, 30)]}
    compressor = Compressor(PowerSgdCompressionConfig(rank=rank), shapes)
    sent = torch.zeros(40, 30, dtype=torch.float64)
    pushed = torch.zeros(40, 30, dtype=torch.float64)
    rows = torch.zeros(40, 1, dtype=dtype)
    rows[30:] = 1
    for step in range(60):
        gradient = torch.zeros(40, 30, dtype=dtype)
        if step in (3, 4):
            gradient = rows * drawn(shapes, step)[dtype].view(40, 30)
        pushed += gradient
        message = compressor.compress({dtype: gradient.flatten()})
        arrived(message, shapes).add_to({dtype: sent.view(-1)})
        compressor.settle(True)
    assert (sent - pushed).norm() < 0.1 * pushed.norm()


@pytest.mark.parametrize("exponent", [-110, 100])
def test_tiny_and_huge_matrices_are_approximated_as_others_are(exponent: int) -> None:
    """Numbers of which products are zero, or infinite: the same, times a power of two."""
    shapes: Shapes = {torch.float32: [(40, 30)]}
    scale = 2.0**exponent
    ordinary, scaled = (Compressor(PowerSgdCompressionConfig(rank=2), shapes) for _ in range(2))
    for step in range(6):
        gradient = drawn(shapes, step)[torch.float32]
        expected = ordinary.compress({torch.float32: gradient}).dense()[torch.float32]
        ordinary.settle(True)
        found = scaled.compress({torch.float32: gradient * scale}).dense()[torch.float32]
        scaled.settle(True)
        torch.testing.assert_close(found / scale, expected, rtol=1e-3, atol=1e-3)


def test_what_is_drawn_anew_is_the_same_each_time() -> None:
    """Whatever else draws numbers meanwhile."""
    messages: list[list[bytes]] = [[], []]
    for found in messages:
        compressor = Compressor(KINDS["powersgd"], MATRIX)
        for seed in range(6):
            torch.rand(3)
            flats = drawn(MATRIX, seed, scale=float(seed % 3 == 2))
            found += [bytes(each) for each in compressor.compress(flats).memory()]
            compressor.settle(True)
    assert messages[0] == messages[1]


class Gated(nn.Module):
    """An embedding whose gate is closed: its first gradient is zero, the gate's is not."""

    def __init__(self) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(5)
        self.embedding = nn.Embedding(50, 16)
        self.embedding.weight.data = torch.randn(50, 16, generator=random)
        self.gate = nn.Parameter(torch.zeros(()))

    @override
    def forward(self, words: torch.Tensor) -> torch.Tensor:
        embedded: torch.Tensor = self.embedding(words)
        return self.gate * embedded


def moved_behind_a_gate(config: CompressionConfig) -> float:
    """Train on words that are far from the first few; return how far the embedding came."""
    model, words = Gated(), torch.arange(30, 50)
    goal = torch.randn(20, 16, generator=torch.Generator().manual_seed(6))
    start = model.embedding.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    layout = Layout.of(model)
    compressor = Compressor(config, shapes_of(layout.entries))
    for _ in range(200):
        model.zero_grad()
        (model(words) - goal).square().sum(1).mean().backward()
        message = compressor.compress(
            layout.gradients.pack(lambda name: gradient(name, model.get_parameter(name)))
        )
        for name, view in layout.gradients.views(message.dense()):
            model.get_parameter(name).grad = view
        compressor.settle(True)
        optimizer.step()
    return float((model.embedding.weight.detach() - start).norm())


def test_an_embedding_behind_a_closed_gate_learns() -> None:
    exact = moved_behind_a_gate(TopKCompressionConfig(ratio=0.99))
    assert moved_behind_a_gate(TopKCompressionConfig(ratio=0.1)) > 0.5 * exact
    assert moved_behind_a_gate(PowerSgdCompressionConfig(rank=2)) > 0.5 * exact


# -- saving and loading ---------------------------------------------------------------------------


def saved_and_loaded(state: dict[str, Any]) -> Any:
    memory = io.BytesIO()
    torch.save(state, memory)
    memory.seek(0)
    return torch.load(memory, weights_only=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_a_compressor_goes_on_from_its_state(config: CompressionConfig, dtype: torch.dtype) -> None:
    shapes: Shapes = {dtype: MATRIX[torch.float32], torch.int64: [(3,)]}
    first, then = Compressor(config, shapes), Compressor(config, shapes)
    for seed in range(5):
        first.compress(drawn(shapes, seed, scale=float(seed != 3)))
        first.settle(seed != 2)
    state = first.state_dict()
    kept = saved_and_loaded(state)
    for seed in range(5, 8):
        first.compress(drawn(shapes, seed))
        first.settle(True)
    then.load_state_dict(saved_and_loaded(state))
    again = Compressor(config, shapes)
    again.load_state_dict(kept)
    for seed in range(5, 8):
        bodies = [each.compress(drawn(shapes, seed)) for each in (then, again)]
        memory = [[bytes(part) for part in each.memory()] for each in bodies]
        assert memory[0] == memory[1], "what is saved changed with the compressor"
        for each in (then, again):
            each.settle(True)
    for dtypes, owed in first.owed().items():
        assert torch.equal(owed, then.owed()[dtypes])


@pytest.mark.parametrize(
    ("config", "shapes", "match"),
    [
        (TopKCompressionConfig(), MATRIX, "of kind 'powersgd', and this is 'topk'"),
        (PowerSgdCompressionConfig(rank=3), MATRIX, r"shape \(30, 2\).*takes one of \(30, 3\)"),
        (
            KINDS["powersgd"],
            {torch.float32: [(40, 31), (7,), (8, 2, 5)]},
            r"shape \(30, 2\) for tensor 0, which takes one of \(31, 2\)",
        ),
        (KINDS["powersgd"], {torch.float64: [(40, 30)]}, "of float32, and these are of float64"),
        (KINDS["powersgd"], {torch.float32: [(40, 30)]}, "has 1327 numbers .* take 1200"),
    ],
)
def test_the_state_of_another_compressor_is_refused(
    config: CompressionConfig, shapes: Shapes, match: str
) -> None:
    former = Compressor(KINDS["powersgd"], MATRIX)
    former.compress(drawn(MATRIX))
    former.settle(True)
    compressor = Compressor(config, shapes)
    with pytest.raises(ValueError, match=match):
        compressor.load_state_dict(former.state_dict())
    assert not any(each.any() for each in compressor.owed().values()), "a part was loaded"


# -- messages that are not what they should be ----------------------------------------------------


def refused(body: object, memory: list[Any], match: str, shapes: Shapes = MATRIX) -> None:
    with pytest.raises(ValueError, match=match):
        Compressed.received(shapes, body, memory)


def indices(*given: int) -> bytearray:
    return bytearray(torch.tensor(given, dtype=torch.int32).numpy().tobytes())


@pytest.mark.parametrize(
    "body",
    [
        *[None, 7, "topk", [7], [["topk"]], [["topk", 3]], [["topk", [True]]], [["zip", []]]],
        *[[["topk", ["3"]]], [[["topk"], [3]]], [{"topk": [3]}], [["topk", [3], 4]]],
        *[[["topk", "3"]]],
    ],
)
def test_what_is_no_message_is_refused(body: object) -> None:
    refused(body, [], "arrived where a kind and its words belong; kinds: whole, bf16, topk")


def test_sizes_and_indices_are_checked() -> None:
    refused([], [], "0 dtypes arrived, and the model has 1")
    whole, bf16, topk, low = (["whole", []], ["bf16", []], ["topk", [2]], ["powersgd", [2]])
    refused([whole], [], "ends before torch.float32 sent whole")
    refused([whole], [bytearray(8)], f"8 bytes of .* sent whole arrived, not {SIZE * 4}")
    refused([["whole", [1]]], [], "'whole' takes no words")
    refused([["bf16", [1]]], [], "'bf16' takes no words")
    refused([bf16], [bytearray(SIZE * 4)], f"not {SIZE * 2}")
    refused([bf16], [bytearray(SIZE * 2), bytearray()], "1 buffers more")
    refused([topk], [indices(1)], "4 bytes of the indices of torch.float32 arrived, not 8")
    refused([topk], [indices(1, 2)], "ends before the values")
    refused([topk], [indices(1, 2), bytearray(4)], "4 bytes of the values .* not 8")
    refused([topk], [indices(0, SIZE), bytearray(8)], f"indices from 0 to {SIZE}")
    refused([topk], [indices(-1, 3), bytearray(8)], "indices from -1 to 3")
    for words in ([], [-1], [SIZE + 1], [2**70], [1, 2]):
        refused([["topk", words]], [], "entries of .* are said to arrive")
    for words in ([], [0], [-1], [1, 2]):
        refused([["powersgd", words]], [], "a rank is at least 1")
    refused([low], [bytearray(4)], "4 bytes of torch.float32 sent with rank 2 arrived, not")
    integers: Shapes = {torch.int64: [(4,)]}
    refused([["topk", [1]]], [], "torch.int64 arrived as 'topk', and is never", integers)


def test_indices_that_come_twice_are_added_twice() -> None:
    values = bytearray(torch.tensor([1.0, 2.0]).numpy().tobytes())
    message = Compressed.received(MATRIX, [("topk", (2,))], [indices(5, 5), values])
    assert message.dense()[torch.float32][5] == 3


def test_memory_that_is_read_only_is_read() -> None:
    flats = drawn(MATRIX)
    message = Compressor(KINDS["bf16"], MATRIX).compress(flats)
    memory = [memoryview(bytearray(each)).toreadonly() for each in message.memory()]
    again = Compressed.received(MATRIX, message.body(), memory)
    torch.testing.assert_close(again.dense(), message.dense())


# -- configs --------------------------------------------------------------------------------------


def loaded(compression: object) -> Any:
    reducer = {"backend": "diloco", "compression": compression}
    return pparallel.load({"members": 2, "reducer": reducer}).reducer


def test_a_config_names_its_kind() -> None:
    assert loaded(None).compression is None
    assert loaded({"kind": "bf16"}).compression == Bf16CompressionConfig()
    assert loaded({"kind": "topk", "ratio": 0.5}).compression == TopKCompressionConfig(ratio=0.5)
    assert loaded({"kind": "powersgd", "rank": 3}).compression == PowerSgdCompressionConfig(rank=3)
    assert loaded(TopKCompressionConfig()).compression == TopKCompressionConfig()


@pytest.mark.parametrize(
    ("compression", "path", "said"),
    [
        ({"kind": "topkk"}, "kind", "unknown kind 'topkk'; .*bf16, topk.*Did you mean 'topk'"),
        ({"ratio": 0.5}, "kind", "no 'kind' is given; allowed: bf16, topk, powersgd"),
        ({"kind": ["topk"]}, "kind", "unknown kind"),
        ({"kind": "topk", "ration": 1}, "ration", "unknown key 'ration'.*Did you mean 'ratio'"),
        ({"kind": "bf16", "ratio": 0.1}, "ratio", "unknown key 'ratio'; allowed: kind"),
        ({"kind": "topk", "ratio": 0}, "ratio", "greater than 0"),
        ({"kind": "topk", "ratio": 1.5}, "ratio", "at most 1"),
        ({"kind": "topk", "ratio": float("nan")}, "ratio", "."),
        ({"kind": "powersgd", "rank": 0}, "rank", "at least 1"),
        ("topk", "", "."),
    ],
)
def test_a_config_that_is_wrong_names_the_key(compression: object, path: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        loaded(compression)
    assert caught.value.path == f"reducer.compression.{path}".rstrip(".")


def test_configs_and_compressors_are_there_without_torch() -> None:
    program = "import sys, pparallel_reducers.compression; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


# -- learning -------------------------------------------------------------------------------------

WORKERS, STEPS = 3, 300
ENTRIES = 64 * 128 + 128 + 128 * 10 + 10  #: of the network


class Forgetful(Compressor):
    """Gives no error feedback."""

    @override
    def settle(self, accepted: bool) -> None:
        super().settle(False)


def digits() -> ModuleType:
    path = Path(__file__).parents[2] / "examples" / "digits" / "train.py"
    spec = importlib.util.spec_from_file_location("digits_train", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def adam(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=3e-3, betas=(0.5, 0.999))


def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


Optimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


def trained(
    config: CompressionConfig, optimizer: Optimizer, make: type[Compressor] = Compressor
) -> tuple[float, int]:
    """Train on gradients of some workers that are compressed; return accuracy and bytes."""
    example, random = digits(), torch.Generator().manual_seed(7)
    (images, labels), held_out = example.digits()
    model = example.network(random)
    stepper = optimizer(model.parameters())
    layout = Layout.of(model)
    shapes = shapes_of(layout.entries)
    workers = [make(config, shapes) for _ in range(WORKERS)]
    sent = 0
    for _ in range(STEPS):
        total: Flats = {torch.float32: torch.zeros(ENTRIES)}
        for worker in workers:
            batch = torch.randint(len(images), (64,), generator=random)
            nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            message = worker.compress(
                layout.gradients.pack(lambda name: gradient(name, model.get_parameter(name)))
            )
            arrived(message, shapes).add_to(total)
            worker.settle(True)
            sent += message.nbytes
            model.zero_grad()
        for name, view in layout.gradients.views(total):
            model.get_parameter(name).grad = view / WORKERS
        stepper.step()
    return example.accuracy(model, *held_out), sent


BYTES: dict[str, tuple[CompressionConfig, int]] = {
    "topk": (TopKCompressionConfig(ratio=0.01), round(0.01 * ENTRIES) * 8),
    "powersgd": (PowerSgdCompressionConfig(rank=1), 4 * (64 + 128 + 128 + 128 + 10 + 10)),
}


@pytest.mark.parametrize(("kind", "optimizer"), [("topk", adam), ("topk", sgd), ("powersgd", sgd)])
def test_the_digits_are_learned(kind: str, optimizer: Optimizer) -> None:
    """With the same draws each time; without error feedback two of them do not, below."""
    config, each = BYTES[kind]
    accuracy, sent = trained(config, optimizer)
    assert accuracy >= 0.95
    assert sent == each * STEPS * WORKERS


@pytest.mark.parametrize("kind", ["topk", "powersgd"])
def test_it_is_the_error_feedback_that_makes_them_learn(kind: str) -> None:
    accuracy, sent = trained(BYTES[kind][0], sgd, Forgetful)
    assert sent == BYTES[kind][1] * STEPS * WORKERS
    assert accuracy < 0.92
