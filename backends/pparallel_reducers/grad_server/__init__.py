"""The gradient server: members push gradients to secondaries, those sums to primaries.

Bottom-up: ``image`` and ``shares`` (what lies where in the messages, and in which primary's),
``flat`` and ``sums`` (gradients in memory, and their sums), ``gradient`` and ``squeezed`` (one on
its way out), ``courier`` (how messages of several pieces travel), ``stage`` and ``level`` (a queue
and its thread, which sums), ``stepper``, ``board`` and ``primary`` (the optimizer's step, and where
it is published), ``tickets``, ``clock``, ``pace`` and ``pacing`` (bounded staleness), ``who``,
``run``, ``routes``, ``pusher``, ``follower`` and ``roles`` (who does what, and how it is reached),
``client``, ``reducer``.
"""
