"""The PROXY protocol's header: every cut of the bytes gives the same result, and wrong bytes are a
RemoteProtocolError.
"""

import ipaddress
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from metaq.protocol.errors import RemoteProtocolError
from metaq.protocol.proxy_header import MAX_PROXY_HEADER_BYTES, ProxyHeaderReader, ProxySource

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"


def header(command, family, rest):
    return SIGNATURE + bytes((command, family)) + struct.pack("!H", len(rest)) + rest


def proxied(host, port, more=b""):
    address = ipaddress.ip_address(host)
    rest = address.packed * 2 + struct.pack("!HH", port, 8123) + more
    return header(0x21, 0x11 if address.version == 4 else 0x21, rest)


def read(raw, cuts=()):
    """Pass the bytes on in pieces that end at `cuts`. Return the source, and how many bytes were taken."""
    reader, at = ProxyHeaderReader(), 0
    ends = sorted({*cuts, len(raw)})
    while reader.missing and at < len(raw):
        end = min(next(each for each in ends if each > at), at + reader.missing)
        reader.receive(raw[at:end])
        at = end
    return reader.source, at, reader.missing


HOSTS = st.ip_addresses().map(str)


@given(HOSTS, st.integers(0, 65535), st.binary(max_size=400), st.sets(st.integers(1, 536)), st.binary(max_size=20))
def test_the_source_is_read_whatever_the_cuts_and_no_byte_behind_the_header_is_taken(host, port, more, cuts, behind):
    raw = proxied(host, port, more)
    assert read(raw + behind, cuts) == (ProxySource(host, port), len(raw), 0)


@given(st.binary(max_size=MAX_PROXY_HEADER_BYTES - 16), st.integers(0, 255))
def test_a_local_header_has_no_source_whatever_it_contains(rest, family):
    assert read(header(0x20, family, rest)) == (None, 16 + len(rest), 0)


@given(st.binary(max_size=600), st.sets(st.integers(1, 600)))
@example(SIGNATURE + b"\x21\x11\xff\xff", {12})
def test_any_other_bytes_are_refused_or_too_few(raw, cuts):
    try:
        source, taken, missing = read(raw, cuts)
    except RemoteProtocolError:
        return
    assert taken <= MAX_PROXY_HEADER_BYTES
    assert missing or raw.startswith(SIGNATURE)
    assert source is None or raw[12] == 0x21


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"\x16", "does not begin with"),
        (b"put", "does not begin with"),
        (b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n"[:16], "does not begin with"),
        (header(0x11, 0x11, b"x" * 12), "unknown version or command 0x11"),
        (header(0x22, 0x11, b"x" * 12), "unknown version or command 0x22"),
        (header(0x21, 0x12, b"x" * 12), "not of a TCP connection"),
        (header(0x21, 0x00, b""), "not of a TCP connection"),
        (header(0x21, 0x31, b"x" * 216), "not of a TCP connection"),
        (header(0x21, 0x11, b"x" * 11), "too short for its addresses: 11 bytes"),
        (header(0x21, 0x21, b"x" * 35), "too short for its addresses: 35 bytes"),
        (header(0x21, 0x11, b"x" * 521)[:16], "537 bytes, more than 536"),
    ],
)
def test_what_is_wrong_is_said_at_once(raw, said):
    with pytest.raises(RemoteProtocolError, match=said):
        read(raw)
