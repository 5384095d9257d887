"""What the broker must remember besides records: topics, groups and committed offsets, in one SQLite file."""
