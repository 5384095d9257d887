"""What goes wrong between two ends: with a whole connection, or with one stream of it."""

from __future__ import annotations

from grpc import StatusCode

from cursus_transport.frames import ErrorCode


class ConnectionFailed(Exception):
    """The peer broke the protocol, or a promise that connections depend on. The connection ends with the code."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class StreamLost(Exception):
    """A stream ended before its time: reset, refused by a limit, or gone with its connection."""

    def __init__(self, status: StatusCode, text: str) -> None:
        super().__init__(text)
        self.status = status
