"""The launcher on Ray: members where Ray has room for them.

Ray does not say how a process has ended, so a rank runs in a child of the actor that Ray places,
which does. Bottom-up: ``config``, ``messages`` (what is said to a rank, and by it), ``needs`` (what
ranks ask for), ``placing`` (how they get it, all or none), ``rank`` (what runs in a rank's
process), ``supervisor`` (the actor), ``ray_rank`` (a rank, seen from where it was launched),
``starting``, ``context`` and ``launcher``.
"""
