"""``gluonnlp.utils.parallel``: threads that run forward and backward of one object."""

from __future__ import annotations

from typing_extensions import override

from pparallel.patterns.parallel import Parallel as _Parallel
from pparallel.patterns.parallel import Parallelizable
from pparallel.runtime import stopping

__all__ = ["Parallel", "Parallelizable"]


class Parallel(_Parallel):
    """:class:`pparallel.Parallel`, but :meth:`get` may be called before :meth:`put`.

    Then it waits for what another thread is going to put.

    Source: gluonnlp.utils.parallel.
    """

    @override
    def _check_put(self) -> None:
        told: list[BaseException] = []

        def stop(why: BaseException) -> None:
            with self._lock:
                told.append(why)
                self._lock.notify_all()

        with stopping.waking(stop):
            self._lock.wait_for(lambda: self._outstanding or self._closed or told)
        if told and not self._outstanding:
            raise told[0]
        super()._check_put()
