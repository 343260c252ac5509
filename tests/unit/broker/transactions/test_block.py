"""A block of a transaction encodes its messages as they come, to what single puts would be."""

import random

import pytest

from metaq.broker import tuning
from metaq.broker.store.batch import encode_puts
from metaq.broker.transactions import open_transactions
from metaq.broker.transactions.commit import EncodedBlock
from metaq.broker.transactions.open_transactions import Block
from metaq.broker.transactions.redo import block_checksum
from metaq.protocol.record import checksum, encode_attributes, encode_body

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize("count", [1, 3, 100, 5000])
@pytest.mark.parametrize("joined_bytes", [1 << 10, 1 << 20])
@pytest.mark.parametrize("slice_records", [7, 1 << 16])
def test_its_records_and_units_are_those_of_single_puts(harness, monkeypatch, count, joined_bytes, slice_records):
    monkeypatch.setattr(open_transactions, "_JOINED_BYTES", joined_bytes)
    monkeypatch.setattr(tuning, "COMMIT_SLICE_RECORDS", slice_records)
    rng = random.Random(count)
    flag, attribute = encode_attributes(tag="red")
    bodies = [(0, bytes(rng.choice((0, 0, 1, 50)))) for _ in range(count)]
    bodies[::7] = [(flag, encode_body(b"x", flag, attribute))] * len(bodies[::7])
    puts = [(each, checksum(body), body) for each, body in bodies]
    ids = [rng.getrandbits(62) - (1 << 61) for _ in range(count)]
    block = Block(harness.store.get_or_create("t", 0))
    for message_id, put in zip(ids, puts, strict=True):
        block.add(message_id, *put)
    encoded = EncodedBlock(block, 12_345, NOW_MS)
    data, units = encode_puts(puts, 12_345, ids, NOW_MS)
    assert b"".join(encoded.data) == b"".join(data)
    assert encoded.units == units
    assert encoded.checksum == block_checksum(data)
    assert encoded.size == sum(map(len, data))
    encoded.move(23_456, NOW_MS + 5)
    assert encoded.units == encode_puts(puts, 23_456, ids, NOW_MS + 5)[1]


def test_a_hundred_thousand_records_are_few_buffers(harness):
    block = Block(harness.store.get_or_create("t", 0))
    for number in range(100_000):
        block.add(number, 0, 0, b"")
    assert len(block.data) < 1200
