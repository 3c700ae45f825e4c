"""The model server: members push parameters, as versions of one chain.

``chain`` is that chain, ``reducer`` steps and pushes.
"""
