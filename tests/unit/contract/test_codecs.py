"""Every codec gives back what it took, within bounds, and refuses what it did not make."""

from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cursus_proto import codecs
from cursus_proto.v1.records_pb2 import Codec

ALL = [number for number in Codec.values() if not codecs.is_plain(number)]
NAMES = [Codec.Name(number) for number in ALL]


@pytest.mark.parametrize("codec", ALL, ids=NAMES)
def test_what_was_compressed_comes_back(codec: int) -> None:
    @given(st.binary(max_size=2_000), st.integers(0, 300))
    def check(data: bytes, times: int) -> None:
        assert codecs.decompress(codec, codecs.compress(codec, data * times)) == data * times

    check()


@pytest.mark.parametrize("codec", ALL, ids=NAMES)
def test_data_far_larger_than_its_compressed_form_comes_back(codec: int) -> None:
    """The first guess of the size is too small for it: more room has to be found, and nothing else retried."""
    data = bytes(3_000_000)
    assert codecs.decompress(codec, codecs.compress(codec, data)) == data


@pytest.mark.parametrize("codec", ALL, ids=NAMES)
def test_decompression_stops_at_its_limit(codec: int) -> None:
    packed = codecs.compress(codec, bytes(200_000))
    assert len(codecs.decompress(codec, packed, limit=200_000)) == 200_000
    with pytest.raises(codecs.CodecError, match="more than 199999 bytes"):
        codecs.decompress(codec, packed, limit=199_999)


@pytest.mark.parametrize("codec", ALL, ids=NAMES)
def test_what_is_cut_or_garbage_is_refused_without_retrying(codec: int) -> None:
    packed = codecs.compress(codec, bytes(range(256)) * 40)
    for broken in (packed[:-3], packed[: len(packed) // 2], b"\x00garbage", bytes(100)):
        with pytest.raises(codecs.CodecError, match=r"undecodable|cut short"):
            codecs.decompress(codec, broken)


def test_gzip_is_what_everybody_calls_gzip() -> None:
    assert gzip.decompress(codecs.compress(Codec.CODEC_GZIP, b"abc")) == b"abc"
    assert codecs.decompress(Codec.CODEC_GZIP, gzip.compress(b"abc")) == b"abc"
    with pytest.raises(codecs.CodecError):
        codecs.decompress(Codec.CODEC_GZIP, zlib.compress(b"abc"))
    with pytest.raises(codecs.CodecError, match="followed by other bytes"):
        codecs.decompress(Codec.CODEC_GZIP, gzip.compress(b"abc") + b"x")


def test_no_codec_changes_nothing() -> None:
    for codec in (Codec.CODEC_UNSPECIFIED, Codec.CODEC_NONE):
        assert codecs.is_plain(codec)
        assert codecs.compress(codec, b"abc") == codecs.decompress(codec, b"abc") == b"abc"


def test_an_unknown_codec_is_refused() -> None:
    assert not codecs.is_known(99)
    for function in (codecs.compress, codecs.decompress):
        with pytest.raises(codecs.CodecError, match="99 is unknown"):
            function(99, b"abc")


def test_every_codec_of_the_contract_is_known() -> None:
    assert all(codecs.is_known(number) for number in Codec.values())
