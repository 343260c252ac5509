"""The rest of a large frame is received straight to its place (protocol/requests.py)."""

import gc
import weakref

import pytest

from metaq.protocol.frames import Frame, encode_frame, parse_frame
from metaq.protocol.limits import MAX_FRAME_BYTES
from metaq.protocol.requests import RequestReader
from metaq.protocol.text import Version

BODY = bytes(range(256)) * 1024
RAW = encode_frame(320, 5, {"topic": "t"}, len(BODY)) + BODY


def fill(reader: RequestReader, data: bytes, step: int) -> list:
    """Receive `data` into the reader's space, at most `step` bytes at a time."""
    requests = []
    while data:
        space = reader.space
        assert space is not None
        taken = min(step, len(space), len(data))
        space[:taken] = data[:taken]
        requests += reader.received(taken)
        data = data[taken:]
    return requests


@pytest.mark.parametrize("cut", [8, 9, 200, 70_000, len(RAW) - 1])
@pytest.mark.parametrize("step", [1000, 65_536, len(RAW)])
def test_a_large_frame_is_completed_in_its_own_buffer_and_its_body_is_writable(cut, step):
    reader = RequestReader()
    assert reader.receive(RAW[:cut]) == []
    assert reader.buffered_bytes == cut
    (frame,) = fill(reader, RAW[cut:], step)
    assert frame == parse_frame(RAW, 0, len(RAW))
    assert not frame.body.readonly
    assert (reader.space, reader.buffered_bytes) == (None, 0)


def test_a_transport_that_only_hands_over_bytes_gets_the_same_requests():
    stream = b"version 1\r\n" + RAW + b"version 2\r\n"
    reader, found = RequestReader(), []
    for start in range(0, len(stream), 50_000):
        found += reader.receive(stream[start : start + 50_000])
    assert found == [Version(1), parse_frame(RAW, 0, len(RAW)), Version(2)]


def test_a_large_frame_with_a_wrong_header_ends_the_stream():
    reader = RequestReader()
    raw = bytearray(RAW)
    raw[8] = 0
    assert reader.receive(bytes(raw[:100])) == []
    assert fill(reader, bytes(raw[100:]), 1 << 20) == []
    assert "not JSON" in str(reader.failure)
    assert reader.receive(b"version 1\r\n") == []


def test_a_frame_above_the_limit_gets_no_buffer():
    reader = RequestReader()
    assert reader.receive((MAX_FRAME_BYTES - 3).to_bytes(4, "big") + b"\0\0\0\1") == []
    assert reader.failure is not None
    assert reader.space is None


def test_there_is_space_for_little_more_than_has_come():
    """What the heap gives may be resident, though nothing has come yet."""
    reader = RequestReader()
    data = encode_frame(320, 5, {"topic": "t"}, 15 << 20) + bytes(15 << 20)
    assert reader.receive(data[:70_000]) == []
    received, spaces = 70_000, []
    while (space := reader.space) is not None:
        spaces.append(len(space))
        assert len(space) <= max(received, 1 << 20)
        assert reader.buffered_bytes == received
        space[:] = data[received : received + len(space)]
        received += len(space)
        requests = reader.received(len(space))
    assert received == len(data)
    assert len(spaces) <= 6
    (frame,) = requests
    assert isinstance(frame, Frame)
    assert len(frame.body) == 15 << 20


@pytest.mark.parametrize("header", [b"{", b'{"code":"x"}', b"[" * 70_000])
def test_a_wrong_frame_is_not_kept_by_its_error(header):
    data = (len(header) + 4).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + bytes(1_000_000)
    data = (len(data) - 4).to_bytes(4, "big") + data[4:]
    reader = RequestReader()
    gc.disable()
    try:
        assert reader.receive(data[:100_000]) == []
        assert reader.space is not None
        frame = weakref.ref(reader.space.obj)
        assert fill(reader, data[100_000:], 65_536) == []
        assert reader.failure is not None
        assert frame() is None
    finally:
        gc.enable()
