"""``python -m pparallel`` is the command ``pparallel``."""

from __future__ import annotations

from pparallel.cli import main

if __name__ == "__main__":
    main()
