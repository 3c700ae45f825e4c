"""A model seen from outside: how large it is, and what its parts exchange and compute."""
