"""Walking records without an index: runs of one size and mixed sizes give the same units, and a bad record ends it."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.broker.store import scan, tuning
from metaq.broker.store.files import REAL_FILES
from metaq.protocol.record import HEADER_BYTES, encode_record

BASE = 7_000
FIRST_ID = 1 << 60


def units_of(bodies: list[bytes]) -> list[tuple[int, int, int]]:
    """(offset, id, size) of records with ids from FIRST_ID on."""
    offset, units = BASE, []
    for number, body in enumerate(bodies, FIRST_ID):
        units.append((offset, number, HEADER_BYTES + len(body)))
        offset += HEADER_BYTES + len(body)
    return units


def stored(bodies: list[bytes]) -> bytes:
    return b"".join(encode_record(body, number, 0) for number, body in enumerate(bodies, FIRST_ID))


RUNS = st.lists(st.tuples(st.binary(max_size=40), st.sampled_from([1, 3, 15, 16, 17, 300])), max_size=6)


@given(runs=RUNS, data=st.data())
def test_every_record_before_the_first_bad_one_is_found(runs, data):
    bodies = [body for body, count in runs for _ in range(count)]
    raw = stored(bodies)
    found = scan.scan_bytes(raw, BASE)
    assert list(zip(*(found.units[name].tolist() for name in ("offset", "id", "size")), strict=True)) == units_of(
        bodies
    )
    assert found.end == len(raw)
    if not any(bodies):
        return
    bad = data.draw(st.sampled_from([number for number, body in enumerate(bodies) if body]))
    position = units_of(bodies)[bad][0] - BASE + HEADER_BYTES
    broken = raw[:position] + bytes([raw[position] ^ 1]) + raw[position + 1 :]
    found = scan.scan_bytes(broken, BASE)
    assert (len(found.units), found.end) == (bad, position - HEADER_BYTES)
    limited = scan.scan_bytes(raw, BASE, max_records=bad + 1)
    assert len(limited.units) == bad + 1


@pytest.mark.parametrize("chunk", [21, 64, 1000])
def test_records_cut_by_the_reading_are_read_again(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(tuning, "SCAN_CHUNK_BYTES", chunk)
    bodies = [b"x" * 30] * 40 + [bytes([size]) * size for size in range(1, 90)]
    raw = stored(bodies)
    path = tmp_path / "segment"
    path.write_bytes(raw + raw[:25])
    fd = os.open(path, os.O_RDONLY)
    found = scan.scan_units(REAL_FILES, fd, 0, len(raw) + 25, BASE)
    os.close(fd)
    assert found.end == len(raw)
    assert found.units["offset"].tolist() == [offset for offset, _, _ in units_of(bodies)]
