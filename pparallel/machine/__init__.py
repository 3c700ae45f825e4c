"""The machine as this process may use it: cores, memory, threads, the limits of control groups."""
