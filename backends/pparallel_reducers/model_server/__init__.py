"""The model server: members push parameters, as versions of one chain.

``chain`` is that chain, ``snapshot`` undoes a step whose push failed, ``reducer`` steps and pushes.
"""
