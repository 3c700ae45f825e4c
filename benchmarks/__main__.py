"""``python -m benchmarks``: see ``docs/benchmarks.md``."""

from __future__ import annotations

import os
import sys

# One thread for each kernel, in every process: two workers that compute with two threads each
# measure how the two cores are fought over. Read when torch and numpy are loaded, so set first.
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

from benchmarks.harness.command import main  # noqa: E402 - after what it reads

if __name__ == "__main__":
    sys.exit(main())
