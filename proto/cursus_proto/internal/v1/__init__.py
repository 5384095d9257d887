"""Generated from cursus/internal/v1: the broker's view of record sets as bytes."""
