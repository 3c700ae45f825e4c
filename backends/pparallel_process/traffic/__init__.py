"""How tasks get to the workers, and who is waited for."""
