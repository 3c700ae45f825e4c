"""What pools whose workers are processes share: accounts of tasks, and what a worker runs."""
