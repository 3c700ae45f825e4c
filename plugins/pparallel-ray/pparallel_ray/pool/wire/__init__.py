"""What passes between the pool, the supervisors and the workers, and in which form."""
