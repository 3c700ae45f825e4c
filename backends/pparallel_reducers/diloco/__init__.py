"""DiLoCo: members step by themselves, and now and then an outer step averages them.

Bottom-up: ``weights`` (what is averaged), ``packing`` and ``pieces`` (how it travels), ``rounds``
(who is waited for), ``outer`` (the outer step), ``coordinator`` (the thread that makes it),
``desks`` (how members reach the coordinator), ``office`` (how it answers them), ``reducer``.
"""
