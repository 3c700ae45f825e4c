"""Objects of :mod:`multiprocessing`, by the reducers that it has for them.

Most refuse to be sent to any process but one that is being started. The ends of its pipes do not:
pickled like any other object they would arrive as the bare numbers of descriptors.
"""

from __future__ import annotations

import copyreg
import io
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pparallel_serializers.outofband import OutOfBandPickler, Reducer, Reduction

Table = Mapping[type, Callable[[Any], Any]]


def table() -> Table:
    """Return how objects are reduced for a process that is being started.

    Those of torch's are left out: whether tensors are shared is not for them to say.
    """
    reduction: Any = sys.modules.get("multiprocessing.reduction")
    if reduction is None:
        return copyreg.dispatch_table
    everything: Table = reduction.ForkingPickler(io.BytesIO()).dispatch_table
    return {
        kind: reduce
        for kind, reduce in everything.items()
        if not str(getattr(reduce, "__module__", "")).startswith("torch.")
    }


def reducers() -> dict[type, Reducer]:
    """Return how the ends of pipes are reduced, whoever they are sent to."""
    from multiprocessing.connection import Connection

    return {Connection: _reduce_connection}


def _reduce_connection(pickler: OutOfBandPickler, connection: Any) -> Reduction:
    return table()[type(connection)](connection)
