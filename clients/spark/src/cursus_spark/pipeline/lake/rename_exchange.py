"""Swapping two directories in one step, which Linux does with `renameat2` and no library of Python's offers."""

from __future__ import annotations

import ctypes
import errno
import os
from functools import cache
from pathlib import Path
from typing import Any, Final

_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2

_CANNOT: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EXDEV, errno.EPERM})


class ExchangeUnsupported(OSError):
    """This system or file system cannot swap two names."""


@cache
def _renameat2() -> Any:
    try:
        function = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    return function


def exchange(one: Path, other: Path) -> None:
    """Each gets the other's name, at once. Both have to be there. Raises ExchangeUnsupported, OSError."""
    function = _renameat2()
    if function is None:
        raise ExchangeUnsupported(errno.ENOSYS, "this system has no renameat2")
    if function(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return
    number = ctypes.get_errno()
    if number == errno.EXDEV:
        raise ExchangeUnsupported(number, "they are on different file systems", str(one), None, str(other))
    if number in _CANNOT:
        why = f"the file system cannot swap two directories ({os.strerror(number)})"
        raise ExchangeUnsupported(number, why, str(one), None, str(other))
    raise OSError(number, os.strerror(number), str(one), None, str(other))
