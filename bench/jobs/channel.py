"""A client's connection."""

from __future__ import annotations

import grpc


def connect(address: str) -> grpc.aio.Channel:
    """A channel with a connection of its own and no limits on message size."""
    return grpc.aio.insecure_channel(
        address,
        options=[
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
            ("grpc.use_local_subchannel_pool", 1),
        ],
    )
