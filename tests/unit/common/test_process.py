from __future__ import annotations

import io
import sys

import pytest

from cursus_service.process import announce_ready, format_address, raise_open_file_limit


def test_the_ready_line_names_every_address_in_order() -> None:
    stream = io.StringIO()
    announce_ready(stream=stream, grpc=("127.0.0.1", 1), health=("::1", 2), metrics=("host", 3))
    assert stream.getvalue() == "ready grpc=127.0.0.1:1 health=[::1]:2 metrics=host:3\n"


def test_nobody_listening_to_the_ready_line_is_no_failure() -> None:
    stream = io.StringIO()
    stream.close()
    announce_ready(stream=stream, grpc=("127.0.0.1", 1))


def test_an_ipv6_host_gets_its_brackets() -> None:
    assert format_address("::", 50051) == "[::]:50051"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
def test_the_open_file_limit_is_never_lowered() -> None:
    import resource

    before, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert raise_open_file_limit(16) >= 16
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == before
