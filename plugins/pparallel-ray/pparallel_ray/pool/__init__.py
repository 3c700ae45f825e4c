"""The pool on Ray."""
