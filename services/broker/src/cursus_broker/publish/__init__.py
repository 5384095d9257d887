"""Publishing: checking, deduplicating and acknowledging record sets."""
