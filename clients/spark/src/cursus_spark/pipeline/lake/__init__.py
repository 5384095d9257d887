"""The lake that `archive` writes, `compact` merges and `replay` reads: its layout, and how files come and go so that no
reader ever sees a record twice, or misses one. Knows Spark only where rows come from it."""
