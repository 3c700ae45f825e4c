"""The workers as the pool sees them: how they start, serve, die and are replaced."""
