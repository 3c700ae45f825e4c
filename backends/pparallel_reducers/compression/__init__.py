"""Compression of gradients with error feedback.

What a message leaves out of a gradient is not lost: the sender keeps it and adds it to its next
gradient, so that all that was sent and what is still kept add up to all gradients.

A sender has a :class:`Compressor` for each model and run, and settles each message::

    compressor = Compressor(config.compression, shapes_of(layout.entries))
    message = compressor.compress(gradients)            # flat tensors on the CPU; not changed
    accepted = send(message.body(), message.memory())   # or `message` itself, in one process
    compressor.settle(accepted)

The receiver needs neither the config nor a state::

    message = Compressed.received(shapes_of(layout.entries), body, buffers)  # or ValueError
    total = message.dense()     # the first of a sum: new flat tensors
    message.add_to(total)       # the others: in place, and sparse where the message is

A message that was never settled counts as refused, so an exception on the way needs no handler.

Source: error feedback: Karimireddy, Rebjock, Stich, Jaggi, "Error Feedback Fixes SignSGD and other
Gradient Compression Schemes", ICML 2019.
"""

from __future__ import annotations

from pparallel_reducers.compression.compressor import Compressor
from pparallel_reducers.compression.config import (
    Bf16CompressionConfig,
    CompressionConfig,
    PowerSgdCompressionConfig,
    TopKCompressionConfig,
)
from pparallel_reducers.compression.message import Compressed
from pparallel_reducers.compression.pieces import Shapes, shapes_of

__all__ = [
    "Bf16CompressionConfig",
    "Compressed",
    "CompressionConfig",
    "Compressor",
    "PowerSgdCompressionConfig",
    "Shapes",
    "TopKCompressionConfig",
    "shapes_of",
]
