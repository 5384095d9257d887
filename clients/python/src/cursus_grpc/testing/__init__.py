"""A real broker for tests."""
