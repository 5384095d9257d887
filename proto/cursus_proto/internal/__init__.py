"""Generated: what only the services themselves speak."""
