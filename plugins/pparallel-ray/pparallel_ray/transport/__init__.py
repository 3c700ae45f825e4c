"""The transport ``ray``: each message is a call of an actor.

Bottom-up: ``messages`` (what travels), ``keys`` (who may send what), ``broker`` (the actor from
which members pull), ``meeting`` (how it is found), ``dispatcher`` (the thread that acts on what
Ray's have brought), ``peer`` (messages to and from one member), ``connection`` (to the broker) and
``transport``.
"""
