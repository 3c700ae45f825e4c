"""The machine as this process may use it: cores, memory, threads, control groups; large copies."""
