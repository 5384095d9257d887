from __future__ import annotations

import shutil
import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from structlog.testing import capture_logs

from cursus_service.tls import CertificateWatch, RefusedHandshakes, TlsFileError, load_authorities, load_identity
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


def test_what_is_wrong_with_a_file_is_said_with_its_name(tmp_path: Path) -> None:
    """OpenSSL alone says `[SSL] PEM lib (_ssl.c:3905)`, whatever it was."""
    authority = Authority(tmp_path)
    pair, other = authority.server(), authority.server(name="other")
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("no certificate\n")
    encrypted = tmp_path / "encrypted.pem"
    key = serialization.load_pem_private_key(pair.key.read_bytes(), None)
    encrypted.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"x")
        )
    )
    missing = tmp_path / "missing.pem"
    for cert, key_file, file, cause in (
        (missing, pair.key, missing, "cannot be read: No such file or directory"),
        (pair.certificate, missing, missing, "cannot be read: No such file or directory"),
        (garbage, pair.key, garbage, "no PEM certificate in it"),
        (pair.certificate, garbage, garbage, "no PEM private key in it"),
        (pair.certificate, other.key, other.key, "does not belong to the certificate"),
        (pair.certificate, encrypted, encrypted, "the private key is encrypted"),
    ):
        with pytest.raises(TlsFileError) as refused:
            load_identity(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), cert, key_file)
        assert str(refused.value).startswith(f"{file}: ")
        assert cause in str(refused.value)
    with pytest.raises(TlsFileError, match=r"garbage\.pem: no PEM certificate in it"):
        load_authorities(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), garbage)
    load_identity(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), pair.certificate, pair.key)


def test_refused_handshakes_are_all_counted_and_told_in_measure() -> None:
    now, counted = 0.0, 0

    def count() -> None:
        nonlocal counted
        counted += 1

    with capture_logs() as lines:
        refused = RefusedHandshakes(count, lambda: now)
        for _ in range(5):
            refused.note("10.0.0.7:1234", ssl.SSLError(1, "[SSL: HTTP_REQUEST] http request"))
        now = 1.5
        refused.note("10.0.0.8:1", TimeoutError())
    assert counted == 6
    assert [(line["peer"], line.get("not_logged")) for line in lines] == [("10.0.0.7:1234", None), ("10.0.0.8:1", 4)]
