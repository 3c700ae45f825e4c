"""What the pool knows: its workers, and which tasks wait, run and are not reported yet."""
