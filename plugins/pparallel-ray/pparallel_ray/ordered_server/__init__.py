"""The ordered server on Ray: an actor keeps the versions, Ray's object store the large values.

Bottom-up: ``config``, ``keeper`` (the actor), ``finding`` (how members find it), ``client`` (what
is asked of it) and ``server``.
"""
