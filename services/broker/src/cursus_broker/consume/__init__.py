"""Consuming: the tail in memory, fetches, streams and group subscriptions."""
