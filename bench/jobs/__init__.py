"""What a client process does: one module per kind of load, the same code against the broker and against the floor."""
