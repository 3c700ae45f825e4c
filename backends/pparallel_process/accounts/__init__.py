"""What the pool knows of its tasks and of its workers."""
