"""The Cursus gateway: speaks the TCP protocol of legacy clients, and gRPC to the broker."""

from importlib.metadata import version

__version__ = version("cursus-gateway")
