"""One module per line of the table: which processes, which load, which sides are compared, and the bar."""
