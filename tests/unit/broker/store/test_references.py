"""Optimised code beside the plain code that it stands for: both agree, whatever comes.

Here: the vectorised scan of records (scan.py), and the reading of many index blocks by one checksum (index_blocks.py).
Elsewhere: batches stamped by numpy (test_store_batch.py, beside `encode_puts`), store times in order
(test_store_times.py), guessed places of hashes in a key file (test_key_index.py).
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaq.broker.store import tuning
from metaq.broker.store.files import REAL_FILES
from metaq.broker.store.index_blocks import (
    UNIT,
    UNIT_BYTES,
    IndexDamaged,
    block_of,
    first_of,
    pack_units,
    read_block,
    read_units,
    unit_position,
)
from metaq.broker.store.scan import scan_bytes, scan_units
from metaq.protocol.message_id import store_times_ms
from metaq.protocol.record import (
    ATTRIBUTE_FLAG,
    HEADER,
    HEADER_BYTES,
    checksum,
    encode_record,
    is_blank,
    tag_hash_of_body,
)

# --- the scan of records ----------------------------------------------------------------------------------------------

Unit = tuple[int, int, int, int, int]


def plain_scan(data: bytes, first_offset: int, max_records: int) -> tuple[list[Unit], int]:
    """Units of the good records at the front of `data`, one record after the other, and where the last one ends."""
    units: list[Unit] = []
    position = 0
    while len(units) < max_records and position + HEADER_BYTES <= len(data):
        length, expected, message_id, flag = HEADER.unpack_from(data, position)
        body = data[position + HEADER_BYTES : position + HEADER_BYTES + max(0, length)]
        if length < 0 or len(body) < length or is_blank(length, expected, message_id) or checksum(body) != expected:
            break
        time_ms = int(store_times_ms(message_id)) if message_id > 0 else 0
        tag = tag_hash_of_body(body, flag) if flag & ATTRIBUTE_FLAG else 0
        units.append((first_offset + position, message_id, time_ms, HEADER_BYTES + length, tag))
        position += HEADER_BYTES + length
    return units, position


@st.composite
def stored(draw: st.DrawFn) -> bytes:
    """Runs of records of one size and of any, some damaged, some cut, zeros and junk in between."""
    parts: list[bytes] = []
    for _ in range(draw(st.integers(0, 5))):
        kind = draw(st.sampled_from(["same", "same", "any", "zeros", "junk"]))
        if kind == "same":
            body = draw(st.binary(max_size=30))
            flag = draw(st.sampled_from([0, ATTRIBUTE_FLAG]))
            first = draw(st.integers(-100, 1 << 62))
            parts += [encode_record(body, first + number, flag) for number in range(draw(st.integers(1, 40)))]
        elif kind == "any":
            parts += [encode_record(body, 7, 0) for body in draw(st.lists(st.binary(max_size=30), max_size=8))]
        else:
            parts.append(bytes(draw(st.integers(0, 60))) if kind == "zeros" else draw(st.binary(max_size=60)))
    data = bytearray(b"".join(parts))
    if data and draw(st.booleans()):
        data[draw(st.integers(0, len(data) - 1))] ^= 1 << draw(st.integers(0, 7))
    return bytes(data[: draw(st.integers(0, len(data)))]) if draw(st.booleans()) else bytes(data)


@settings(max_examples=300, deadline=None)
@given(data=stored(), max_records=st.sampled_from([1, 5, 17, 1 << 20]))
def test_the_vectorised_scan_finds_what_a_walk_record_by_record_finds(data, max_records):
    found = scan_bytes(data, 5000, max_records=max_records)
    assert (found.units.tolist(), found.end) == plain_scan(data, 5000, max_records)


@pytest.mark.parametrize("chunk", [21, 64, 1000])
def test_records_cut_by_the_reading_are_read_again(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(tuning, "SCAN_CHUNK_BYTES", chunk)
    bodies = [b"x" * 30] * 40 + [bytes([size]) * size for size in range(1, 90)]
    raw = b"".join(encode_record(body, number, 0) for number, body in enumerate(bodies, 1 << 60))
    (tmp_path / "segment").write_bytes(raw + raw[:25])
    with open(tmp_path / "segment", "rb") as file:
        found = scan_units(REAL_FILES, file.fileno(), 0, len(raw) + 25, 7000)
    assert (found.units.tolist(), found.end) == plain_scan(raw, 7000, 1 << 20)


# --- the reading of index blocks --------------------------------------------------------------------------------------


def plain_units(file: bytes, start: int, stop: int, stored: int, crc: int) -> bytes:
    """Units start … stop-1, each read with its own block."""
    found = b""
    for number in range(start, stop):
        block = block_of(number)
        units = read_block(lambda size, position: file[position : position + size], "index", block, stored, crc)
        place = (number - first_of(block)) * UNIT_BYTES
        found += bytes(units[place : place + UNIT_BYTES])
    return found


@settings(max_examples=100, deadline=None)
@given(sizes=st.lists(st.integers(1, 300), min_size=1, max_size=5), data=st.data())
def test_many_blocks_under_one_checksum_are_what_each_block_by_itself_is(sizes, data):
    file, crc, count = bytearray(64), 0, 0
    for size in sizes:
        units = b"".join(UNIT.pack(number * 9, number, number, 9, 0) for number in range(count, count + size))
        parts, crc = pack_units(count, units, crc)
        file[unit_position(count) :] = b"".join(bytes(part) for part in parts)
        count += size
    start = data.draw(st.integers(0, count - 1))
    stop = data.draw(st.integers(start + 1, count))
    if data.draw(st.booleans()):
        file[data.draw(st.integers(64, len(file) - 1))] ^= 1
    raw = bytes(file)

    def outcome(units):
        try:
            return bytes(units())
        except IndexDamaged as damage:
            return damage.block

    def load(size, position):
        return raw[position : position + size]

    found = outcome(lambda: read_units(load, "index", start, stop, count, crc).tobytes())
    assert found == outcome(lambda: plain_units(raw, start, stop, count, crc))
