"""Encoding single puts, and checking and stamping a client's batch of records."""

from collections.abc import Generator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq.broker.store.batch import StampedRecords, encode_puts, stamp_in_slices
from metaq.broker.store.index import UNIT_DTYPE
from metaq.protocol.errors import ChecksumMismatch, RemoteProtocolError
from metaq.protocol.record import checksum, encode_attributes, encode_body, encode_record, iter_headers, tag_hash


def stamp(records: Sequence[bytes], sizes: Sequence[int] | None = None) -> tuple[memoryview, bytes]:
    widths = np.array([len(record) for record in records] if sizes is None else sizes, dtype=">u4")
    ids = np.arange(1000, 1000 + len(widths), dtype=np.int64)
    stamped = finish(stamp_in_slices(b"".join(records), widths, ids))
    if not stamped.intact.all():
        raise ChecksumMismatch
    stamped.units["offset"] += 500
    return stamped.data, stamped.units.tobytes()


def finish(slices: Generator[None, None, StampedRecords]) -> StampedRecords:
    while True:
        try:
            next(slices)
        except StopIteration as end:
            stamped: StampedRecords = end.value
            return stamped


messages = st.lists(st.tuples(st.binary(max_size=60), st.sampled_from([None, "", "buy", "中", "sell"])), min_size=1)


@given(messages)
def test_a_stamped_batch_is_what_single_puts_would_have_written(items):
    puts, records = [], []
    for payload, tag in items:
        flag, attribute = encode_attributes(tag=tag)
        body = bytes(encode_body(payload, flag, attribute))
        puts.append((flag, checksum(body), body))
        records.append(encode_record(body, 0, flag))
    buffers, units = encode_puts(puts, 500, range(1000, 1000 + len(puts)))
    data, stamped_units = stamp(records)
    assert data == b"".join(buffers)
    assert stamped_units == units


def test_units_of_puts_give_place_time_and_tag():
    flag, attribute = encode_attributes(tag="buy", keys=["k"])
    body = encode_body(b"payload", flag, attribute)
    buffers, units = encode_puts([(0, 0, b""), (flag, checksum(body), memoryview(body))], 10, [5 << 56, 6 << 56], 99)
    found = np.frombuffer(units, UNIT_DTYPE)
    assert found.tolist() == [(10, 5 << 56, 99, 20, 0), (30, 6 << 56, 99, 20 + len(body), tag_hash("buy"))]
    assert [header.id for header in iter_headers(b"".join(buffers))] == [5 << 56, 6 << 56]


def test_ids_and_puts_must_be_as_many():
    with pytest.raises(ValueError, match="zip"):
        encode_puts([(0, 0, b"")], 0, [1, 2], 0)


@pytest.mark.parametrize("sizes", [[], [23], [46], [23, 24], [22, 24], [23, 23, 0], [19, 27], [47, -1], [46, 0]])
def test_sizes_that_do_not_fit_the_body_are_refused(sizes):
    records = [encode_record(b"abc", 0, 0), encode_record(b"def", 0, 0)]
    with pytest.raises(RemoteProtocolError):
        finish(stamp_in_slices(b"".join(records), np.array(sizes, dtype=np.int64), np.arange(len(sizes))))


def test_a_length_field_that_contradicts_its_size_is_refused():
    with pytest.raises(RemoteProtocolError, match="record 1 of the batch"):
        stamp([encode_record(b"abc", 0, 0), b"\xff\xff\xff\xff" + encode_record(b"def", 0, 0)[4:]])


@pytest.mark.parametrize("position", [4, 7, 20, 22])
def test_a_damaged_record_is_refused(position):
    damaged = bytearray(encode_record(b"abc", 0, 0))
    damaged[position] ^= 1
    with pytest.raises(ChecksumMismatch):
        stamp([encode_record(b"fine", 0, 0), bytes(damaged)])


def test_tags_are_those_of_attributes_that_fit_and_equal_ones_of_different_kinds_are_told_apart():
    body = bytes(encode_body(b"", 1, b"TAGS\x01buy\x02"))
    records = [encode_record(b"\0\0\0\x09short", 0, 1), encode_record(b"\0\0", 0, 1)]
    _, units = stamp([*records, encode_record(body, 0, 1), encode_record(body, 0, 3)])
    tags = [0, 0, tag_hash("TAGS\x01buy\x02"), tag_hash("buy")]
    assert np.frombuffer(units, UNIT_DTYPE)["tag"].tolist() == tags


def test_a_writable_body_is_stamped_in_place_and_a_read_only_one_is_left_alone():
    raw = encode_record(b"one", 0, 0)
    for body in (memoryview(bytearray(raw)), memoryview(raw)):
        data = finish(stamp_in_slices(body, np.array([len(raw)]), np.array([77]))).data
        assert bytes(data) == encode_record(b"one", 77, 0)
        assert bytes(body) == (raw if body.readonly else bytes(data))
