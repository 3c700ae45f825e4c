"""joblib on pools: to import this module registers joblib's backend ``pparallel``.

Then ``joblib.parallel_config("pparallel", pool="process")`` has ``joblib.Parallel``, and with it
scikit-learn, run on a pool.
"""

from __future__ import annotations

from joblib.parallel import register_parallel_backend

from pparallel.joblib.backend import PoolBackend

__all__ = ["PoolBackend"]

register_parallel_backend("pparallel", PoolBackend)
