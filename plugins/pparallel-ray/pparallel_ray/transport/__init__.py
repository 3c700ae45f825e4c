"""The transport ``ray``: each message is part of a call of an actor.

Bottom-up: ``messages`` (what travels), ``keys`` (who may say what), ``exchange`` (the actor where a
job's members meet and from which they pull), ``meeting`` (how it is found), ``post`` (the thread
that does what Ray's have brought), ``outbox`` (keeps what is sent together, and within bounds),
``sequence`` and ``inbound`` (put what comes in order, and open it), ``link`` (a member's end of its
connection to the exchange) and ``transport``.
"""
