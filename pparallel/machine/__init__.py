"""The machine as this process may use it: cores, memory, threads, limits of control groups; copies."""
