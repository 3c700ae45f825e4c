"""Measures of speed, memory and recovery, each beside its peers. Run ``python -m benchmarks``."""
