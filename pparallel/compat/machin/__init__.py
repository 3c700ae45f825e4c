"""``machin.parallel``: import its modules from here, as in ``pparallel.compat.machin.pool``."""
