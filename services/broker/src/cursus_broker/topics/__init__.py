"""Topics and their partitions: names, configuration, routing, and the catalog that owns them."""
