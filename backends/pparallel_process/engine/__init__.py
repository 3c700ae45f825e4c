"""The pool's own side: what waits, who is sent what, and what comes back."""
