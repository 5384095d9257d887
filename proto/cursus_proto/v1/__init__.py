"""Generated from cursus/v1: the public contract."""
