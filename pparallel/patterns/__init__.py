"""What programs are built from, above any backend: rounds of messages, work in parallel."""

from pparallel.patterns.parallel import Parallel, Parallelizable
from pparallel.patterns.sync_master import SlavePipe, SyncMaster

__all__ = ["Parallel", "Parallelizable", "SlavePipe", "SyncMaster"]
