"""Learn to tell sounds apart from spectrograms that a pool computes while the network learns.

A training loop that has to wait for its data is a common waste: here the workers of a pool prepare
the next spectrograms meanwhile. What the workers are, the config says.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from math import pi
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pparallel import Runtime

KINDS = ("sine", "sawtooth", "rising", "falling", "broken", "knocking", "noise")
RATE = 16_000  #: samples in a second, which is how long a recording is
BANDS = 32  #: of frequency, in a spectrogram


class Clip(NamedTuple):
    """What a worker is handed: a recording, and how to vary it."""

    recording: Tensor  #: [RATE] float32
    label: int
    seed: int


class Example(NamedTuple):
    """What a worker returns."""

    spectrogram: Tensor  #: [BANDS, frames] float32
    label: int


def main(
    rt: Runtime, *, clips: int = 3_000, batch_size: int = 50, lr: float = 3e-3
) -> dict[str, float]:
    """Train, and return the accuracy on clips that were not trained on.

    Args:
        rt: this member's runtime.
        clips: how many clips to train on.
        batch_size: clips in a batch.
        lr: learning rate.
    """
    torch.set_num_threads(1)
    random = rt.streams.torch
    model = network(random)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    recordings = [record(each % len(KINDS), random) for each in range(50 * len(KINDS))]

    # As many clips are on their way as the pool looks ahead, however many there are in all.
    examples = rt.pool.imap(prepare, vary(recordings, clips, random))
    for step, (spectrograms, labels) in enumerate(batched(examples, batch_size), start=1):
        loss = nn.functional.cross_entropy(model(spectrograms), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            rt.report(step=step, loss=loss.item())

    held_out = [record(each % len(KINDS), random) for each in range(30 * len(KINDS))]
    tests = rt.pool.imap(prepare, vary(held_out, len(held_out), random))
    (spectrograms, labels), *_ = batched(tests, len(held_out))
    with torch.no_grad():
        right = model(spectrograms).argmax(1) == labels
    return {"accuracy": right.float().mean().item(), "loss": loss.item()}


def prepare(clip: Clip) -> Example:
    """Vary a recording and return its spectrogram, on a logarithmic scale; run by the workers."""
    random = torch.Generator().manual_seed(clip.seed)
    shift, gain, hiss = torch.rand(3, generator=random).tolist()
    sound = clip.recording.roll(int(shift * RATE)) * (0.3 + gain)
    sound += 0.1 * hiss * torch.randn(RATE, generator=random)
    spectrum = torch.stft(sound, 512, 256, window=torch.hann_window(512), return_complex=True)
    power = spectrum.abs().square()[1:]  # [256, frames]
    bands = power.reshape(BANDS, -1, power.shape[1]).mean(1)
    loudness = bands.add_(1e-3).log_()
    return Example((loudness - loudness.mean()) / loudness.std(), clip.label)


def vary(recordings: list[Tensor], clips: int, random: torch.Generator) -> Iterator[Clip]:
    """Yield so many clips, made of the recordings in random order; these come kind by kind."""
    for _ in range(clips):
        index, seed = torch.randint(2**40, (2,), generator=random).tolist()
        index %= len(recordings)
        yield Clip(recordings[index], index % len(KINDS), seed)


def record(kind: int, random: torch.Generator) -> Tensor:
    """Return a sound of one of ``KINDS``, at a random pitch: [RATE] float32."""
    time = torch.arange(RATE) / RATE
    pitch = 200 + 600 * torch.rand((), generator=random)
    turns = pitch * time
    match KINDS[kind]:
        case "sine":
            return torch.sin(2 * pi * turns)
        case "sawtooth":
            return 2 * turns.frac() - 1
        case "rising":
            return torch.sin(2 * pi * turns * (1 + 2 * time))
        case "falling":
            return torch.sin(2 * pi * turns * (5 - 2 * time))
        case "broken":
            return torch.sin(2 * pi * turns) * (torch.sin(2 * pi * 5 * time) > 0)
        case "knocking":
            return torch.sin(2 * pi * turns) * (time * 8).frac().mul(-30).exp()
        case _:
            return 0.5 * torch.randn(RATE, generator=random)


def batched(examples: Iterable[Example], size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of spectrograms [size, BANDS, frames] and of labels [size]."""
    source = iter(examples)
    while batch := [*islice(source, size)]:
        yield (
            torch.stack([each.spectrogram for each in batch]),
            torch.tensor([each.label for each in batch]),
        )


def network(random: torch.Generator) -> nn.Module:
    """Return an untrained network from spectrograms to kinds, its weights drawn from *random*."""
    model = nn.Sequential(
        nn.Conv1d(BANDS, 32, 5, stride=2),
        nn.ReLU(),
        nn.Conv1d(32, 32, 5, stride=2),
        nn.ReLU(),
        nn.AdaptiveMaxPool1d(4),
        nn.Flatten(),
        nn.Linear(128, len(KINDS)),
    )
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.kaiming_uniform_(parameter, nonlinearity="relu", generator=random)
        else:
            nn.init.zeros_(parameter)
    return model
