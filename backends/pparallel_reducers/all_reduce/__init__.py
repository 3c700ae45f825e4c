"""All-reduce: members combine their gradients, and each steps an optimizer of its own.

Bottom-up: ``buckets`` (what travels together), ``roll`` (what each member says of a step),
``state`` (what all begin and end with), ``exchange`` (how gradients travel: where they lie),
``flats`` (in flat tensors), ``overlap`` (during the backward pass), ``causes`` (who was lost
first), ``run``, ``reducer``.
"""
