"""gRPC over HTTP/2 on the event loop's own thread.

What passes between two processes is gRPC, and either end may be any implementation of it. What differs from grpcio is
where the work is done: see docs/adr.
"""

from cursus_transport.budget import Budget
from cursus_transport.channel import Channel, ChannelClosed, StreamCall, UnaryMethod
from cursus_transport.connection import Limits
from cursus_transport.errors import NotConnected, StreamLost, forget_frames
from cursus_transport.server import Call, Server

__all__ = [
    "Budget",
    "Call",
    "Channel",
    "ChannelClosed",
    "Limits",
    "NotConnected",
    "Server",
    "StreamCall",
    "StreamLost",
    "UnaryMethod",
    "forget_frames",
]
