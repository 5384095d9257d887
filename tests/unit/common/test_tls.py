from __future__ import annotations

import shutil
import ssl
from pathlib import Path

import pytest

from cursus_service.tls import CertificateWatch
from tests.harness.certificates import Authority, KeyPair


def watch(pair: KeyPair) -> CertificateWatch:
    return CertificateWatch(
        (pair.certificate, pair.key), lambda context: context.load_cert_chain(pair.certificate, pair.key)
    )


def shown(context: ssl.SSLContext, authority: Authority) -> bytes:
    """The certificate a server with this context shows, over a connection in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    trusting = ssl.create_default_context(cafile=authority.certificate)
    client = trusting.wrap_bio(to_client, to_server, server_hostname="localhost")
    server = context.wrap_bio(to_server, to_client, server_side=True)
    for side in (client, server, client, server):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    certificate = client.getpeercert(binary_form=True)
    assert certificate is not None
    return certificate


def test_a_replaced_pair_is_shown_to_new_connections(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    watching = watch(authority.server())
    before = shown(watching.context, authority)
    assert not watching.check()
    authority.server()
    assert watching.check()
    assert shown(watching.context, authority) != before
    assert not watching.check()


def test_half_a_pair_changes_nothing_until_the_other_half_is_there(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.server()
    watching = watch(pair)
    before = shown(watching.context, authority)
    renewed = authority.server(name="renewed")
    shutil.copy(renewed.certificate, pair.certificate)
    assert not watching.check()
    assert shown(watching.context, authority) == before
    shutil.copy(renewed.key, pair.key)
    assert watching.check()
    assert shown(watching.context, authority) != before


def test_files_that_are_gone_change_nothing(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.server()
    watching = watch(pair)
    pair.key.unlink()
    assert not watching.check()
    assert shown(watching.context, authority)


def test_a_pair_that_cannot_be_loaded_is_refused_at_the_start(tmp_path: Path) -> None:
    pair = Authority(tmp_path).server()
    pair.key.write_text("not a key")
    with pytest.raises(OSError):
        watch(pair)
