"""What a job is doing, counted from its events and shown to whoever waits for it."""
