"""The workers' lives: where Ray puts them, who has died, who is replaced."""
