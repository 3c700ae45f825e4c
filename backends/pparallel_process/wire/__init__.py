"""What goes between the pool and its workers, and how each waits for the other."""
