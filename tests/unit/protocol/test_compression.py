"""Compressed payloads: what comes back, and what is refused before memory is taken."""

import struct

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from metaq.protocol.compression import compress, decompress, payload_of, unpacked_body, unpacked_bytes
from metaq.protocol.errors import PayloadUnreadable
from metaq.protocol.limits import MAX_PAYLOAD_BYTES
from metaq.protocol.record import COMPRESSED_FLAG, encode_attributes, encode_body


@settings(deadline=None)
@given(st.binary(max_size=3000), st.integers(1, 5))
def test_a_payload_comes_back(payload, level):
    packed = compress(payload, level)
    assert (decompress(packed), unpacked_bytes(packed)) == (payload, len(payload))


def test_the_payload_behind_an_attribute_is_unpacked_and_the_attribute_stays():
    payload = b"x" * 1000
    flag, raw = encode_attributes(tag="t", properties={"n": 1})
    body = encode_body(compress(payload, 3), flag, raw)
    assert payload_of(body, flag | COMPRESSED_FLAG) == payload
    assert unpacked_body(body, flag | COMPRESSED_FLAG) == (flag, encode_body(payload, flag, raw))
    assert unpacked_body(payload, 0) == (0, payload)


def frame_of_unknown_size(payload):
    return zstandard.ZstdCompressor(write_content_size=False).compress(payload)


def frame_that_says(size):
    """A frame header with this content size, and one empty last block."""
    return b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", size) + b"\x01\x00\x00"


@pytest.mark.parametrize(
    ("packed", "said"),
    [
        (b"", "no Zstandard frame"),
        (b"plain text", "no Zstandard frame"),
        (frame_of_unknown_size(b"x" * 100), "does not say how large"),
        (frame_that_says(MAX_PAYLOAD_BYTES + 1), f"has {MAX_PAYLOAD_BYTES + 1} bytes, more than"),
        (frame_that_says(1 << 62), "more than"),
        (frame_that_says(1000), "is damaged"),
        (compress(b"x" * 5000, 3)[:-1], "is damaged"),
    ],
)
def test_what_is_no_good_frame_is_refused(packed, said):
    with pytest.raises(PayloadUnreadable, match=said):
        decompress(packed)


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_unpacked_or_refused(data):
    for packed in (data, compress(b"abc" * 50, 3)[:6] + data):
        try:
            assert isinstance(decompress(packed), bytes)
        except PayloadUnreadable:
            continue
