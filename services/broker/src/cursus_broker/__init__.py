"""The Cursus broker: a durable, partitioned message log over gRPC. `app.py` puts the parts together."""
