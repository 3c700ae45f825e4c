"""Tell the sinks what a worker has returned, where not all of it is plain."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pparallel.errors import SerializationError
from pparallel.runtime.pools.lots import Lot


def tell_each(
    lot: Lot,
    first: int,
    entries: Sequence[Any],
    errors: Mapping[int, Any],
    files: list[Any],
    *,
    load: Callable[[bytes, Sequence[Any]], Any],
    error_of: Callable[[Any], BaseException],
) -> None:
    """Tell of the tasks of *lot* from place *first* on: values in runs, failures one by one.

    Args:
        lot: whose tasks they are.
        first: the place of the first.
        entries: for each a plain value, or the head of its parcel and the number of its files.
        errors: the envelopes of what tasks raised, by place.
        files: what belongs to the parcels; taken out.
        load: returns the object in a parcel.
        error_of: returns what is in an envelope.
    """
    values: list[Any] = []
    start = first
    for place, entry in enumerate(entries, first):
        error: BaseException | None = None
        if place in errors:
            error = error_of(errors[place])
        elif type(entry) is tuple:
            head, count = entry
            try:
                values.append(load(head, files[:count]))
            except SerializationError as refused:
                error = refused
            finally:
                del files[:count]
        else:
            values.append(entry)
        if error is not None:
            if values:
                lot.done(start, values)
            values, start = [], place + 1
            job, index = lot.task(place)
            job.sink.failed(index, error)
    if values:
        lot.done(start, values)
