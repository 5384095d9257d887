"""The Cursus broker: a durable, partitioned message log over gRPC. `app.py` puts the parts together."""

from importlib.metadata import version

__version__ = version("cursus-broker")
