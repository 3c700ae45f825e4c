"""Ranks that are processes of this machine: the launching side, and what runs in a rank."""
