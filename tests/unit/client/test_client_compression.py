"""Payloads that a producer compresses, and consumers that never notice."""

import numpy as np
import pyarrow as pa
import pytest

from metaq import Message, ProducerConfig
from metaq.client.producer.building import build_batch, build_body
from metaq.client.producer.packing import Packer
from metaq.client.records.arrow import decode_columns, record_batch
from metaq.client.records.decoding import Records
from metaq.client.records.local_store import StoredMessage
from metaq.protocol.compression import compress
from metaq.protocol.errors import ConfigError, LocalProtocolError
from metaq.protocol.limits import MAX_PAYLOAD_BYTES
from metaq.protocol.record import COMPRESSED_FLAG, encode_attributes, encode_body, encode_record
from tests.unit.client.chunks import HERE, Bench, chunk_of, damage_of, payloads, sized

LONG = b"the same again and again " * 100
NOISE = np.random.default_rng(1).bytes(5000)


def packer(**settings):
    return Packer.of(ProducerConfig(compression="zstd", **settings))


# --- producing --------------------------------------------------------------------------------------------------------


def test_a_payload_is_compressed_if_that_makes_it_smaller_and_it_is_large_enough():
    flag, body = build_body(LONG, {}, packer())
    assert (flag, len(body) < 100) == (COMPRESSED_FLAG, True)
    assert build_body(NOISE, {}, packer()) == (0, NOISE)
    assert build_body(LONG[:511], {}, packer()) == (0, LONG[:511])
    assert build_body(LONG[:511], {}, packer(compression_from_bytes=0))[0] == COMPRESSED_FLAG
    assert build_body(LONG, {}) == (0, LONG)


def test_the_attribute_is_never_compressed():
    flag, body = build_body(LONG, {"tag": "t", "properties": {"n": 1}}, packer())
    message = Message(HERE, 0, 1, flag, body)
    assert flag == COMPRESSED_FLAG | 3
    assert (message.tag, message.properties, message.payload) == ("t", {"n": 1}, LONG)
    assert b"TAGS\x01t\x02" in body
    assert "compressed" in repr(message)


def test_each_payload_of_a_batch_is_compressed_or_not():
    outgoing = build_batch("t", [LONG, NOISE, bytearray(LONG)], 0.0, {}, packer())
    assert outgoing.flags == [COMPRESSED_FLAG, 0, COMPRESSED_FLAG]
    assert outgoing.message == [LONG, NOISE, LONG]


def test_a_consumed_message_is_sent_on_as_it_is_only_by_a_producer_that_compresses():
    flag, body = build_body(LONG, {"tag": "t"}, packer())
    message = Message(HERE, 0, 1, flag, body)
    same = build_batch("u", [message], 0.0, {}, packer())
    assert (same.flags, same.bodies) == ([flag], [body])
    plain = build_batch("u", [message], 0.0, {})
    assert (plain.flags, plain.bodies) == ([1], [encode_body(LONG, 1, b"t")])


def test_a_payload_above_what_readers_unpack_is_refused():
    with pytest.raises(LocalProtocolError, match=r"above the .* that are compressed: send it in parts"):
        build_body(bytes(MAX_PAYLOAD_BYTES + 1), {}, packer())
    assert build_body(bytes(MAX_PAYLOAD_BYTES), {}, packer())[0] == COMPRESSED_FLAG


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"compression": "gzip"}, "compression='gzip': choose 'zstd' or None"),
        ({"compression_level": 0}, "compression_level=0: choose 1 or more"),
        ({"compression_level": 23}, "compression_level=23: choose 1 … 22"),
        ({"compression_from_bytes": -1}, "compression_from_bytes=-1: choose 0 or more"),
    ],
)
def test_a_wrong_setting_is_refused(settings, said):
    with pytest.raises(ConfigError, match=said):
        ProducerConfig(**settings)


def test_a_stored_message_gives_its_payload():
    flag, body = build_body(LONG, {"tag": "t"}, packer())
    assert StoredMessage("t", body, flag).payload == LONG


# --- consuming --------------------------------------------------------------------------------------------------------


def record(payload, packed=False, identity=1 << 60, **attributes):
    flag, raw = encode_attributes(**attributes)
    if packed:
        flag |= COMPRESSED_FLAG
        payload = compress(payload, 3) if packed is True else packed
    return encode_record(encode_body(payload, flag, raw), identity, flag)


MIXED = [record(b"a"), record(LONG, True), record(LONG, True, tag="t"), record(b"b", tag="t"), record(b"", True)]
PAYLOADS = [b"a", LONG, LONG, b"b", b""]


@pytest.mark.parametrize("make", [sized, chunk_of])
def test_messages_have_their_payloads(make):
    messages = make(*MIXED).take(HERE, 10)
    assert payloads(messages) == PAYLOADS
    assert messages[-1].next_offset == 1000 + sum(map(len, MIXED))


def test_a_message_without_attribute_and_compression_is_still_a_plain_one():
    assert type(sized(*MIXED[:1]).take(HERE, 1)[0]).__name__ == "PlainMessage"
    assert type(sized(*MIXED[:2]).take(HERE, 1)[0]) is Message


@pytest.mark.parametrize("limit", [1, 2, 10])
@pytest.mark.parametrize("check", [True, False])
def test_batches_have_the_payloads_of_the_messages(limit, check):
    chunk, batches = sized(*MIXED), []
    while chunk.bytes_left:
        batches.append(chunk.take_batch(HERE, limit, check))
    found = pa.Table.from_batches(batches)
    found.validate(full=True)
    assert found.equals(pa.Table.from_batches([record_batch(sized(*MIXED).take(HERE, 10))]))
    assert found["payload"].to_pylist() == PAYLOADS


def test_a_batch_takes_bounded_memory(monkeypatch):
    monkeypatch.setattr("metaq.client.records.arrow.MAX_UNPACKED_BYTES", len(LONG) + 1)
    chunk = sized(*MIXED)
    assert [chunk.take_batch(HERE, 10).num_rows for _ in range(2)] == [2, 3]
    assert not chunk.bytes_left


def test_messages_may_follow_a_batch():
    chunk = sized(*MIXED)
    assert chunk.take_batch(HERE, 1)["payload"].to_pylist() == PAYLOADS[:1]
    assert payloads(chunk.take(HERE, 10)) == PAYLOADS[1:]


def test_parts_of_columns_are_what_all_of_them_are():
    data = b"".join(MIXED)
    block = decode_columns(Records(data, 0, len(data), 0, None), HERE)
    parts = [block.unpacked(HERE, start, 2).columns for start in (0, 2, 4)]
    assert [payload for part in parts for payload in part.payload.to_pylist()] == PAYLOADS
    assert [attributes.tag for part in parts for attributes in part.attributes or ()] == [None, None, "t", "t", None]


# --- what cannot be unpacked ------------------------------------------------------------------------------------------

BAD = [record(b"a", identity=7), record(b"", b"no frame", 8), record(b"c", identity=9)]


def bench(**options):
    made = Bench(**options)
    made.arrive(sized(*BAD))
    return made


def test_a_message_that_cannot_be_unpacked_says_where_it_is():
    first, bad, last = sized(*BAD).take(HERE, 10)
    assert payloads([first, last]) == [b"a", b"c"]
    error = damage_of(lambda: bad.payload)
    assert "no Zstandard frame" in str(error)
    assert (error.partition, error.position, error.end) == (HERE, bad.offset, bad.next_offset)


ACCEPTS = [None, lambda message: True]
"""Batches are made of columns, or of messages."""


@pytest.mark.parametrize("accept", ACCEPTS)
def test_a_batch_ends_in_front_of_it_and_it_is_told_until_there_is_a_seek(accept):
    made = bench(accept=accept)
    assert made.take_batch() == [b"a"]
    position = 1000 + len(BAD[0])
    assert [damage_of(made.take_batch).end for _ in range(2)] == [position + len(BAD[1])] * 2
    assert made.cursor.position == position


@pytest.mark.parametrize("accept", ACCEPTS)
def test_with_damage_skip_it_is_passed_over(accept):
    made = bench(accept=accept, damage="skip")
    assert made.take_batch() == [b"a"]
    assert made.core.take_batch(10)["payload"].to_pylist() + made.take_batch() == [b"c"]
    assert made.consumed == (1000 + sum(map(len, BAD)), 9)
