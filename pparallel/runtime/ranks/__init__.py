"""What launchers share whose ranks are processes: a rank, and the context that hears of it."""
