"""Whose memory tensors arrive in: one rule for processes, pools and queues.

A tensor that the program has put into shared memory stays shared: all see each other's writes. Any
other arrives as the receiver's own; one in the midst of a graph is refused.
"""

from __future__ import annotations

from typing import Final

SERIALIZER: Final = {"backend": "dill", "keep_shared": True}
