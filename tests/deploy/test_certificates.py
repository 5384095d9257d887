"""Certificates that are renewed while the services run."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

from tests.harness.certificates import Authority
from tests.harness.gateway import GatewayProcess
from tests.harness.processes import BrokerProcess
from tests.harness.waiting import eventually


async def shown(address: str, authority: Authority) -> bytes:
    """The certificate that a new connection is shown and trusts."""
    host, _, port = address.rpartition(":")
    trusting = ssl.create_default_context(cafile=authority.certificate)
    _, writer = await asyncio.open_connection(host, int(port), ssl=trusting)
    certificate: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    return certificate


async def test_a_renewed_certificate_is_served_without_a_restart(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    pair = authority.server()
    flags = ("--tls-cert", str(pair.certificate), "--tls-key", str(pair.key))
    upstream = ("--upstream-tls-ca", str(authority.certificate))
    async with (
        BrokerProcess.start(tmp_path / "data", *flags) as broker,
        GatewayProcess.start(broker.grpc, tmp_path, *flags, *upstream) as gateway,
    ):
        ports = (broker.grpc, gateway.tcp)
        before = [await shown(port, authority) for port in ports]
        authority.server()

        async def renewed() -> bool:
            return all([await shown(port, authority) != old for port, old in zip(ports, before, strict=True)])

        followed: bool = await eventually(renewed)
        assert followed
        assert "tls.certificate.loaded" in broker.log
        assert "tls.certificate.loaded" in gateway.log
