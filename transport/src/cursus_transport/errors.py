"""What goes wrong between two ends: with a whole connection, or with one stream of it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from traceback import walk_tb
from typing import Final

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

    def again(self) -> StreamLost:
        """To be raised by whoever finds it: an exception keeps the frames it was raised through, and whoever keeps the
        exception keeps them too."""
        return StreamLost(self.status, str(self))


class NotConnected(StreamLost):
    """No connection could be made. `reason` says why, in the operating system's words where it has some; `answered`
    whether somebody was there, who then did not speak as expected."""

    def __init__(self, address: str, reason: str, *, answered: bool) -> None:
        super().__init__(StatusCode.UNAVAILABLE, f"cannot connect to {address}: {reason}")
        self.address = address
        self.reason = reason
        self.answered = answered

    def again(self) -> NotConnected:
        copy = NotConnected(self.address, self.reason, answered=self.answered)
        copy.__cause__ = self.__cause__
        return copy


def forget_frames(error: BaseException) -> None:
    """Take from an exception that has ended something, and from those behind it, where they were raised.

    A frame that keeps an exception in a variable is kept by it in turn, and such a pair keeps a whole call alive until
    the collector finds it. Those of asyncio's task groups also keep one that nobody else knows, so they are emptied;
    they are over, because the exception has left them.
    """
    found, known = [error], {id(error)}
    while found:
        one = found.pop()
        for frame, _ in walk_tb(one.__traceback__):
            if frame.f_code in _GROUP_ENDS:
                with suppress(RuntimeError):
                    frame.clear()
        one.__traceback__ = None
        inner = one.exceptions if isinstance(one, BaseExceptionGroup) else ()
        for other in (one.__cause__, one.__context__, *inner):
            if other is not None and id(other) not in known:
                known.add(id(other))
                found.append(other)


_GROUP_ENDS: Final = {
    getattr(asyncio.TaskGroup, name).__code__ for name in ("__aexit__", "_aexit") if hasattr(asyncio.TaskGroup, name)
}
