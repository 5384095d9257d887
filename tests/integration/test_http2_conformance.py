"""What h2spec, the HTTP/2 conformance suite, says of a running broker."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

from cursus_grpc.testing import Broker

BIN = Path(__file__).parents[2] / "tools" / "bin"
DEADLINE_S = 240.0

# h2spec asks for a page, as a browser would. A broker answers everything that is not gRPC with 415 at once, and the
# stream is over where these cases go on with it. test_calls_on_the_wire.py and its neighbours ask the same with calls.
ANSWERED_AT_ONCE = {
    "Sends a WINDOW_UPDATE frame on half-closed (remote) stream",
    "Sends a PRIORITY frame on half-closed (remote) stream",
    "Sends a large size HEADERS frame that exceeds the SETTINGS_MAX_FRAME_SIZE",
    "half closed (remote): Sends a DATA frame",
    "closed: Sends a DATA frame after sending RST_STREAM frame",
    "closed: Sends a DATA frame",
    "Sends HEADERS frames that causes their advertised concurrent stream limit to be exceeded",
    'Sends a DATA frame on the stream that is not in "open" or "half-closed (local)" state',
    "Sends a WINDOW_UPDATE frame with a flow control window increment of 0 on a stream",
    "Sends multiple WINDOW_UPDATE frames increasing the flow control window to above 2^31-1 on a stream",
    'Sends a HEADERS frame with the "content-length" header field which does not equal the DATA frame payload length',
    'Sends a HEADERS frame with the "content-length" header field which does not equal the sum of the multiple DATA'
    " frames payload length",
}
# Clients that go on with the table they had before they read our settings are served all the same.
LENIENT = {"Sends a dynamic table size update larger than the value of SETTINGS_HEADER_TABLE_SIZE"}


async def test_a_broker_speaks_http2_as_the_standard_has_it(cursus_broker: Broker, tmp_path: Path) -> None:
    program = shutil.which("h2spec", path=str(BIN)) or shutil.which("h2spec")
    if program is None:
        pytest.skip("h2spec is neither in tools/bin, where .ci/run installs it with go, nor on PATH")
    host, _, port = cursus_broker.address.rpartition(":")
    report = tmp_path / "report.xml"
    process = await asyncio.create_subprocess_exec(
        *(program, "generic", "http2", "hpack", "-h", host, "-p", port, "-j", str(report)),
        stdout=asyncio.subprocess.DEVNULL,
    )
    async with asyncio.timeout(DEADLINE_S):
        await process.wait()
    cases = ElementTree.parse(report).getroot().findall(".//testcase")
    failed = {case.get("classname") for case in cases if case.find("failure") is not None}
    assert len(cases) > 140
    assert failed <= ANSWERED_AT_ONCE | LENIENT
