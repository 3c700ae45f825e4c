"""What runs in a worker: it takes lots of tasks, runs them, and reports."""
